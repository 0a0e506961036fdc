"""The package's face: exact names, quick to import, no torch needed."""

import ast
import inspect
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage import cli
from ullage.cli import advise, diff, doctor, explain, fit, predict, repro, tune  # noqa: F401
from ullage.gpu.gpus import all_gpus

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


NAMES = {
    *("predict", "fit", "fit_layout", "advise", "explain", "explain_ranks", "tune", "diff", "repro", "diagnose"),
    *("load_snapshot", "show", "write_page"),
    *("emulate", "Guard", "TokenBudgetBatchSampler", "owners", "release", "isolated", "Monitor"),
    *("Prediction", "Fit", "LayoutFit", "Advice", "Explanation", "Tuning", "Difference", "Reproduction", "Diagnosis"),
    *("Snapshot", "Emulation", "FleetExplanation"),
    *("Holding", "Holdings", "Certificate"),
    *("UllageError", "UsageError", "UnknownGpuError", "EmulationError", "ScriptError", "IsolationError"),
    *("TorchMissingError", "SnapshotError", "SettingsError", "ValuesError", "ScriptKilledError", "EngineError"),
    *("SharedFolderError", "RankError"),
}


def test_public_names_are_exactly_these() -> None:
    """One list has them, and each says that it is ullage's own."""
    assert set(ullage.__all__) == NAMES
    code = (
        "import ullage; ullage.emulate('T4'); "
        "things = [getattr(ullage, name) for name in ullage.__all__]; "
        "print(*((thing.__module__, thing.__name__) for thing in things), sep='\\n')"
    )
    assert set(run(code).stdout.splitlines()) == {str(("ullage", name)) for name in NAMES}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ullage.nothing


def test_the_page_of_what_is_stable_has_every_public_name() -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text()
    assert sorted(re.findall(r"^::: ullage\.(\w+)$", page, re.MULTILINE)) == sorted(NAMES)


def test_every_field_of_an_answer_is_typed_and_pickles() -> None:
    """An answer travels to another process, although its class says that it is of `ullage`."""
    explanation = ullage.explain(MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert pickle.loads(pickle.dumps(explanation)) == explanation


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (cli.predict.predict, ullage.predict),
        (cli.advise.advise, ullage.advise),
        (cli.explain.explain, ullage.explain),
        (cli.tune.tune, ullage.tune),
        (cli.diff.diff, ullage.diff),
        (cli.repro.repro, ullage.repro),
        (cli.doctor.doctor, ullage.diagnose),
    ],
)
def test_a_function_has_the_options_of_its_command(command: Callable[..., None], function: Callable[..., Any]) -> None:
    def options_of(called: Callable[..., Any]) -> set[str]:
        named = {"command": "arguments"} if called is command else {}
        return {named.get(name, name) for name in inspect.signature(called).parameters}

    only_printing = {"as_json", "is_whole"} | ({"advise"} if function is ullage.predict else set())
    only_calling = {"progress", "picture"}
    assert options_of(command) - only_printing == options_of(function) - only_calling


def test_fit_has_the_options_of_two_functions() -> None:
    """With --layout the command is `ullage.fit_layout`."""
    options = {{"command": "arguments"}.get(name, name) for name in inspect.signature(cli.fit.fit).parameters}
    functions = {
        name for function in (ullage.fit, ullage.fit_layout) for name in inspect.signature(function).parameters
    }
    assert options - {"as_json"} == functions - {"progress", "picture", "so_far"}


def test_the_guard_says_that_it_needs_torch() -> None:
    done = run(WITHOUT_TORCH + "import ullage; ullage.Guard")
    assert "TorchMissingError: " in done.stderr
    assert "pip install" in done.stderr


def test_import_takes_under_100_ms_and_no_torch() -> None:
    """Of the processor, and the best of five counts: a busy machine may be slow, the package may not."""
    code = (
        "import sys, time; began = time.process_time(); import ullage; "
        "print(time.process_time() - began, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    answers = [run(code).stdout.split() for _ in range(5)]
    assert min(float(seconds) for seconds, *_ in answers) < 0.1
    assert all(loaded == ["False", "False"] for _, *loaded in answers)


@pytest.mark.parametrize(
    ("words", "is_drawn"),
    [(["--version"], False), (["gpus", "--json"], False), (["gpus"], False), (["--help"], True), (["fit", "-h"], True)],
)
def test_a_command_that_only_prints_loads_only_what_prints(words: list[str], is_drawn: bool) -> None:
    """Every import is waited for: a third of what typer loads for --help draws nothing, and columns need no rich."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr))\n"
        f"from ullage.cli.app import main; main({words})"
    )
    done = run(code)
    assert done.returncode == 0
    loaded = set(ast.literal_eval(done.stderr.splitlines()[-1]))
    assert "typer" in loaded, "the list is none"
    assert loaded.isdisjoint({"torch", "numpy", "jinja2", "plotly", "pydantic", "pygments", "markdown_it"})
    assert ("rich" in loaded) == is_drawn


def test_help_leaves_what_it_did_without_to_whoever_needs_it() -> None:
    """The stand-ins are gone once --help is drawn."""
    done = run(
        "from ullage.cli.app import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "from rich.markdown import Markdown; from rich.traceback import Traceback\n"
        "import sys; print(Markdown.__name__, Traceback.__name__, file=sys.stderr)"
    )
    assert done.stderr.split() == ["Markdown", "Traceback"]


@pytest.mark.parametrize("width", range(40, 201, 20))
def test_the_table_of_cards_loses_nothing_at_any_width(width: int) -> None:
    code = "from ullage.cli.app import main; main(['gpus'])"
    narrow, wide = (run(f"import os; os.environ['COLUMNS'] = '{columns}'\n{code}").stdout for columns in (width, 1000))
    assert narrow.split() == wide.split()
    assert len(wide.splitlines()) == len(all_gpus()) + 1
    if width >= 100:
        assert max(map(len, narrow.splitlines())) <= width


def test_the_check_for_torch_can_fail() -> None:
    done = run(WITHOUT_TORCH + "import torch")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "cli.app",
        "predicting.prediction.predict",
        "predicting.prediction.description.describe",
        "report.terminal",
        "predicting.prediction.observation.role",
        "training.isolation.isolated",
        "gpu.emulator",
        "gpu.gpus",
        "training.batching.sampler",
    ],
)
def test_works_without_torch(module: str) -> None:
    done = run(WITHOUT_TORCH + f"import ullage.{module}")
    assert done.returncode == 0, done.stderr


def test_help_works_without_torch_and_teaches() -> None:
    done = run(WITHOUT_TORCH + "from ullage.cli.app import main; main(['predict', '--help'])")
    assert done.returncode == 0, done.stderr
    assert "--gpu" in done.stdout
    assert "Exit code" in done.stdout


def test_gpus_lists_every_card_with_sources() -> None:
    done = run(WITHOUT_TORCH + "from ullage.cli.app import main; main(['gpus', '--json'])")
    cards = json.loads(done.stdout)
    assert len(cards) >= 25
    assert all(card["sources"] for card in cards)
