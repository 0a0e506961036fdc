"""Options of a question, each defined once: what a command line and a Python function are both made of.

A list of options is a `TypedDict` whose fields carry an `Option`. `takes` gives a Python function the signature and the
documentation of such a list; `ullage.cli.command` makes a command of it.
"""

import inspect
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


@dataclass(frozen=True, slots=True)
class Option:
    """What there is to say about an option besides its name and type."""

    help: str
    """The purpose of the option: the text of --help, and the first sentence of its documentation."""
    _: KW_ONLY
    more: str = ""
    """Further documentation, for Python."""
    default: Any = None
    flag: str | None = None
    """Its name on the command line, where that is not made of its name in Python."""
    metavar: str | None = None
    panel: str | None = None
    """The heading in --help under which it is listed."""
    is_of_command: bool = True
    """Whether the command has it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An option of a list: its name, its type, and what there is to say about it."""

    name: str
    type: Any
    is_required: bool
    option: Option

    @property
    def flag(self) -> str:
        """Its name on the command line: --world-size."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it may have; () where the type is not a fixed set."""
        kinds = [kind for kind in alternatives_of(self.type) if kind is not NoneType]
        if kinds and all(get_origin(kind) is Literal for kind in kinds):
            return tuple(value for kind in kinds for value in get_args(kind))
        return ()


@cache
def options_of(listing: type) -> Mapping[str, Listed]:
    """Return the options of a list, by name: those that have to be given, and the others in their order."""
    found: dict[str, Listed] = {}
    for name, hint in get_type_hints(listing, include_extras=True).items():
        kind, option = get_args(get_args(hint)[0] if get_origin(hint) is Required else hint)
        found[name] = Listed(
            name=name, type=kind, is_required=name in vars(listing)["__required_keys__"], option=option
        )
    return dict(sorted(found.items(), key=lambda each: not each[1].is_required))


def defaults_of(listing: type) -> dict[str, Any]:
    """Return the default of every option that need not be given."""
    return {name: each.option.default for name, each in options_of(listing).items() if not each.is_required}


def required_of(listing: type) -> set[str]:
    """Return the names of the options that have to be given."""
    return {name for name, each in options_of(listing).items() if each.is_required}


def check_choices(options: Mapping[str, Any], listing: type) -> None:
    """Raise UsageError where an option with a fixed set of values has another one."""
    for name, each in options_of(listing).items():
        value = options.get(name)
        if each.choices and value is not None and value not in each.choices:
            expected = f"one of {', '.join(each.choices)}" if each.choices[1:] else each.choices[0]
            raise UsageError(f"{each.flag} {quoted(str(value))} is not known; expected {expected}")


def takes(listing: type, **other_defaults: Any) -> Callable[[Callable[P, Answer]], Callable[P, Answer]]:
    """Decorate a function whose last parameter is `**options: Unpack[listing]`.

    `inspect.signature`, editors and `help` then show every option with its default, a call with a wrong name fails as
    any other does, and the function always gets every option.

    Args:
        listing: the `TypedDict` of the options.
        other_defaults: defaults that differ from those of the list.
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
    """Raise TypeError where an option has a value of another type."""
    for name, each in options_of(listing).items():
        if not any(_is_of(kind, given[name]) for kind in alternatives_of(each.type)):
            expected = inspect.formatannotation(each.type)
            raise TypeError(f"{function}() argument {name!r} must be {expected}, not {shortened(repr(given[name]))}")


def _is_of(kind: Any, value: Any) -> bool:
    """Tell whether a value is of one type, as type checkers take it: a bool is not a number, an int is a float too."""
    if get_origin(kind) is Literal:
        return isinstance(value, str)
    if get_origin(kind) is not None:  # a sequence of texts
        return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _signature(function: Callable[..., Any], listing: type, other_defaults: Mapping[str, Any]) -> inspect.Signature:
    """Return a function's signature with the options in place of its last parameter; those without a default first."""
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
    """Return a function's own parameters with options in front of its keywords."""
    is_keyword = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in own]
    first = is_keyword.index(True) if any(is_keyword) else len(own)
    return [*own[:first], *options, *own[first:]]


def documented(text: str, listing: type) -> str:
    """Return a docstring in Google's style whose "Args:" have the options behind the function's own parameters."""
    lines = [
        textwrap.fill(
            f"{name}: {' '.join(filter(None, (each.option.help, each.option.more)))}",
            _DOCUMENT_WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
        )
        for name, each in options_of(listing).items()
    ]
    before, heading, behind = text.partition("\nRaises:\n")
    return f"{before.rstrip()}\n" + "\n".join(lines) + (f"\n{heading}{behind}" if heading else "")


def alternatives_of(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
