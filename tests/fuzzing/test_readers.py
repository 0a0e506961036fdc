"""A little of every reader with a fixed seed; `make fuzz-readers` goes on with new ones."""

import gzip
from pathlib import Path

import pytest

from tests.fuzzing.campaign import run
from tests.fuzzing.judgement import judge
from tests.fuzzing.readers import READERS, choice_of

FOUND = Path(__file__).parent / "found"
"""Inputs that once came to something that must not be: READER-SEED_NUMBER.gz."""


@pytest.mark.by_day(3)
@pytest.mark.parametrize("seed", [21, 22, 23])
def test_random_inputs_are_answered_or_refused(seed: int) -> None:
    """Nothing crashes, takes more than its bound, speaks of our own classes, or prints what no figure can be."""
    result = run(list(READERS), seed=seed, inputs=20 * len(READERS), seconds=1e6, jobs=1)
    assert not result.findings, result.findings
    for name in READERS:
        assert result.read[name] == 20
        assert result.answered[name], f"{name}: the layers above have something to do"


@pytest.mark.parametrize("path", sorted(FOUND.iterdir()), ids=lambda path: path.name)
def test_what_was_found_once(path: Path, tmp_path: Path) -> None:
    """Inputs that crashed a reader, or were answered with nonsense, before it was mended."""
    reader = READERS[path.name.rpartition("-")[0]]
    assert judge(reader, gzip.decompress(path.read_bytes()), tmp_path).findings == []


def test_rules_find_what_they_are_for(tmp_path: Path) -> None:
    """A rule that finds nothing, whatever comes, would prove nothing."""
    from dataclasses import replace

    from tests.fuzzing.readers import Outcome

    def found(outcome: Outcome) -> str:
        reader = replace(READERS["text"], read=lambda data, scratch, choice: iter((outcome,)))
        return " ".join(judge(reader, b"", tmp_path).findings)

    assert "exit code 4" in found(Outcome("explain x", 4, "", "Traceback"))
    assert "KeyError" in found(Outcome("explain x", 2, "", "error: x (KeyError: 'y')\n"))
    assert "more than a line" in found(Outcome("explain x", 2, "", "error: x\ny\n"))
    assert "a negative figure" in found(Outcome("explain x", 0, "free -56.0 MiB", ""))
    assert "no number" in found(Outcome("explain x", 0, "free nan GiB", ""))
    assert "a control character" in found(Outcome("explain x", 0, "\x1b[2J", ""))
    assert "free_bytes is -1" in found(Outcome("explain x --json", 0, '{"free_bytes": -1}', ""))
    assert "cannot be read" in found(Outcome("explain x --json", 0, '{"free": NaN}', ""))

    def take(data: bytes, scratch: Path, choice: int):
        held = bytearray(300_000_000)
        held[::4096] = b"x" * len(held[::4096])
        yield Outcome("explain x", 0, "", "")

    assert "took" in judge(replace(READERS["text"], read=take), b"", tmp_path).findings[0]
    assert choice_of(b"a") != choice_of(b"b")
