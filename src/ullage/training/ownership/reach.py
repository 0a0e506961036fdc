"""Searches Python objects along their references, breadth first, as reported by `gc.get_referents`.

None of the objects' code is run. Only the first path to each object is kept.
"""

import gc
import types
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from ullage.training.ownership.safe_inspection import held_by

# The types of objects whose references are not followed. These objects cannot refer to a tensor.
LEAVES: Final = frozenset(
    {
        str, int, float, bool, complex, bytes, bytearray, type(None), type(...), type(NotImplemented), range,
        types.CodeType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType,
    }
)  # fmt: skip


class Reach:
    """The objects that a search has found, and the object that refers to each of them.

    The search keeps these objects alive until `drop_references()` is called.
    """

    def __init__(self, sought: Callable[[type], str | None]) -> None:
        # `sought` returns a name for each type whose objects are recorded, and None for all other types
        # Maps the name that `sought` has returned for a type to the indices of the objects of this type.
        self.found: dict[str, list[int]] = defaultdict(list)
        self._sought = sought
        self._lists: dict[type, list[int] | None] = {}
        self.objects: list[Any] = []
        # -1 for an object at which the search began
        self.parents: list[int] = []
        self._places: dict[int, int] = {}
        self.ignore(self, self.__dict__, *self.__dict__.values())

    def ignore(self, *ones: object) -> None:
        """Exclude objects from the search."""
        self._places.update((id(one), -1) for one in ones)

    def unknown(self, ones: Iterable[Any]) -> list[Any]:
        """Return those of the given objects that the search for references has not seen yet."""
        places = self._places
        return [one for one in ones if id(one) not in places]

    def has(self, one: object) -> bool:
        return self._places.get(id(one), -1) >= 0

    def add(self, one: object, parent: int = -1) -> int | None:
        """Add an object to the search. Return its index, or None if it was found before."""
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
        if kind not in self._lists:
            name = self._sought(kind)
            self._lists[kind] = self.found[name] if name is not None else None
            self.ignore(self._lists[kind])
        return self._lists[kind]

    def search(self, starts: Iterable[int], closed: frozenset[int] = frozenset()) -> None:
        """Find all objects that Python references connect to the start objects.

        Args:
            starts: the indices of the start objects.
            closed: the `id`s of the objects to skip.
        """
        objects, parents, places, leaves = self.objects, self.parents, self._places, LEAVES
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
        """Return the indices of the objects on the path from the start of the search to an object."""
        chain = [place]
        while self.parents[chain[-1]] >= 0:
            chain.append(self.parents[chain[-1]])
        return chain[::-1]
