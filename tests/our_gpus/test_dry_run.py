"""Every question answers on an emulated GPU, and every figure that is changed is found."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.our_gpus.compare import compare
from benchmarks.our_gpus.figure import Figure, Verdict
from benchmarks.our_gpus.plan import all_questions, family_of
from benchmarks.our_gpus.record import ATTACHMENTS, RECORD, read_record
from tests.our_gpus.conftest import GPU, Run

MINUTES = 60  # on a busy machine; `make gpu-dry-run` stops after 8


@pytest.mark.every_run
def test_every_question_answers_and_every_difference_is_found(run: Run, tmp_path: Path) -> None:
    """The dry run has an answer to each question; compared with itself nothing differs, and each tampered figure does.

    All in one test, because the dry run takes minutes and workers of pytest do not share fixtures.
    """
    done = run("measure", "--emulate", GPU, "--out", tmp_path, "--minutes", MINUTES, "--jobs", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(tmp_path)
    assert not record.errors
    assert record.answers.keys() == {question.name for question in all_questions()}
    assert sum((tmp_path / name).stat().st_size for name in (RECORD, ATTACHMENTS)) < 32 << 20

    comparison = compare(record, record)
    assert [question.name for question in comparison.questions if question.problem or question.different] == []
    assert {"allocated", "requested", "reserved", "context"} <= comparison.counts().keys()
    for name, answer in record.answers.items():
        compared = _figures(name, answer, answer)
        assert compared, f"{name} has no figures"
        exact = [figure for figure in compared if figure.verdict is Verdict.EQUAL]
        for changed in _changed(answer):
            if any(each.verdict is Verdict.DIFFERENT for each in _figures(name, changed, answer)):
                break
        else:
            assert not exact, f"{name}: no change of any figure is found"


def _figures(name: str, real: Any, emulated: Any) -> list[Figure]:
    return list(family_of(name).compare(real, emulated))


def _changed(answer: Any) -> Iterator[Any]:
    """Yield the answer with one number, one text or one truth value changed, one after the other."""
    text = json.dumps(answer)
    for path in list(_leaves(answer)):
        changed = json.loads(text)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        value = inner[path[-1]]
        inner[path[-1]] = not value if isinstance(value, bool) else "other" if isinstance(value, str) else value + 512
        yield changed


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, each in value.items():
            if key != "mappings":
                yield from _leaves(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _leaves(each, (*path, number))
    elif isinstance(value, bool | int | float | str):
        yield path


def test_a_snapshot_of_a_record_is_read_as_data(tmp_path: Path) -> None:
    """An attachment that is not a snapshot of PyTorch is refused, and nothing in it is run."""
    from benchmarks.our_gpus.placement import placement_figures
    from ullage import UllageError

    with pytest.raises(UllageError):
        placement_figures(gzip.compress(b"cbuiltins\nprint\n(S'run'\ntR."), [], [])
