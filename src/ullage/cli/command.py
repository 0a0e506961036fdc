"""Base classes for ullage's commands, built on typer, and parameters that several commands share.

`with_options` adds every option of a list (`ullage.options`) to a command.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, NoneType
from typing import Annotated, Any, Final, TypeVar, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from ullage.base.errors import UsageError
from ullage.base.foreign_files import read_regular
from ullage.base.option import Listed, alternatives_of, options_of, required_of, with_parameters
from ullage.options import DATA, GPU, LAYOUTS, OUTPUT, RUN, VALUES

_MOST_BYTES: Final = 1 << 24
MOST_USED: Final = "Most used"
"""The group of options that --help shows first."""
_MOST_USED: Final[Mapping[str, tuple[str, ...]]] = {
    "predict": ("gpu", "steps", "count", "advise", "html"),
    "fit": ("gpu", "vary", "steps", "margin", "html"),
    "advise": ("gpu", "patch", "vary", "steps", "html"),
    "explain": ("html", "is_whole", "capacity", "device", "rank"),
    "tune": ("capacity", "device", "alloc_conf", "budget", "html"),
    "diff": ("at", "device", "html", "as_json", "torch_version"),
    "repro": ("output", "capacity", "device", "budget", "keep_sizes"),
    "run": ("gpu", "folder", "history", "prometheus", "quiet"),
}
_PANELS: Final = (None, MOST_USED, GPU, RUN, VALUES, DATA, LAYOUTS, OUTPUT)
_ONE_LINE_BREAK: Final = re.compile(r"(?<!\n)\n(?!\n)")


# typer 0.29 imports pydantic for most options, which takes a fifth of a second in every command.
class _Quick:
    name: str | None
    help: str | None

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        most_used = _MOST_USED.get(self.name or "", ())
        if not most_used:
            return parameters
        for each in parameters:
            if each.param_type_name == "option":
                each.rich_help_panel = MOST_USED if each.name in most_used else each.rich_help_panel or OUTPUT
        return sorted(
            parameters,
            key=lambda each: (
                _PANELS.index(each.rich_help_panel),
                most_used.index(each.name) if each.name in most_used else len(most_used),
            ),
        )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for parameter in self.get_params(ctx):
            if hasattr(parameter, "get_runtime_param") and not isinstance(parameter.get_runtime_param, PlainTypes):
                parameter.get_runtime_param = PlainTypes(parameter.get_runtime_param)
        return super().parse_args(ctx, args)  # type: ignore[misc,no-any-return]

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None and option.default is None:
            option.default = False
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.help = _ONE_LINE_BREAK.sub(" ", inspect.cleandoc(self.help or ""))
        with _only_panels_loaded():
            super().format_help(ctx, formatter)  # type: ignore[misc]


class PlainTypes:
    """Converts command-line parameters. Strings and paths are converted without importing pydantic.

    Args:
        of_typer: a function that returns typer's converter for all other types. Typer's converter imports pydantic.
    """

    def __init__(self, of_typer: Callable[[], Any]) -> None:
        self._of_typer = of_typer

    def __call__(self) -> "PlainTypes":
        return self

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Convert an argument or a default to the type of its parameter."""
        kind = param.type_descriptor.annotation
        if param.nargs == 1 and not param.multiple:
            if value is None or (kind is str and isinstance(value, str)):
                return value
            if kind is Path and isinstance(
                value, str | Path
            ):  # ullage's options do not let typer check whether a path exists
                return Path(value)
            if value is param.default and type(value) is kind:
                return value
        return self._of_typer().coerce(value, param=param, ctx=ctx)


class Command(_Quick, TyperCommand):
    """A subcommand of ullage."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options and arguments.

        Raises:
            UsageError: a word that belongs to ullage is empty. As a path, an empty text means the current folder.
        """
        if "" in (args[:1] if ctx.allow_extra_args else args):
            raise UsageError(f"an argument of ullage {self.name} is empty; expected a file, a folder or a value")
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


