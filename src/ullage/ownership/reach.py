"""Which objects lead to which: a breadth-first search over what the garbage collector sees.

It asks each object's type what it refers to (`gc.get_referents`) and runs none of its code: no `__getattr__`, no
property, no `__eq__`. The first way that is found to an object is kept, so that what is searched first, and near, gives
an object its name.
"""

import gc
import types
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from ullage.ownership.inert import held_by

_LEAVES: Final = frozenset(
    {
        str, int, float, bool, complex, bytes, bytearray, type(None), type(...), type(NotImplemented), range,
        types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
    }
)  # fmt: skip
"""Types whose objects lead nowhere, or to nothing of interest."""


class Reach:
    """The objects that have been reached, and from where.

    It holds them: it has to be gone before anybody asks again what is alive.
    """

    def __init__(self, sought: Callable[[type], str | None]) -> None:
        """Note the places of objects of some types: those that `sought` has a name for."""
        self.found: dict[str, list[int]] = defaultdict(list)
        """The places of objects that were sought, by the name of what they are."""
        self._sought = sought
        self._lists: dict[type, list[int] | None] = {}
        self.objects: list[Any] = []
        self.parents: list[int] = []
        """The place in `objects` of what led to each; -1 for a root."""
        self._places: dict[int, int] = {}
        self.ignore(self, self.__dict__, *self.__dict__.values())

    def ignore(self, *ones: object) -> None:
        """Never come to these, such as what does the search: it leads to everything."""
        self._places.update((id(one), -1) for one in ones)

    def unknown(self, ones: Iterable[Any]) -> list[Any]:
        """Return those that were neither reached nor are ignored."""
        places = self._places
        return [one for one in ones if id(one) not in places]

    def place_of(self, one: object) -> int | None:
        """Return the place of an object that was reached."""
        place = self._places.get(id(one))
        return place if place is not None and place >= 0 else None

    def add(self, one: object, parent: int = -1) -> int | None:
        """Add an object, and return its place; None where it has been reached before."""
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
        """Return where the places of a type's objects are noted."""
        if kind not in self._lists:
            name = self._sought(kind)
            self._lists[kind] = self.found[name] if name is not None else None
            self.ignore(self._lists[kind])
        return self._lists[kind]

    def search(self, starts: Iterable[int], closed: frozenset[int] = frozenset()) -> None:
        """Follow what objects at these places refer to; not beyond those whose `id` is closed, which stay unreached."""
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

    def forget(self) -> None:
        """Hold nothing any more."""
        self.objects.clear()
        self.parents.clear()
        self._places.clear()
        self._lists.clear()

    def chain_of(self, place: int) -> list[int]:
        """Return the places from a root to an object."""
        chain = [place]
        while self.parents[chain[-1]] >= 0:
            chain.append(self.parents[chain[-1]])
        return chain[::-1]
