"""What a command is made of: typer's classes with ours around them, and the parameters that it takes.

`with_options` gives a command every option of a list (`ullage.options`).
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, NoneType
from typing import Annotated, Any, Final, TypeVar, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from ullage.base.errors import UsageError
from ullage.base.foreign_files import read_regular
from ullage.base.option import Listed, alternatives_of, options_of, required_of, with_parameters

_MOST_BYTES: Final = 1 << 24
_ONE_LINE_BREAK: Final = re.compile(r"(?<!\n)\n(?!\n)")


class _Quick:
    """A command that reads its words, and draws its --help, with no more loaded than that needs.

    typer 0.29 imports pydantic for the first option that has a value or is a flag without one: a fifth of a second of
    every command. It stands before a class of typer's, which has the methods that mypy does not find here.
    """

    help: str | None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options, those of plain types by `PlainTypes`."""
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if hasattr(parameter, "get_runtime_param") and not isinstance(parameter.get_runtime_param, PlainTypes):
                parameter.get_runtime_param = PlainTypes(parameter.get_runtime_param)
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None and option.default is None:
            option.default = False
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Draw the text of --help, whose lines are the terminal's and not those of a docstring."""
        self.help = _ONE_LINE_BREAK.sub(" ", inspect.cleandoc(self.help or ""))
        with _only_panels_loaded():
            super().format_help(ctx, formatter)  # type: ignore[misc]


class PlainTypes:
    """What typer's parameters ask for their converter, and a converter: texts and paths as they are, the rest as typer.

    Args:
        of_typer: returns typer's own converter, which is made with pydantic.
    """

    def __init__(self, of_typer: Callable[[], Any]) -> None:
        self._of_typer = of_typer

    def __call__(self) -> "PlainTypes":
        """Return the converter."""
        return self

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return a word, or a default, as the type that a parameter has."""
        kind = param.type_descriptor.annotation
        if param.nargs == 1 and not param.multiple:
            if value is None or (kind is str and isinstance(value, str)):
                return value
            if kind is Path and isinstance(value, str | Path):  # no option of ours asks typer what is there
                return Path(value)
            if value is param.default and type(value) is kind:
                return value
        return self._of_typer().coerce(value, param=param, ctx=ctx)


class Command(_Quick, TyperCommand):
    """A subcommand."""


class LaunchCommand(Command):
    """A subcommand that is given a command of the user's, whose options are told from its own.

    Before the command all options are ullage's. Behind a script's name those are that ullage knows and the script's
    source does not mention: `ullage predict train.py --batch-size 8 --gpu T4`. Behind any other command none is, and
    behind -- none is.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse our own options, and leave the command with its options in `ctx.args`."""
        own, command = self._split(ctx, list(args))
        if command[1:] and is_python_file(command[0]):
            taken, rest = self._taken_behind(ctx, Path(command[0]), command[1:], own)
            own, command = [*own, *taken], [command[0], *rest]
            self._say_whose(ctx, command)
        elif "--gpu" in command and not any(word.partition("=")[0] == "--gpu" for word in own):
            raise UsageError(
                f"--gpu stands behind {command[0]}, whose option it is there; put ullage's options before a command "
                "that is not a Python file"
            )
        return super().parse_args(ctx, [*own, "--", *command] if command else own)

    def _split(self, ctx: Any, words: list[str]) -> tuple[list[str], list[str]]:
        """Return our options, and the command with what follows it."""
        before = words.index("--") if "--" in words else len(words)
        place = 0
        options = self._options(ctx)
        while place < before and words[place].startswith("-") and words[place] != "-m":
            name, equals, _ = words[place].partition("=")
            if name not in options:
                raise UsageError(
                    f"{name} is neither an option of ullage {self.name} nor a command; options of a script come after "
                    "its name"
                )
            needs_value = options[name] and not equals
            if needs_value and place + 1 >= before:
                raise UsageError(f"{name} needs a value; expected one behind it")
            place += 1 + needs_value
        if place == before:  # the command follows --
            return words[:before], words[before + 1 :]
        return words[:place], words[place:]

    def _taken_behind(self, ctx: Any, script: Path, words: list[str], before: list[str]) -> tuple[list[str], list[str]]:
        """Return the words behind a script's name that are ours, and those that are its own."""
        options = self._options(ctx)
        mentioned = _text_of(script)
        taken: list[str] = []
        kept: list[str] = []
        place = 0
        while place < len(words):
            word = words[place]
            if word == "--":
                return taken, [*kept, *words[place + 1 :]]
            name, equals, value = word.partition("=")
            count = 1
            # Mentioned is an option that is quoted in the source, on its own or before more of the same text.
            is_free = not any(f"{quote}{name}{end}" in mentioned for quote in "\"'" for end in "\"'=, ")
            if name == "--config":
                is_free = is_free and not _is_config_of_library(
                    value if equals else " ".join(words[place + 1 : place + 2]), [*before, *words]
                )
            if name.startswith("--") and name in options and is_free:
                count = 1 + (options[name] and not equals)
                if words[place + 1 : place + count] in ([], ["--"]) and count > 1:
                    raise UsageError(f"{name} needs a value; expected one behind it")
                taken += words[place : place + count]
            else:
                kept.append(word)
            place += count
        return taken, kept

    def _say_whose(self, ctx: Any, command: list[str]) -> None:
        """Say of options that are the script's as well as ours that they went to the script."""
        options = self._options(ctx)
        for word in command[1:]:
            name = word.partition("=")[0]
            if name.startswith("--") and name in options:
                sys.stderr.write(f"note: {name} went to {command[0]}, which has it too; ullage's comes before it\n")

    def _options(self, ctx: Any) -> dict[str, bool]:
        """Return the names of our options, and whether each has a value."""
        return {
            name: not (getattr(parameter, "is_flag", False) or getattr(parameter, "count", False))
            for parameter in self.get_params(ctx)
            if parameter.param_type_name == "option"
            for name in (*parameter.opts, *parameter.secondary_opts)
        }


