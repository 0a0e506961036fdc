"""Words of a command become what typer makes of them, without pydantic where they are texts and paths."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ullage.base.errors import UsageError
from ullage.cli.command import Command


def app_of(cls: type) -> typer.Typer:
    """A command with parameters of every kind that ullage's have."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command(cls=cls)
    def show(
        file: Path,
        others: Annotated[list[Path] | None, typer.Argument()] = None,
        text: str = "default",
        none: str | None = None,
        number: int = 7,
        least: Annotated[int | None, typer.Option(min=1)] = None,
        share: float = 0.5,
        *,
        flag: Annotated[bool, typer.Option("--flag")] = False,
        page: Path | None = None,
        many: Annotated[list[str] | None, typer.Option()] = None,
    ) -> None:
        """Print what came."""
        print([file, others, text, none, number, least, share, flag, page, many])

    return app


WORDS: list[list[str]] = [
    ["a.py"],
    ["a.py", "b", "c/d"],
    ["a.py", "--text", "7", "--none", "None", "--page", "p.html"],
    ["a.py", "--number", "8", "--least", "3", "--share", "1e-3", "--flag"],
    ["a.py", "--many", "x=1", "--many", "y"],
    ["a.py", "--number", "x"],
    ["a.py", "--least", "0"],
    ["a.py", "--share", "half"],
    ["a.py", "--flag=1"],
    [],
    ["a.py", "--none"],
    ["a.py", "--wrong"],
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_words_are_what_typer_makes_of_them(words: list[str]) -> None:
    ours, typers = (CliRunner().invoke(app_of(cls), words) for cls in (Command, typer.core.TyperCommand))
    assert (ours.exit_code, ours.output) == (typers.exit_code, typers.output)


@pytest.mark.parametrize(
    "words", [["explain", "{file}"], ["explain", "{file}", "--json"], ["diff", "{file}", "{file}"]]
)
def test_no_pydantic_is_loaded_for_words(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "error.txt"
    file.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    arguments: list[Any] = [word.format(file=file) for word in words]
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('typer' in sys.modules, 'pydantic' in sys.modules, file=sys.stderr))\n"
        f"from ullage.cli.app import main; main({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "True False", done.stderr


@pytest.mark.parametrize("words", [[""], ["a.py", "--text", ""], ["a.py", ""]], ids=repr)
def test_an_empty_word_is_refused(words: list[str]) -> None:
    """As a path, an empty text would mean the current folder."""
    ended = CliRunner().invoke(app_of(Command), words)
    assert isinstance(ended.exception, UsageError)
    assert "is empty" in str(ended.exception)
