"""Error messages name keywords in Python and flags on the command line."""

import ast
import re
from pathlib import Path

import pytest
import typer

import ullage
from ullage.cli.app import app
from ullage.cli.flags import with_flags


@pytest.mark.parametrize(
    ("in_python", "on_the_command_line"),
    [
        ("world_size=9 is out of range; expected 1 to 8", "--world-size 9 is out of range; expected 1 to 8"),
        ("give rank= too", "give --rank too"),
        ("vary='--batch-size' is given twice", "--vary '--batch-size' is given twice"),
        ("config= needs random_weights=True; give both", "--config needs --random-weights; give both"),
        ("give config=, lengths= or made_up_data=.", "give --config, --lengths or --made-up-data."),
        ("'steps=5' is an argument of the script", "'steps=5' is an argument of the script"),
        ("PYTORCH_ALLOC_CONF=max_split_size_mb:64", "PYTORCH_ALLOC_CONF=max_split_size_mb:64"),
        ("gpu='T5' is unknown", "--gpu 'T5' is unknown"),
        ("patch=. is a folder", "--patch . is a folder"),
        ("give rank=. Or leave it out.", "give --rank. Or leave it out."),
    ],
)
def test_a_keyword_becomes_the_flag(in_python: str, on_the_command_line: str) -> None:
    assert with_flags(in_python, typer.main.get_command(app)) == on_the_command_line


def test_every_option_of_every_command_has_its_flag() -> None:
    group = typer.main.get_command(app)
    for command in group.commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            flag = next((name for name in parameter.opts if name.startswith("--")), None)
            if flag:
                name = flag.removeprefix("--").replace("-", "_")
                assert with_flags(f"{name}=1 is wrong", group) == f"{flag} 1 is wrong"


ONLY_ON_THE_COMMAND_LINE = {"--otlp", "--prometheus"}
"""Options of `ullage run`, which is not a Python function."""


def test_errors_outside_the_command_line_name_keywords() -> None:
    group = typer.main.get_command(app)
    flags = {name for command in group.commands.values() for each in command.params for name in each.opts}  # type: ignore[attr-defined]
    found = []
    for file in sorted(Path(ullage.__file__).parent.rglob("*.py")):
        if "cli" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            text = ast.unparse(node) if isinstance(node, ast.Raise) else ""
            # A whole command to type may follow "ullage NAME".
            words = re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"ullage [a-z]+ .*", "", text))
            found += [(file.name, node.lineno, word) for word in words if word in flags - ONLY_ON_THE_COMMAND_LINE]  # type: ignore[attr-defined]
    assert found == []
