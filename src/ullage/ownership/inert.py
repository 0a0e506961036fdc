"""What an object is and has, read without running any code of its own.

A class may have a metaclass of the user's, whose `__mro__`, `__name__` and `__dict__` are properties: those that `type`
itself defines are asked for.
"""

import gc
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

_DICT: Final = type.__dict__["__dict__"].__get__
_MRO: Final = type.__dict__["__mro__"].__get__
_NAME: Final = type.__dict__["__name__"].__get__


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a class and those that it is made of."""
    found: tuple[type, ...] = _MRO(kind)
    return found


def name_of(kind: type) -> str:
    """Return what a class is called."""
    found: str = _NAME(kind)
    return found


def class_dict(kind: type) -> Mapping[str, Any]:
    """Return what a class itself defines."""
    found: Mapping[str, Any] = _DICT(kind)
    return found


def instance_dict(one: Any) -> dict[str, Any] | None:
    """Return an object's own variables, without asking its class for `__dict__`, which may be code of the user's."""
    for kind in _MRO(type(one)):
        found = class_dict(kind).get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            variables = found.__get__(one)
            return variables if type(variables) is dict else None
    return None


def table_of(module: Any, name: str) -> dict[str, Any]:
    """Return a module's `_modules`, `_parameters` or `_buffers`; empty where it has none, or one in C++."""
    found = (instance_dict(module) or {}).get(name)
    return found if found is not None and is_of(found, (dict,)) else {}


def slots(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object has in slots, with their names."""
    for kind in _MRO(type(one)):
        for name, slot in class_dict(kind).items():
            if type(slot) is types.MemberDescriptorType:
                with suppress(AttributeError):  # not assigned
                    yield name, slot.__get__(one)


def is_of(one: Any, kinds: tuple[type, ...]) -> bool:
    """Tell whether an object is of a type, without asking it for `__class__`, which may be code of the user's."""
    return not set(kinds).isdisjoint(_MRO(type(one)))


def held_by(one: Any) -> list[Any]:
    """Return what an object refers to, as its type tells the garbage collector; numpy's arrays do not tell it."""
    if type(one) is np.ndarray and one.dtype.hasobject:
        return [*one.flat, one.base]
    return gc.get_referents(one)
