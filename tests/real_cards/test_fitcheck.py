"""Rows of fitcheck-llm, compared: figures of several runs, verdicts, and what PyTorch's error said."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.real_cards import fitcheck_verdicts
from benchmarks.real_cards.bench import Bench, Ended, RunError
from benchmarks.real_cards.case import (
    CANNOT_BE_JUDGED,
    FITS,
    HERE,
    OUT_OF_MEMORY,
    Case,
    Figure,
    Origin,
    Result,
    Status,
    Verdict,
)
from benchmarks.real_cards.fitcheck import compared, first_of, shape_of
from benchmarks.real_cards.fitcheck_verdicts import (
    archived,
    asked_of,
    failures_compared,
    resolution_of,
    verdict_of,
)
from benchmarks.real_cards.table import page_of, summary_of

MIB = 2**20
ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 14.56 GiB of "
    "which 2.29 GiB is free. Including non-PyTorch memory, this process has 12.27 GiB memory in use. Of the allocated "
    "memory {allocated} is allocated by PyTorch, and {cached} is reserved by PyTorch but unallocated."
)
REAL = ERROR.format(asked="2.90 GiB", allocated="11.14 GiB", cached="1022.92 MiB")
MEASURED = {"peak_allocated_mib": 1000.5, "peak_reserved_mib": 1200.0}
IDENTITY = {
    "model_id": "somebody/model",
    "batch_size": 5,
    "seq_len": 1024,
    "kernel": "flash",
    "quantization": "nf4",
    "precision": "fp16",
    "lora_rank": 16,
    "lora_targets": ["q_proj"],
    "optimizer": "adamw",
    "grad_checkpoint": True,
}
CASE = Case(
    name="edge",
    source="fitcheck_verdicts",
    what="a step",
    origins=(Origin(name="fitcheck-llm", revision="0.3.1", licence="MIT"),),
    file="data/validation/verdicts.json",
    card="T4",
    gpu="T4",
    torch_published="2.10.0",
    torch="2.10.0",
    parameters={"row_id": "0a"},
)


def ended(text: str = "", measured: dict | None = None) -> Ended:
    """What a run left: its figures, or the error that it ended with."""
    out = json.dumps({"measured": measured}, indent=2) if measured else ""
    return Ended(returncode=1 if text else 0, out=out, error=text, folder=Path())


def test_runs_that_agree_are_a_verdict_and_runs_that_do_not_are_none() -> None:
    assert verdict_of([ended(), ended()]) == FITS
    assert verdict_of([ended(REAL), ended(REAL)]) == OUT_OF_MEMORY
    assert verdict_of([ended(), ended(REAL), ended()]) == CANNOT_BE_JUDGED


def test_how_much_stands_before_the_error_does_not_count() -> None:
    assert verdict_of([ended("Loading weights: 1 of 300\r" * 5000 + REAL)]) == OUT_OF_MEMORY


def test_another_error_is_no_verdict() -> None:
    with pytest.raises(RunError, match="ImportError: no module named peft"):
        verdict_of([ended("ImportError: no module named peft")])


def test_an_error_is_compared_to_the_last_digit_that_it_says() -> None:
    other = ERROR.format(asked="2.90 GiB", allocated="11.15 GiB", cached="1020.90 MiB")
    figures, intervals = failures_compared(REAL, [ended(REAL), ended(REAL), ended(other)])
    assert list(figures) == ["asked for", "allocated then", "cached then"]
    assert all(figure.is_equal for figure in figures.values())
    assert set(intervals) == {"allocated then", "cached then"}
    figures, _ = failures_compared(REAL, [ended(other)])
    assert [figure.is_equal for figure in figures.values()] == [True, False, False]


@pytest.mark.parametrize(
    ("size", "resolution"), [(3 << 30, (1 << 30) // 100), (1 << 29, (1 << 20) // 100), (5000, 10), (7, 1)]
)
def test_the_last_digit_of_a_size_is_a_hundredth_of_its_unit(size: int, resolution: int) -> None:
    assert resolution_of(size) == resolution


def test_of_several_runs_the_first_is_compared() -> None:
    assert first_of(7, [7, 9, 5], 1) == (Figure(published=7, emulated=7), (5, 9))
    assert first_of(7, [8], 1) == (Figure(published=7, emulated=8), None)
    runs = [{**MEASURED, "peak_reserved_mib": mib} for mib in (1200.0, 1210.0, 1190.0)]
    figures, intervals = compared(MEASURED, runs, 1)
    assert figures["reserved"] == Figure(published=1200 * MIB, emulated=1200 * MIB)
    assert intervals == {"reserved": (1190 * MIB, 1210 * MIB)}


def test_a_shape_that_a_row_lacks_is_another_rows_of_the_same_model(tmp_path: Path) -> None:
    rows = [{"model_id": "a"}, {"model_id": "a", "model_config": {"hidden_size": 3}}]
    (tmp_path / "rows.json").write_text(json.dumps({"runs": rows}))
    (tmp_path / "manifest.json").write_text(json.dumps({"rows": []}))
    assert shape_of("a", tmp_path) == {"hidden_size": 3}
    with pytest.raises(RunError, match="tells the shape of the model"):
        shape_of("b", tmp_path)


def test_a_row_that_the_archive_lacks_is_said(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("session/0a.json", "{}")
    assert archived(tmp_path / "a.zip", "0a") == {}
    with pytest.raises(RunError, match=r"^a\.zip has no row 0b$"):
        archived(tmp_path / "a.zip", "0b")


@pytest.mark.parametrize(
    ("outcome", "row", "runs", "status", "emulated", "names"),
    [
        ("completed", {"measured": MEASURED}, [ended(measured=MEASURED)] * 3, Status.EQUAL, FITS, 2),
        ("completed", {"measured": MEASURED}, [ended(REAL)] * 3, Status.DIFFERS, OUT_OF_MEMORY, 0),
        ("oom", {"stderr_tail": ["backward(", REAL]}, [ended(REAL)] * 3, Status.EQUAL, OUT_OF_MEMORY, 3),
        (
            "oom",
            {"stderr_tail": [REAL]},
            [ended(REAL), ended(measured=MEASURED), ended(REAL)],
            Status.DIFFERS,
            CANNOT_BE_JUDGED,
            0,
        ),
    ],
)
def test_a_run_at_the_edge(
    outcome: str,
    row: dict,
    runs: list[Ended],
    status: Status,
    emulated: str,
    names: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the real card did is read from the file and its archive; figures are compared where the verdict is right."""
    folder = tmp_path / "data"
    (folder / "validation").mkdir(parents=True)
    told = {
        "provenance": {"source_archive": "session.zip"},
        "results": [{"row_id": "0a", "identity": IDENTITY, "outcome": outcome}],
    }
    (folder / "validation" / "verdicts.json").write_text(json.dumps(told))
    shape = {"runs": [{"model_id": "somebody/model", "model_config": {"hidden_size": 3}}]}
    (folder / "rows.json").write_text(json.dumps(shape))
    with zipfile.ZipFile(folder / "session.zip", "w") as archive:
        archive.writestr("session/0a.json", json.dumps(row))
    asked = []

    def fake(case: Case, bench: Bench, asks: dict, model: dict) -> list[Ended]:
        asked.append((asks["attn_impl"], model))
        return runs

    monkeypatch.setattr(fitcheck_verdicts, "ended_of", fake)
    monkeypatch.setattr(Bench, "files", lambda self, origin: tmp_path)
    found = fitcheck_verdicts.run(CASE, Bench(folder=tmp_path, environments=tmp_path, pattern=""))
    assert asked == [("sdpa", {"hidden_size": 3})]
    assert (found.status, found.verdict) == (
        status,
        Verdict(published=FITS if outcome == "completed" else OUT_OF_MEMORY, emulated=emulated),
    )
    assert len(found.figures) == names


