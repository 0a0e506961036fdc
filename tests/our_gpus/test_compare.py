"""How two records are compared: what agrees, what differs and why, and what the page says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.our_gpus import compare as comparing
from benchmarks.our_gpus.compare import compare, lines_of
from benchmarks.our_gpus.figure import Figure, Verdict, recorded
from benchmarks.our_gpus.keep import RECORDS, keep
from benchmarks.our_gpus.page import page
from benchmarks.our_gpus.plan import all_questions, family_of
from benchmarks.our_gpus.record import Record, RecordError, Writer
from tests.our_gpus.conftest import ROOT, Run

sys.path.insert(0, str(ROOT / "tools"))

import contexts  # the folder has to be in the path first
from stale_pages import without_stamp  # the same

NAME = "truth/gpt_tiny_dropout/default"
GPU = {
    "gpu": "NVIDIA H100 80GB HBM3", "total_memory_bytes": 1 << 36, "torch": "2.11.0", "cudnn": 91900, "driver": "580",
    "python": "3.12.3", "packages": {"triton": "3.6.0"}, "emulated": None,
}  # fmt: skip
STEP = {"allocated_bytes": 1000, "requested_bytes": 900, "reserved_bytes": 2 << 20}


def record(**changes: Any) -> Record:
    answer = {"steps": [STEP, STEP | changes], "mappings": {"before": [], "after": []}}
    return Record(gpu=dict(GPU), answers={NAME: answer})


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure(name="a", kind="k", real=1, emulated=1), Verdict.EQUAL),
        (Figure(name="a", kind="k", real=1, emulated=2), Verdict.DIFFERENT),
        (Figure(name="a", kind="k", real=1, interval=(1, 2)), Verdict.INSIDE),
        (Figure(name="a", kind="k", real=2.5, interval=(1, 2)), Verdict.DIFFERENT),
        (recorded("a", "k", 1), Verdict.RECORDED),
    ],
)
def test_a_figure_is_equal_inside_different_or_recorded(figure: Figure, verdict: Verdict) -> None:
    """Both ends of an interval are inside."""
    assert figure.verdict is verdict


def test_equal_records_agree() -> None:
    """Nothing differs, and the kinds are counted."""
    comparison = compare(record(), record())
    assert not comparison.unexplained
    assert comparison.counts()["allocated"][Verdict.EQUAL] == 2
    assert any(line.startswith("agrees") and NAME in line for line in lines_of(comparison))


@pytest.mark.parametrize("counter", STEP)
def test_one_byte_differs(counter: str) -> None:
    """It is named with both values; without a cause, one of the exact kinds is unexplained."""
    comparison = compare(record(**{counter: STEP[counter] + 1}), record())
    text = "\n".join(lines_of(comparison))
    assert f"step 2, peak of {counter}" in text
    assert "(+1): cause unknown" in text
    assert f"step 2, peak of {counter}" in page([comparison])
    assert bool(comparison.unexplained) is (counter != "reserved_bytes")


def test_a_known_cause_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entry of causes.toml that fits both names counts."""
    causes = tmp_path / "causes.toml"
    causes.write_text(
        '[[cause]]\nquestion = "nf4/*"\nfigure = "*"\ncause = "threads"\n'
        '[[cause]]\nquestion = "truth/*/default"\nfigure = "step ?, peak of allocated_bytes"\ncause = "the moon"\n'
    )
    monkeypatch.setattr(comparing, "CAUSES", causes)
    comparison = compare(record(allocated_bytes=1), record())
    assert not comparison.unexplained
    assert "the moon" in "\n".join(lines_of(comparison))
    assert "the moon" in page([comparison])


def test_what_is_not_compared_says_why() -> None:
    """An error of either GPU, a question that was not asked, and one that is no longer asked."""
    real = Record(
        gpu=dict(GPU), answers={NAME: {}, "old/question": {}}, errors={"context/cublas": "needs <b>something</b>"}
    )
    comparison = compare(real, Record(gpu=dict(GPU), errors={NAME: "ValueError: a|b"}))
    text = page([comparison])
    assert f"| {NAME} | not compared | the emulated GPU: ValueError: a\\|b |" in text
    assert "| old/question | not compared | this question is no longer asked |" in text
    assert "| context/cublas | not compared | the real GPU: needs &lt;b&gt;something&lt;/b&gt; |" in text
    assert "| context/cudnn | not compared | the real GPU: was not asked |" in text
    assert not comparison.is_as_expected


