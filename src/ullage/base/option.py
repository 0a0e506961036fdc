"""Define each option once, for both the command line and the Python function.

A `TypedDict` lists the options, and each field is annotated with an `Option`. The decorator `takes` adds the options to
a Python function's signature and documentation. `ullage.cli.command` makes command-line options from them.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Final, Literal, ParamSpec, Required, TypeVar, Union, get_args, get_origin, get_type_hints

from ullage.base.errors import UsageError, quoted, shortened

P = ParamSpec("P")
Answer = TypeVar("Answer")
_DOCUMENT_WIDTH: Final = 100  # characters
_SECTION: Final = re.compile(r"^(?:Returns|Raises|Example):$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of ullage, with its help text, default and --help group."""

    help: str
    """The sentence that describes the option in --help and in the Python documentation."""
    _: KW_ONLY
    more: str = ""
    """Further sentences about the option. The Python documentation shows them, and --help does not."""
    default: Any = None
    flag: str | None = None
    """The option's name on the command line. None: it is derived from the Python name."""
    metavar: str | None = None
    panel: str | None = None
    """The group in --help that contains the option."""
    is_of_command: bool = True
    """Whether the option exists on the command line. Every option exists in the Python API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An option in a `TypedDict`, with its name, type and `Option` annotation."""

    name: str
    type: Any
    is_required: bool
    option: Option

    @property
    def flag(self) -> str:
        """The name of the option on the command line, such as --world-size."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of the option. Empty: any value of its type is allowed."""
        kinds = [kind for kind in alternatives_of(self.type) if kind is not NoneType]
        if kinds and all(get_origin(kind) is Literal for kind in kinds):
            return tuple(value for kind in kinds for value in get_args(kind))
        return ()


@cache
def options_of(listing: type) -> Mapping[str, Listed]:
    """Map the name of each option in a `TypedDict` to the option. Required options come first."""
    found: dict[str, Listed] = {}
    for name, hint in get_type_hints(listing, include_extras=True).items():
        kind, option = get_args(get_args(hint)[0] if get_origin(hint) is Required else hint)
        found[name] = Listed(
            name=name, type=kind, is_required=name in vars(listing)["__required_keys__"], option=option
        )
    return dict(sorted(found.items(), key=lambda each: not each[1].is_required))


def defaults_of(listing: type) -> dict[str, Any]:
    """Map each optional option in a `TypedDict` to its default."""
    return {name: each.option.default for name, each in options_of(listing).items() if not each.is_required}


def required_of(listing: type) -> set[str]:
    """Return the names of the required options in a `TypedDict`."""
    return {name for name, each in options_of(listing).items() if each.is_required}


def check_choices(options: Mapping[str, Any], listing: type) -> None:
    """Raise UsageError if an option has a value that is not one of its allowed values."""
    for name, each in options_of(listing).items():
        value = options.get(name)
        if each.choices and value is not None and value not in each.choices:
            expected = f"one of {', '.join(each.choices)}" if each.choices[1:] else each.choices[0]
            raise UsageError(f"{name}={quoted(str(value))} is not known; expected {expected}")


def takes(listing: type, **other_defaults: Any) -> Callable[[Callable[P, Answer]], Callable[P, Answer]]:
    """Return a decorator that adds options to a function whose last parameter is `**options: Unpack[listing]`.

    `inspect.signature`, editors and `help` then show every option with its default. A call with an unknown keyword
    raises TypeError.

    Args:
        listing: the `TypedDict` of the options.
        other_defaults: defaults that replace those of the list.
    """

    def decorate(function: Callable[P, Answer]) -> Callable[P, Answer]:
        signature = _signature(function, listing, other_defaults)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> Answer:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            _check_types(function.__name__, bound.kwargs, listing)
            return function(*bound.args, **bound.kwargs)

        vars(called)["__signature__"] = signature
        called.__doc__ = documented(inspect.cleandoc(function.__doc__ or ""), listing)
        return called

    return decorate


def _check_types(function: str, given: Mapping[str, Any], listing: type) -> None:
    for name, each in options_of(listing).items():
        if not any(_is_of(kind, given[name]) for kind in alternatives_of(each.type)):
            expected = inspect.formatannotation(each.type)
            raise TypeError(f"{function}() argument {name!r} must be {expected}, not {shortened(repr(given[name]))}")


def _is_of(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str)
    if get_origin(kind) is not None:  # a sequence of strings
        return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _signature(function: Callable[..., Any], listing: type, other_defaults: Mapping[str, Any]) -> inspect.Signature:
    plain = inspect.signature(function)
    *own, _ = plain.parameters.values()
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.is_required else other_defaults.get(name, each.option.default),
            annotation=each.type,
        )
        for name, each in options_of(listing).items()
    ]
    return plain.replace(parameters=with_parameters(own, options))


def with_parameters(own: list[inspect.Parameter], options: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Insert the options into a function's parameters, before the keyword-only parameters."""
    is_keyword = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in own]
    first = is_keyword.index(True) if any(is_keyword) else len(own)
    return [*own[:first], *options, *own[first:]]


def documented(text: str, listing: type) -> str:
    """Add the options to the "Args:" section of a Google-style docstring."""
    lines = [
        textwrap.fill(
            f"{name}: {' '.join(filter(None, (each.option.help, each.option.more)))}",
            _DOCUMENT_WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
        )
        for name, each in options_of(listing).items()
    ]
    section = _SECTION.search(text)
    end = section.start() if section is not None else len(text)
    rest = f"\n\n{text[end:]}" if text[end:] else ""
    return f"{text[:end].rstrip()}\n" + "\n".join(lines) + rest


def alternatives_of(kind: Any) -> tuple[Any, ...]:
    """Return the types in a union. For any other type, return a tuple of only that type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