class LaunchCommand(Command):
    """A subcommand that is followed by the user's own command.

    Options before the user's command belong to ullage. Options after a script belong to ullage if ullage knows them and
    the script's source does not mention them: `ullage predict train.py --batch-size 8 --gpu T4`. After any other
    command, and after --, all options belong to the user's command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse ullage's options, and keep the user's command and its options in `ctx.args`."""
        own, command = self._split(ctx, list(args))
        if command[:1] == [""]:
            raise UsageError(f"the script of ullage {self.name} is empty; expected a Python file or a command")
        if command[1:] and is_python_file(command[0]):
            taken, rest = self._taken_behind(ctx, Path(command[0]), command[1:], own)
            own, command = [*own, *taken], [command[0], *rest]
            self._say_whose(ctx, command)
        elif "--gpu" in command and not any(word.partition("=")[0] == "--gpu" for word in own):
            raise UsageError(
                f"--gpu comes after {command[0]} and is passed to it; put ullage's options before a command "
                "that is not a Python file"
            )
        return super().parse_args(ctx, [*own, "--", *command] if command else own)

    def _split(self, ctx: Any, words: list[str]) -> tuple[list[str], list[str]]:
        before = words.index("--") if "--" in words else len(words)
        place = 0
        options = self._options(ctx)
        while place < before and words[place].startswith("-") and words[place] != "-m":
            name, equals, _ = words[place].partition("=")
            if name not in options:
                raise UsageError(
                    f"{name} is neither an option of ullage {self.name} nor a command; put a script's options after "
                    "its name"
                )
            needs_value = options[name] and not equals
            if needs_value and place + 1 >= before:
                raise UsageError(f"{name} needs a value; expected one after it")
            place += 1 + needs_value
        if place == before:  # the command follows --
            return words[:before], words[before + 1 :]
        return words[:place], words[place:]

    def _taken_behind(self, ctx: Any, script: Path, words: list[str], before: list[str]) -> tuple[list[str], list[str]]:
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
            # A script mentions an option if its source has it in quotes, alone or at the beginning of a string.
            is_free = not any(f"{quote}{name}{end}" in mentioned for quote in "\"'" for end in "\"'=, ")
            if name == "--config":
                is_free = is_free and not _is_config_of_library(
                    value if equals else " ".join(words[place + 1 : place + 2]), [*before, *words]
                )
            if name.startswith("--") and name in options and is_free:
                count = 1 + (options[name] and not equals)
                if words[place + 1 : place + count] in ([], ["--"]) and count > 1:
                    raise UsageError(f"{name} needs a value; expected one after it")
                taken += words[place : place + count]
            else:
                kept.append(word)
            place += count
        return taken, kept

    def _say_whose(self, ctx: Any, command: list[str]) -> None:
        options = self._options(ctx)
        for word in command[1:]:
            name = word.partition("=")[0]
            if name.startswith("--") and name in options:
                sys.stderr.write(
                    f"note: {name} was passed to {command[0]}, which has it too; put ullage's option before it\n"
                )

    def _options(self, ctx: Any) -> dict[str, bool]:
        return {
            name: not (getattr(parameter, "is_flag", False) or getattr(parameter, "count", False))
            for parameter in self.get_params(ctx)
            if parameter.param_type_name == "option"
            for name in (*parameter.opts, *parameter.secondary_opts)
        }


def is_python_file(word: str) -> bool:
    """Return whether an argument is the path of a Python script."""
    return word.endswith((".py", ".pyw", ".ipynb")) or (Path(word).is_file() and "/" in word)


def _text_of(script: Path) -> str:
    try:
        return read_regular(script, most_bytes=_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


# A library such as Lightning or torchtune parses the script's own --config. ullage's --config comes with
# --random-weights and names a folder or a JSON file.
def _is_config_of_library(value: str, words: list[str]) -> bool:
    return "--random-weights" not in words or value.endswith((".yaml", ".yml", ".toml"))


class CommandGroup(_Quick, TyperGroup):
    """The command `ullage`, which contains the subcommands."""


# --help does not need rich's modules for Markdown and tracebacks, which take a third of its time to import.
@contextmanager
def _only_panels_loaded() -> Iterator[None]:
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
TO_RECORD: Final = (
    "[bold]To record a snapshot[/] call torch.cuda.memory._record_memory_history() when the program starts, and "
    "torch.cuda.memory._dump_snapshot('snapshot.pickle') where the error is caught, or at the end."
)
WORKSPACES: Final = (
    "[bold]Workspaces[/] of convolutions have the sizes that cuDNN reports, if cuDNN is installed or ULLAGE_CUDNN "
    "names its folder; otherwise the sizes are estimated. [bold]ullage doctor --gpu T4[/] shows which applies."
)
Script = Annotated[
    Path,
    typer.Argument(
        help="Your training script or notebook, -m and a module, or a command such as torchrun or trl.",
        metavar="COMMAND...",
    ),
]
Page = Annotated[Path | None, typer.Option(help="Write an HTML page with charts. The page needs no network.")]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]


def epilog_of(first: str, second: str, *notes: str, page: str) -> str:
    """Return the end of a command's --help: examples, notes and the documentation page."""
    return "\n\n".join(["[bold]Examples[/]", first, second, *notes, f"[bold]Documentation[/] docs/{page}"])


def with_options(*listings: type, **other_defaults: Any) -> Callable[[Function], Function]:
    """Return a decorator that adds options to a command whose last parameter is `**options: Any`.

    Args:
        listings: the lists, as `ullage.base.option` reads them. If several lists have an option, the first one counts.
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


# typer makes the flags --changes and --no-changes itself.
def _names(each: Listed) -> list[str]:
    return [] if each.option.default is True else [each.flag]


def _default(each: Listed, other_defaults: dict[str, Any], *, is_required: bool) -> Any:
    if is_required:
        return inspect.Parameter.empty
    default = other_defaults.get(each.name, each.option.default)
    return [] if default == () else default


def _type_of(kind: Any, *, is_required: bool) -> Any:
    kinds = set(alternatives_of(kind))
    plain: Any
    if any(get_origin(each) is Sequence for each in kinds):
        plain = list[str]
    elif Path in kinds:
        plain = Path
    else:
        plain = next((each for each in (bool, float) if each in kinds), int if kinds <= {int, NoneType} else str)
    return plain if is_required or not (NoneType in kinds or plain == list[str]) else plain | None
