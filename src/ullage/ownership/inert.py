"""What an object is and has, read without running any code of its own.

A class may have a metaclass of the user's, whose `__mro__`, `__name__` and `__dict__` are properties: those that `type`
itself defines are asked for.
"""

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

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
