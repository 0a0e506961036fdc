"""Rules of reading what a run has left: as much as is whole, and nothing of somebody else's."""

import json
from pathlib import Path

import pytest

from ullage.base.errors import UsageError
from ullage.running.run_files.facts import RunFacts, RunPeak
from ullage.running.run_files.folder import ENVIRONMENT, read_run
from ullage.running.run_files.live import LiveWriter
from ullage.running.supervision.summary import differences_of, summary_of
from ullage.running.supervision.verdict import fatal_evidence

GIB = 1 << 30


def _rank(
    folder: Path, rank: int, peak_bytes: int, *, state: str = "runs", roles: dict[str, int] | None = None
) -> None:
    facts = RunFacts(
        pid=100 + rank, command=("train.py",), host="here", started=1.0, told=2.0, rank=rank, state=state, steps=7,
        peaks=(RunPeak(bytes=peak_bytes, device=0, step=3),), roles=roles or {},
    )  # fmt: skip
    LiveWriter(folder / f"rank{rank}-{100 + rank}.live").write_facts(facts.to_json())


def _evidence(folder: Path, pid: int, number: int, time: float) -> Path:
    path = folder / f"oom-{pid}-{number}"
    path.mkdir()
    (path / ENVIRONMENT).write_text(json.dumps({"time": time, "facts": {"pid": pid}}))
    return path


def test_the_rank_that_is_different_is_named_with_what_it_has_more_of(tmp_path: Path) -> None:
    for rank in range(4):
        more = GIB if rank == 2 else 0
        _rank(tmp_path, rank, 3 * GIB + more, roles={"parameters": GIB + more, "gradients": GIB})
    [sentence] = differences_of(read_run(tmp_path))
    assert sentence == (
        "rank 2 uses the most memory: 4.00 GiB at the peak, 1.00 GiB more than rank 0: 1.00 GiB more of parameters"
    )
    assert summary_of(read_run(tmp_path))[0] == sentence


def test_ranks_that_are_alike_are_said_to_be(tmp_path: Path) -> None:
    for rank in range(4):
        _rank(tmp_path, rank, 3 * GIB + rank)
    assert differences_of(read_run(tmp_path)) == ["all 4 ranks use about the same memory: 3.00 GiB at the peak"]


def test_the_evidence_that_matters_is_the_last_of_the_rank_that_memory_ended_first(tmp_path: Path) -> None:
    """What a rank has handled is not why the run ended; without such a rank the first evidence matters."""
    for rank, state in enumerate(("out of memory", "failed", "out of memory")):
        _rank(tmp_path, rank, GIB, state=state)
    for pid, number, time in ((100, 1, 1.0), (100, 2, 9.0), (101, 1, 2.0), (102, 1, 5.0), (102, 2, 6.0)):
        _evidence(tmp_path, pid, number, time)
    fatal = fatal_evidence(read_run(tmp_path))
    assert fatal is not None
    assert fatal.folder.name == "oom-102-2"
    for live in tmp_path.glob("*.live"):
        live.unlink()
    fatal = fatal_evidence(read_run(tmp_path))
    assert fatal is not None
    assert fatal.folder.name == "oom-100-1"


def test_one_evidence_of_a_run_can_be_read_alone(tmp_path: Path) -> None:
    _rank(tmp_path, 0, GIB)
    _evidence(tmp_path, 100, 1, 1.0)
    second = _evidence(tmp_path, 100, 2, 2.0)
    run = read_run(second)
    assert [one.folder.name for one in run.evidence] == ["oom-100-2"]
    assert len(run.processes) == 1


def test_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    """Of a run, what is whole is read; a folder of something else is refused."""
    with pytest.raises(UsageError, match="expected a folder that `ullage run` has written"):
        read_run(tmp_path)
    (tmp_path / "rank0-1.live").write_bytes(b"no")
    broken = _evidence(tmp_path, 100, 1, 1.0)
    (broken / ENVIRONMENT).write_bytes(b"[" * 100_000)
    run = read_run(tmp_path)
    assert (run.processes, len(run.evidence), run.evidence[0].surroundings) == ((), 1, {})
    with pytest.raises(UsageError, match="is not a folder"):
        read_run(tmp_path / "none")
