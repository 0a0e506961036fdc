"""Options of the command line: made of a question's list, and those that several subcommands have."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, get_origin

import typer

from ullage.base.option import Listed, alternatives_of, options_of, required_of

Command = TypeVar("Command", bound=Callable[..., None])
WORKSPACES: Final = (
    "[bold]Workspaces[/] of convolutions are cuDNN's own, where it is installed or where ULLAGE_CUDNN names it, "
    "else estimated. [bold]ullage doctor --gpu T4[/] says which."
)
Script = Annotated[
    Path,
    typer.Argument(
        help="Your training script or notebook, -m and a module, or a command such as torchrun or trl.",
        metavar="COMMAND...",
    ),
]
Page = Annotated[Path | None, typer.Option(help="Write a page with pictures, which needs no network.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]


def with_options(*listings: type, **other_defaults: Any) -> Callable[[Command], Command]:
    """Decorate a command whose last parameter is `**options: Any`: it gets every option of the lists.

    Args:
        listings: the lists, as `ullage.base.option` reads them; of an option that several have, the first counts.
        other_defaults: defaults that differ from those of the lists.
    """

    def decorate(command: Command) -> Command:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        listed: dict[str, Listed] = {}
        for listing in listings:
            listed |= {name: each for name, each in options_of(listing).items() if name not in listed}
        required = set[str].intersection(*(required_of(listing) for listing in listings))
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(each, other_defaults, is_required=name in required),
                annotation=Annotated[
                    _type_of(each.type, is_required=name in required),
                    typer.Option(
                        *_names(each),
                        help=each.option.help,
                        metavar=each.option.metavar,
                        rich_help_panel=each.option.panel,
                    ),
                ],
            )
            for name, each in listed.items()
            if each.option.is_of_command
        ]
        positional = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        keywords = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
        vars(command)["__signature__"] = inspect.Signature([*positional, *parameters, *keywords])
        return command

    return decorate


def _names(each: Listed) -> list[str]:
    """Return the names of an option on the command line; none where typer makes them: --changes and --no-changes."""
    return [] if each.option.default is True else [each.flag]


def _default(each: Listed, other_defaults: dict[str, Any], *, is_required: bool) -> Any:
    if is_required:
        return inspect.Parameter.empty
    default = other_defaults.get(each.name, each.option.default)
    return [] if default == () else default


def _type_of(kind: Any, *, is_required: bool) -> Any:
    """Return the type as which typer reads an option's words: ours are checked by the question itself."""
    kinds = set(alternatives_of(kind))
    plain: Any
    if any(get_origin(each) is Sequence for each in kinds):
        plain = list[str]
    elif Path in kinds:
        plain = Path
    else:
        plain = next((each for each in (bool, float) if each in kinds), int if kinds <= {int, NoneType} else str)
    return plain if is_required or not (NoneType in kinds or plain == list[str]) else plain | None