def test_the_page_has_both_verdicts_and_counts_the_right_ones() -> None:
    """What is left open is no right verdict, and is not marked as a wrong one."""

    def row(name: str, published: str, emulated: str) -> Result:
        return Result.judged(case=name, verdict=Verdict(published=published, emulated=emulated))

    found = [
        row("edge", FITS, FITS),
        row("edge", OUT_OF_MEMORY, CANNOT_BE_JUDGED),
        row("edge", OUT_OF_MEMORY, FITS),
    ]
    shares = {what: share.text for what, share in summary_of(found)}
    assert shares["verdicts (fits, or out of memory)"] == "1 of 3"
    assert shares["uncertain verdicts"] == "1 of 3"
    pages = [page_of({"fitcheck_verdicts": [CASE]}, {"fitcheck_verdicts": {"edge": one}}) for one in found]
    assert "| result, date | real verdict | emulated verdict |" in pages[0]
    assert pages[0].endswith("| fits | fits |\n")
    assert pages[1].endswith("| out of memory | cannot be judged |\n")
    assert pages[2].endswith("| out of memory | **fits** |\n")


def test_the_summary_counts_peaks_that_are_near() -> None:
    def row(allocated: int, reserved: int) -> Result:
        figures = {
            "allocated": Figure(published=100_000, emulated=allocated),
            "reserved": Figure(published=100_000, emulated=reserved),
        }
        return Result.judged(case="row", figures=figures)

    recorded = Result.judged(case="recording", figures={"reserved peak": Figure(published=100, emulated=102)})
    shares = dict(summary_of([row(100_100, 99_000), row(99_899, 101_001), recorded]))
    assert shares["peaks allocated, within 0.1%"].text == "1 of 2"
    assert shares["peaks reserved, within 1.0%"].text == "1 of 3"


def test_what_is_asked_of_the_script_is_what_the_identity_says() -> None:
    asked = asked_of(IDENTITY)
    assert (asked["attn_impl"], asked["kernel"], asked["batch_size"]) == ("sdpa", "flash", 5)
    assert asked_of({**IDENTITY, "kernel": "eager"})["attn_impl"] == "eager"


def test_python_counts_the_real_machines_cpus(tmp_path: Path) -> None:
    cpus = (os.cpu_count() or 1) + 1
    (tmp_path / "script.py").write_text("import os; print(os.cpu_count())")
    command = [sys.executable, str(HERE / "child.py"), json.dumps({"gpu": "T4", "cpus": cpus})]
    done = subprocess.run([*command, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    assert done.stdout == f"{cpus}\n"
