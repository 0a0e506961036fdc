"""A breadth-first search over the references between Python objects, as the garbage collector reports them.

It reads the references of each object (`gc.get_referents`) and runs none of the object's code: no `__getattr__`, no
property, no `__eq__`. Only the first path to an object is kept, so it is named after the nearest variable.
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
"""The types of objects whose references are not followed. These objects cannot refer to a tensor."""


class Reach:
    """The objects that a search has found, each with the object that refers to it.

    The search keeps these objects alive. Call `drop_references()` before you check which objects are still alive.
    """

    def __init__(self, sought: Callable[[type], str | None]) -> None:
        """Create an empty search, which records the indices of objects of some types.

        `sought` returns a name for such a type, and None for any other type.
        """
        self.found: dict[str, list[int]] = defaultdict(list)
        """Maps the name that `sought` has returned for a type to the indices of the objects of this type."""
        self._sought = sought
        self._lists: dict[type, list[int] | None] = {}
        self.objects: list[Any] = []
        self.parents: list[int] = []
        """The index in `objects` of the object that refers to each object. It is -1 for an object at which the search
        began.
        """
        self._places: dict[int, int] = {}
        self.ignore(self, self.__dict__, *self.__dict__.values())

    def ignore(self, *ones: object) -> None:
        """Exclude objects from the search. An example is the search itself, because it refers to everything that it has
        found.
        """
        self._places.update((id(one), -1) for one in ones)

    def unknown(self, ones: Iterable[Any]) -> list[Any]:
        """Return the given objects that the search has neither found nor excluded."""
        places = self._places
        return [one for one in ones if id(one) not in places]

    def has(self, one: object) -> bool:
        return self._places.get(id(one), -1) >= 0

    def add(self, one: object, parent: int = -1) -> int | None:
        """Add an object to the search, and return its index in `objects`. Return None if the object had been found
        before.
        """
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
        """Return the list of indices for objects of this type. None if such objects are not recorded."""
        if kind not in self._lists:
            name = self._sought(kind)
            self._lists[kind] = self.found[name] if name is not None else None
            self.ignore(self._lists[kind])
        return self._lists[kind]

    def search(self, starts: Iterable[int], closed: frozenset[int] = frozenset()) -> None:
        """Search all objects to which the objects at these indices refer, directly or indirectly. Skip the objects
        whose `id` is in `closed`.
        """
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
        self.objects.clear()
        self.parents.clear()
        self._places.clear()
        self._lists.clear()

    def chain_of(self, place: int) -> list[int]:
        """Return the indices of the objects on the path from the start of the search to the given object."""
        chain = [place]
        while self.parents[chain[-1]] >= 0:
            chain.append(self.parents[chain[-1]])
        return chain[::-1]
