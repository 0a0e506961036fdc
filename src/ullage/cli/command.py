"""The classes of typer's commands that ullage's are made of."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

# typer 0.29 imports pydantic to read a flag that has no value yet, and its own --help is the only one of a command that
# has none: False in place of None saves a third of what `ullage gpus` takes.


class Command(TyperCommand):
    """A subcommand whose --help is False where it is not given."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help."""
        return _with_value(super().get_help_option(ctx))


class CommandGroup(TyperGroup):
    """The command `ullage`, whose --help is False where it is not given."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help."""
        return _with_value(super().get_help_option(ctx))


def _with_value(option: Any) -> Any:
    if option is not None and option.default is None:
        option.default = False
    return option
