"""A breadth-first search over the references between objects, as the garbage collector sees them.

It reads what each object refers to (`gc.get_referents`) and runs none of its code: no `__getattr__`, no property, no
`__eq__`. The first path that is found to an object is kept, so an object is named by the first and nearest root.
"""

import gc
import types
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from ullage.training.ownership.safe_inspection import held_by

_LEAVES: Final = frozenset(
    {
        str, int, float, bool, complex, bytes, bytearray, type(None), type(...), type(NotImplemented), range,
        types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
    }
)  # fmt: skip
"""The types whose objects refer to nothing, or to nothing of interest."""


class Reach:
    """The objects that have been reached, and the object from which each was reached.

    It holds references to them; `drop_references()` has to be called before the next question of what is alive.
    """

    def __init__(self, sought: Callable[[type], str | None]) -> None:
        """Record the places of objects of some types: those for which `sought` returns a name."""
        self.found: dict[str, list[int]] = defaultdict(list)
        """The places of the sought objects, by the name that `sought` returns for their type."""
        self._sought = sought
        self._lists: dict[type, list[int] | None] = {}
        self.objects: list[Any] = []
        self.parents: list[int] = []
        """The index in `objects` of each object's parent; -1 for a root."""
        self._places: dict[int, int] = {}
        self.ignore(self, self.__dict__, *self.__dict__.values())

    def ignore(self, *ones: object) -> None:
        """Exclude objects, such as the search itself, which refers to everything."""
        self._places.update((id(one), -1) for one in ones)

    def unknown(self, ones: Iterable[Any]) -> list[Any]:
        """Return the objects that were neither reached nor ignored."""
        places = self._places
        return [one for one in ones if id(one) not in places]

    def has(self, one: object) -> bool:
        """Tell whether an object was reached."""
        return self._places.get(id(one), -1) >= 0

    def add(self, one: object, parent: int = -1) -> int | None:
        """Add an object, and return its place; None if it was reached before."""
        if id(one) in self._places:
            return None
        place = self._places[id(one)] = len(self.objects)
        self.objects.append(one)
        self.parents.append(parent)
        places = self._list_of(type(one))
        if places is not None:
            places.append(place)
        return place

    def _list_of(self, kind: type) -> list[int] | None:
        """Return the list in which the places of a type's objects are recorded; None if the type is not sought."""
        if kind not in self._lists:
            name = self._sought(kind)
            self._lists[kind] = self.found[name] if name is not None else None
            self.ignore(self._lists[kind])
        return self._lists[kind]

    def search(self, starts: Iterable[int], closed: frozenset[int] = frozenset()) -> None:
        """Follow the references of objects at these places; objects whose `id` is in `closed` are not entered."""
        objects, parents, places, leaves = self.objects, self.parents, self._places, _LEAVES
        referents, array, lists = gc.get_referents, np.ndarray, self._lists
        level = list(starts)
        while level:
            following: list[int] = []
            for parent in level:
                holder = objects[parent]
                for one in referents(holder) if type(holder) is not array else held_by(holder):
                    kind = type(one)
                    if kind in leaves:
                        continue
                    key = id(one)
                    if key in places or key in closed:
                        continue
                    places[key] = place = len(objects)
                    objects.append(one)
                    parents.append(parent)
                    following.append(place)
                    noted = lists[kind] if kind in lists else self._list_of(kind)
                    if noted is not None:
                        noted.append(place)
            level = following

    def drop_references(self) -> None:
        """Drop all references to the objects."""
        self.objects.clear()
        self.parents.clear()
        self._places.clear()
        self._lists.clear()

    def chain_of(self, place: int) -> list[int]:
        """Return the places on the path from a root to an object."""
        chain = [place]
        while self.parents[chain[-1]] >= 0:
            chain.append(self.parents[chain[-1]])
        return chain[::-1]
