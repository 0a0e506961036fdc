"""Convert frozen dataclasses to plain data for JSON, and back.

Both sides of a pipe run the same version of this package, so a missing or unknown field is a bug in ullage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class PlainData:
    """A base class of dataclasses that are sent to another process as JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Create an object from the plain data that `to_json` returned."""
        return from_plain(cls, data)


def to_plain(value: Any) -> Any:
    """Convert dataclasses to dicts and tuples to lists in a copy of a value."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner) for inner in value]
    return value


def from_plain(kind: type[T], data: Any) -> T:
    """Create an object of a dataclass from the plain data that `to_plain` returned.

    Raises:
        TypeError: a field is missing or unknown.
    """
    made: T = _made(kind, data)
    return made


def _made(kind: Any, data: Any) -> Any:
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        return kind(**{name: _made(types.get(name, Any), value) for name, value in data.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    arguments = get_args(kind)
    match get_origin(kind):
        case origin if origin in (Union, UnionType):
            [inner] = [
                argument for argument in arguments if argument is not NoneType
            ]  # of all unions only "or None" is sent
            return None if data is None else _made(inner, data)
        case origin if origin is list:
            return [_made(arguments[0], value) for value in data]
        case origin if origin is tuple:
            each: Sequence[Any] = arguments[:1] * len(data) if arguments[-1] is Ellipsis else arguments
            return tuple(_made(argument, value) for argument, value in zip(each, data, strict=True))
        case origin if origin is dict:
            return {key: _made(arguments[1], value) for key, value in data.items()}
    return data


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
