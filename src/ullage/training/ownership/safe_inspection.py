"""Reads the type and the attributes of an object without running the user's code."""

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
    """Return a class and its base classes, in method resolution order."""
    found: tuple[type, ...] = _MRO(kind)
    return found


def name_of(kind: type) -> str:
    """Return the name of a class, even if its metaclass overrides `__name__`."""
    found: str = _NAME(kind)
    return found


def class_dict(kind: type) -> Mapping[str, Any]:
    """Return the attributes of a class, without inherited ones."""
    found: Mapping[str, Any] = _DICT(kind)
    return found


def instance_dict(one: Any) -> dict[str, Any] | None:
    """Return an object's `__dict__`, even if its class overrides `__dict__`."""
    for kind in _MRO(type(one)):
        found = class_dict(kind).get("__dict__")
        if type(found) is types.GetSetDescriptorType:
            variables = found.__get__(one)
            return variables if type(variables) is dict else None
    return None


def table_of(module: Any, name: str) -> dict[str, Any]:
    """Return a module's `_modules`, `_parameters` or `_buffers` dictionary. Empty if it cannot be read."""
    found = (instance_dict(module) or {}).get(name)
    return found if found is not None and is_of(found, (dict,)) else {}


def slots(one: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an object's slots."""
    for kind in _MRO(type(one)):
        for name, slot in class_dict(kind).items():
            if type(slot) is types.MemberDescriptorType:
                with suppress(AttributeError):  # a slot without a value
                    yield name, slot.__get__(one)


def is_of(one: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether an object is an instance of one of these types, without reading `__class__`."""
    return not set(kinds).isdisjoint(_MRO(type(one)))


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a function's closure variables. Unset variables are left out."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):
            yield name, cell.cell_contents


def held_by(one: Any) -> list[Any]:
    """Return the objects that an object refers to, according to the garbage collector."""
    if type(one) is np.ndarray and one.dtype.hasobject:
        return [*one.flat, one.base]
    return gc.get_referents(one)