@pytest.mark.parametrize("answer", [{}, {"steps": 3}, {"steps": []}, {"steps": [{}, {}]}, {"steps": None}])
def test_an_answer_of_another_form_is_not_compared(answer: dict[str, Any]) -> None:
    """It is reported, and does not stop the others."""
    comparison = compare(Record(gpu=dict(GPU), answers={NAME: answer}), record())
    (found,) = [question for question in comparison.questions if question.name == NAME]
    assert "measure again" in found.problem
    assert not comparison.is_as_expected


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[cause]\n",
        "[[causes]]\n",
        '[[cause]]\nquestion = "*"\n',
        '[[cause]]\nquestion = "*"\nfigure = "*"\ncause = ""\n',
    ],
)
def test_a_table_of_causes_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Before anything is asked: a mistake there would hide a difference."""
    causes = tmp_path / "causes.toml"
    causes.write_text(text)
    monkeypatch.setattr(comparing, "CAUSES", causes)
    with pytest.raises(RecordError, match=r"causes\.toml"):
        comparing.causes()


@pytest.mark.parametrize(("kind", "differing", "is_expected"), [
    ("reserved", 5, True), ("reserved", 6, False), ("allocated", 1, False), ("context", 1, False),
    ("duration", 1, True),
])  # fmt: skip
def test_what_may_differ(kind: str, differing: int, is_expected: bool) -> None:
    """Of 100 peaks of reserved memory five; none of allocated memory and no context; whatever is not exact."""
    figures = tuple(
        Figure(name=str(number), kind=kind, real=number, emulated=number + (number < differing))
        for number in range(100)
    )
    question = comparing.Compared(name=NAME, figures=figures, causes={})
    assert comparing.Comparison(gpu=GPU, emulated=GPU, questions=(question,)).is_as_expected is is_expected


def test_every_question_has_a_name_of_its_own_and_a_family() -> None:
    """A family's module has the two functions, and none imports torch for the plan."""
    questions = all_questions()
    assert len({question.name for question in questions}) == len(questions)
    for question in questions:
        assert callable(family_of(question.name).answer)
        assert callable(family_of(question.name).compare)
        assert question.seconds > 0


def test_the_page_has_every_record_that_is_kept() -> None:
    """`make gpu-compare` was run after the last record was added."""
    text = (ROOT / "docs" / "our_gpus.md").read_text()
    kept = [path for path in RECORDS.glob("*") if path.is_dir()]
    assert text.count("\n## ") == len(kept)
    assert kept or without_stamp(text) == page([])


def test_only_records_of_real_gpus_are_kept_and_only_once(tmp_path: Path) -> None:
    """A dry run is refused; a record is not written over."""
    writer = Writer(tmp_path / "record")
    writer.gpu(GPU)
    kept = keep(tmp_path / "record", tmp_path / "records")
    assert kept.name.startswith("NVIDIA-H100-80GB-HBM3-torch-2.11.0-")
    with pytest.raises(RecordError, match="is there already"):
        keep(tmp_path / "record", tmp_path / "records")
    Writer(tmp_path / "dry").gpu(GPU | {"emulated": "H100"})
    with pytest.raises(RecordError, match="dry run"):
        keep(tmp_path / "dry", tmp_path / "records")


def test_a_measured_context_goes_into_the_profile(tmp_path: Path) -> None:
    """What a process held after training steps is expected of the chip from then on, and lies in the interval."""
    writer = Writer(tmp_path / "records" / "one")
    writer.gpu(GPU)
    writer.answer("context/training", {"stages": {"training": {"context_bytes": 900 << 20}}}, 1.0)
    found = list(contexts.readings(tmp_path / "records"))
    assert sum(reading.source == "make gpu, one" for reading in found) == 1
    (chip,) = {next(iter(reading.chips)) for reading in found if reading.source == "make gpu, one"}
    low, expected, high = next(each for each in contexts.populations(found) if each.chip == chip).interval_mib()
    assert low <= expected == 900 <= high


@pytest.mark.parametrize("content", [None, "nonsense", json.dumps({"format": 1, "gpu": 3})])
def test_a_bad_record_is_one_sentence(run: Run, tmp_path: Path, content: str | None) -> None:
    """Exit code 2, and no traceback."""
    if content is not None:
        (tmp_path / "record.jsonl").write_text(content)
    done = run("compare", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
