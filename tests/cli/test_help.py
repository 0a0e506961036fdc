"""`--help` lists the most used options first."""

import pytest
import typer

from ullage.cli.app import app
from ullage.cli.command import _MOST_USED, MOST_USED

GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("name", _MOST_USED)
def test_the_most_used_options_are_options_of_the_command_and_come_first(name: str) -> None:
    command = GROUP.commands[name]  # type: ignore[attr-defined]
    options = [each for each in command.get_params(typer.Context(command)) if each.param_type_name == "option"]
    assert tuple(each.name for each in options[:5]) == _MOST_USED[name]
    assert [each.rich_help_panel == MOST_USED for each in options] == [index < 5 for index in range(len(options))]