def is_python_file(word: str) -> bool:
    """Tell whether a word of a command line is the path of a script, whose source can be looked at."""
    return word.endswith((".py", ".pyw", ".ipynb")) or (Path(word).is_file() and "/" in word)


def _text_of(script: Path) -> str:
    """Return a script's source; "" where it cannot be read."""
    try:
        return read_regular(script, most_bytes=_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _is_config_of_library(value: str, words: list[str]) -> bool:
    """Tell whether --config is that of a library's parser (Lightning's, torchtune's), which no script mentions.

    Ours goes with --random-weights, and names a folder or a JSON file.
    """
    return "--random-weights" not in words or value.endswith((".yaml", ".yml", ".toml"))


class CommandGroup(_Quick, TyperGroup):
    """The command `ullage`."""


@contextmanager
def _only_panels_loaded() -> Iterator[None]:
    """Let typer load what draws --help without rich's Markdown and tracebacks, of which none of ours has any.

    Both load more than all the rest of --help, a third of the time that somebody waits for it.
    """
    left_out = {
        f"rich.{name.lower()}": name for name in ("Markdown", "Traceback") if f"rich.{name.lower()}" not in sys.modules
    }
    for module, name in left_out.items():
        sys.modules[module] = ModuleType(module)
        vars(sys.modules[module])[name] = None
    try:
        yield
    finally:
        for module in left_out:
            del sys.modules[module]


Function = TypeVar("Function", bound=Callable[..., None])
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


def with_options(*listings: type, **other_defaults: Any) -> Callable[[Function], Function]:
    """Decorate a command whose last parameter is `**options: Any`: it gets every option of the lists.

    Args:
        listings: the lists, as `ullage.base.option` reads them; of an option that several have, the first counts.
        other_defaults: defaults that differ from those of the lists.
    """

    def decorate(command: Function) -> Function:
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
        vars(command)["__signature__"] = inspect.Signature(with_parameters(own, parameters))
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
