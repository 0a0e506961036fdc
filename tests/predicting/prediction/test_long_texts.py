"""An error text of any length takes little time, and its beginning and end are shown once, with the size in between."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.shared.commands import Predict
from ullage.base.long_text import without_middle
from ullage.predicting.prediction.observation.ending import error_outcome

pytestmark = pytest.mark.own_process

SIZE = 16 << 20
MOST_SHOWN = 40_000  # characters of all texts of one error


class LongText(Exception):
    def __str__(self) -> str:
        return "x" * SIZE


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as found:
        return found


def with_notes(text: str) -> BaseException:
    error = ValueError("short")
    error.add_note(text)
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("y" * SIZE),
        ValueError("a line\n" * (SIZE // 7)),
        ValueError("\n" * SIZE),
        ValueError("\ud800" * (SIZE // 4)),
        KeyError({"a": "\x00" * (SIZE // 4)}),
        RuntimeError("CUDA error: out of memory" + " " * SIZE + "."),
        OSError(2, "No such file", "f" * SIZE),
        LongText(),
        with_notes("n" * SIZE),
        ExceptionGroup("g" * SIZE, [ValueError("m" * SIZE), ValueError("m" * SIZE)]),
        raised(ValueError("short"), ValueError("c" * SIZE)),
        raised(ValueError("l" * SIZE), ValueError("l" * SIZE)),
        subprocess.CalledProcessError(1, ["x"], output="o" * SIZE),
        subprocess.CalledProcessError(1, ["x"], stderr=b"e\xff" * (SIZE // 2)),
        type("T" * (SIZE // 16), (Exception,), {})("short"),
        SystemExit("s" * SIZE),
    ],
    ids=lambda error: type(error).__name__[:20],
)
def test_every_text_of_an_error_is_bounded(error: BaseException) -> None:
    began = time.process_time()
    outcome = error_outcome(raised(error), None)
    assert time.process_time() - began < 10  # a second on a machine without other work
    assert len(outcome.text) + len(outcome.traceback) + len(outcome.type) + len(outcome.hint) < MOST_SHOWN


def test_a_short_text_stays_in_the_traceback() -> None:
    outcome = error_outcome(raised(ValueError("z" * 16_000)), None)
    assert outcome.text == "z" * 16_000
    assert outcome.traceback.count("z" * 16_000) == 0  # together they are long
    assert error_outcome(raised(ValueError("plain")), None).traceback.endswith("ValueError: plain")


def test_the_size_of_what_is_left_out() -> None:
    text = without_middle("b" + "\u00fc" * (1 << 20) + "e")
    assert text.startswith("b")
    assert text.endswith("e")
    assert "\n[... 2.0 MiB of the text left out ...]\n" in text
    assert without_middle("x" * 16_000) == "x" * 16_000


def test_a_script_with_a_long_error(predict: Predict, workplace: Path) -> None:
    (workplace / "fails.py").write_text(f"raise RuntimeError('begin' + 'y' * {64 << 20} + 'end')\n")
    ended = predict(workplace / "fails.py")
    assert ended.code == 3
    assert ended.error.count("begin") == 2  # the text, and the line of code
    assert ended.error.count("yyyend") == 1
    assert "[... 64.0 MiB of the text left out ...]" in ended.error
    assert ended.error.rstrip().endswith("RuntimeError: (the text above)")
    assert len(ended.error) < MOST_SHOWN


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.exit('z' * (16 << 20))", "1 / 0"])
def test_a_script_that_prints_a_long_line(predict: Predict, workplace: Path, end: str) -> None:
    (workplace / "fails.py").write_text(f"import sys\nprint('y' * (16 << 20), flush=True)\n{end}\n")
    ended = predict(workplace / "fails.py")
    assert ended.code == 3
    assert len(ended.error) < MOST_SHOWN


def test_a_process_of_a_command_with_a_long_error(predict: Predict, workplace: Path) -> None:
    (workplace / "fails.py").write_text(f"import torch\nraise RuntimeError('y' * {16 << 20})\n")
    ended = predict(Path(sys.executable), "fails.py")
    assert ended.code == 3
    assert "raised RuntimeError at line 2 of" in ended.error
    assert len(ended.error) < MOST_SHOWN
