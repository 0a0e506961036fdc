"""One list of options makes a Python function and a command alike."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict, Unpack, get_args

import pytest
import typer
from typer.testing import CliRunner

import ullage
from ullage.base.errors import UsageError
from ullage.base.option import Option, check_choices, options_of, required_of, takes
from ullage.cli.command import with_options
from ullage.options import AdviseOptions, FitLayoutOptions, FitOptions, PredictOptions, RunOptions
from ullage.predicting.prediction.request import ChildRequest, Request

LISTS = (PredictOptions, FitOptions, FitLayoutOptions, AdviseOptions, RunOptions)
FUNCTIONS = {
    ullage.predict: PredictOptions,
    ullage.fit: FitOptions,
    ullage.fit_layout: FitLayoutOptions,
    ullage.advise: AdviseOptions,
}


class MadeUp(TypedDict, total=False):
    """A list with one option of each kind."""

    needed: Required[Annotated[str, Option("What is needed.")]]
    colour: Annotated[Literal["red", "green"] | None, Option("A colour.", default="red")]
    size: Annotated[int | str | None, Option("A size.", more="Bytes, or a text.")]
    quick: Annotated[bool, Option("Be quick.", default=True)]
    private: Annotated[int, Option("For Python alone.", default=3, is_of_command=False)]


@takes(MadeUp, size="1GiB")
def ask(text: str, *, last: int = 7, **options: Unpack[MadeUp]) -> dict[str, Any]:
    """Return what it was given.

    Args:
        text: a text.

    Raises:
        ValueError: never.
    """
    return {"text": text, "last": last, **options}


def test_a_function_gets_every_option() -> None:
    given = {"text": "a", "last": 7, "needed": "b", "colour": "red", "size": "1GiB", "quick": True, "private": 3}
    assert ask("a", needed="b") == given
    assert ask("a", needed="b", size=5, last=1) == {**given, "size": 5, "last": 1}


def test_its_signature_and_documentation_have_them() -> None:
    names = ["text", "needed", "colour", "size", "quick", "private", "last"]
    assert list(inspect.signature(ask).parameters) == names
    assert "    size: A size. Bytes, or a text.\n" in (ask.__doc__ or "")
    assert (ask.__doc__ or "").index("size:") < (ask.__doc__ or "").index("Raises:")


@pytest.mark.parametrize(
    ("given", "said"), [({"needed": "b", "sise": 1}, "ask\\(\\) .*'sise'"), ({}, "ask\\(\\) missing .*'needed'")]
)
def test_a_wrong_call_fails_as_any_other(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ask("a", **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quick": "no"}, "argument 'quick' must be bool, not 'no'"),
        ({"size": 1.5}, "argument 'size' must be int | str | None, not 1.5"),
        ({"private": True}, "argument 'private' must be int, not True"),
        ({"colour": 3}, "argument 'colour' must be"),
        ({"needed": None}, "argument 'needed' must be str, not None"),
    ],
)
def test_a_value_of_another_type_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        ask("a", **{"needed": "b", **given})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_number_is_not_a_gpu(function: Any) -> None:
    others = {name: 2 if name == "cards" else "x" for name in required_of(FUNCTIONS[function]) - {"gpu"}}
    with pytest.raises(TypeError, match="argument 'gpu' must be str, not 24"):
        function("train.py", gpu=24, **others)


def test_words_in_one_text_are_not_arguments() -> None:
    with pytest.raises(TypeError, match=r"arguments= is a list of strings, not '--steps 3': use shlex.split"):
        ullage.predict("train.py", "--steps 3", gpu="T4")


def test_a_value_outside_of_a_fixed_set_is_one_sentence() -> None:
    check_choices({"colour": None}, MadeUp)
    with pytest.raises(UsageError, match=r"^colour='blue' is not known; expected one of red, green$"):
        check_choices({"colour": "blue"}, MadeUp)


def test_a_command_gets_the_same_but_what_is_for_python() -> None:
    app, found = typer.Typer(), dict[str, Any]()

    @app.command()
    @with_options(MadeUp, size="1GiB")
    def command(**options: Any) -> None:
        found.update(options)

    assert CliRunner().invoke(app, ["--needed", "b", "--no-quick"]).exit_code == 0
    assert found == {"needed": "b", "colour": "red", "size": "1GiB", "quick": False}
    assert CliRunner().invoke(app, []).exit_code == 2


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_option_is_documented_where_python_shows_it(function: Any) -> None:
    for name, each in options_of(FUNCTIONS[function]).items():
        assert f"{name}: {each.option.help.split()[0]}" in function.__doc__
        assert name in inspect.signature(function).parameters


@pytest.mark.parametrize("listing", LISTS)
def test_every_default_is_of_its_type(listing: type) -> None:
    for each in options_of(listing).values():
        if not each.is_required and each.choices and each.option.default is not None:
            assert each.option.default in each.choices
        assert each.option.help.endswith(".")


def test_every_option_of_a_run_reaches_the_script_s_process() -> None:
    """Through a request and JSON, so that a new option needs no further line."""
    request = Request.of("train.py", gpu="T4", total_memory="1GiB", until="save", config="models")
    child = ChildRequest.from_json(request.for_child().to_json())
    assert child.options.keys() == options_of(RunOptions).keys()
    assert child.options == request.options
    assert child.options["total_memory"] == 1 << 30


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_fixed_set_of_values_is_a_type(function: Any) -> None:
    """Editors complete them, and type checkers refuse others."""
    parameter = inspect.signature(function).parameters["placement"]
    assert get_args(parameter.annotation) == ("linux", "wsl", "windows", "linux-host")


def test_the_lists_load_no_library() -> None:
    code = "import sys, ullage.options; print({'torch', 'numpy', 'typer', 'rich'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit", "train.py", "--gpu", "T4", "--vary"], "--vary needs a value"),
        (["predict", "--gpu"], "--gpu needs a value"),
        (["predict", "train.py", "--gpu", "T4", "--resume", "--", "--steps", "0"], "--resume needs a value"),
        (
            ["fit", "train.py", "--gpu", "T4", "--vary", "--b", "--cards", "0"],
            "--cards has no meaning without --layout",
        ),
        (
            ["fit", "train.py", "--gpu", "T4", "--layout", "dp", "--cards", "4", "--no-changes"],
            "--changes has no meaning together with --layout",
        ),
        (["predict", "train.py", "--gpu", "T4", "--count", "0"], "--count 0 is out of range; expected 1 to 16"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "ullage", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_page_does_not_replace_a_file_of_the_folder_that_is_read(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.pickle").write_bytes(b"a snapshot")
    with pytest.raises(UsageError, match=r"html=.*rank0\.pickle would replace a file of "):
        ullage.explain(tmp_path, html=tmp_path / "rank0.pickle")
    assert (tmp_path / "rank0.pickle").read_bytes() == b"a snapshot"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "torchrun", "train.py", "--gpu", "T4"], "--gpu comes after torchrun and is passed to it"),
        (["explain", "CUDA out of memory. Tried to allocate 2 GiB"], "pass it on standard input: ullage explain -"),
    ],
)
def test_a_mistake_says_what_to_do(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ullage", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
