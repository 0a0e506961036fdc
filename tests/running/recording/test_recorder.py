"""Rules of the recorder in the script's process: it shows all there is, and the script notices none of it."""

import json
import os
import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.shared.inside import inside

MIB = 1 << 20


def _recorder(folder: str, **plan: Any) -> Any:
    from ullage.running.recording.plan import RecordingPlan
    from ullage.running.recording.recorder import Recorder

    recorder = Recorder(RecordingPlan(folder=Path(folder), **plan))
    recorder.install()
    return recorder


def _live(folder: str) -> Any:
    from ullage.running.run_files.folder import read_run

    [process] = read_run(Path(folder)).processes
    return process


def _train(steps: int, *, rows: int = 64) -> None:
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        model(torch.zeros(rows, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@inside
def _statistics_of_a_script(folder: str | None) -> None:
    """Leave in a file what a script sees of its peaks, which it resets at random."""
    import torch

    torch.cuda.init()
    if folder is not None and "recorded" in folder:
        from ullage.running.recording.peak import PeakMeter

        meter = PeakMeter()
        meter.install()
    chance, held, seen = random.Random(3), [], []
    for step in range(200):
        held.append(torch.empty(chance.randrange(1, 8 * MIB), device="cuda", dtype=torch.uint8))
        if chance.random() < 0.6:
            held.pop(chance.randrange(len(held)))
        if "recorded" in str(folder):
            meter.measure(0)
        if chance.random() < 0.1:
            torch.cuda.reset_peak_memory_stats()
        if chance.random() < 0.1:
            torch.accelerator.reset_peak_memory_stats()
        statistics = torch.cuda.memory_stats()
        seen.append({name: value for name, value in statistics.items() if not name.startswith("oversize")})
        seen.append({"max": torch.accelerator.max_memory_allocated(), "step": step})
    Path(str(folder)).write_text(json.dumps(seen))


def test_a_script_sees_the_peaks_that_it_would_see(tmp_path: Path) -> None:
    """All of PyTorch's statistics, after every step, although every step's peak is reset."""
    for name in ("alone", "recorded"):
        _statistics_of_a_script(folder=str(tmp_path / name))
    alone, recorded = (json.loads((tmp_path / name).read_text()) for name in ("alone", "recorded"))
    assert len(alone) == 400
    assert recorded == alone


@inside
def _a_training(folder: str) -> None:
    recorder = _recorder(folder)
    import torch

    _train(30)
    highest = torch.cuda.max_memory_allocated()
    recorder.end_of_process()
    facts = _live(folder).facts
    assert (facts.steps, facts.state, facts.ooms) == (30, "ended", 0)
    [peak] = facts.peaks
    assert peak.line is not None
    assert "test_recorder.py" in peak.line or "backward" in peak.line
    parameters = 4 * (256 * 256 + 256) * 4
    assert facts.roles == {"parameters": parameters, "gradients": parameters, "optimizer state": 2 * parameters}
    samples = [one for one in _live(folder).live.recent if one.step]
    assert [one.step for one in samples][:30] == list(range(1, 31))
    assert max(one.peak_bytes for one in samples) == peak.bytes == highest


def test_a_training_is_shown_step_by_step(tmp_path: Path) -> None:
    """Steps, peaks as `torch.cuda.max_memory_allocated` has them, roles to the byte, the line of the peak."""
    _a_training(folder=str(tmp_path))


@inside
def _an_oom(folder: str, handled: int) -> None:
    import torch

    recorder = _recorder(folder)
    _train(3)
    allocated = torch.cuda.memory_allocated()
    for _ in range(handled):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
    assert torch.cuda.memory_allocated() == allocated
    recorder.end_of_process()


def test_where_memory_runs_out_evidence_is_written(tmp_path: Path) -> None:
    """For the first three times, whole; later ones are counted. What is not the allocator's is left out of it."""
    os.environ["PYTORCH_SECRET_TOKEN"] = "hidden"  # the process of the tests is made later, and inherits it
    try:
        _an_oom(folder=str(tmp_path), handled=5)
    finally:
        del os.environ["PYTORCH_SECRET_TOKEN"]
    from ullage.running.run_files.folder import read_run
    from ullage.running.supervision.verdict import explain_evidence

    run = read_run(tmp_path)
    assert [process.facts.ooms for process in run.processes] == [5]
    assert len(run.evidence) == 3
    for one in run.evidence:
        assert one.surroundings["asked_bytes"] == 1 << 40
        assert one.surroundings["step"] == 4
        assert "test_recorder.py" in one.surroundings["line"]
        assert "hidden" not in json.dumps(one.surroundings)
        explanation = explain_evidence(one)
        assert explanation is not None
        assert explanation.cause.value == "truly_full"


@inside
def _a_disk_that_is_full(folder: str) -> None:
    import resource
    import signal

    import torch

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    recorder = _recorder(folder)
    _train(5)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1024.00 GiB"):
        torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
    recorder.end_of_process()


def test_a_disk_that_is_full_does_not_reach_the_script(tmp_path: Path) -> None:
    """Nothing half written is left."""
    _a_disk_that_is_full(folder=str(tmp_path))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@inside
def _a_long_history(folder: str) -> None:
    import tracemalloc

    import torch

    from ullage.base.own_files import OwnFolder
    from ullage.running.recording.evidence import _write_snapshot

    torch.cuda.memory._record_memory_history(max_entries=10**9)
    for _ in range(10_000):
        torch.empty(1000, device="cuda")
    snapshot = torch._C._cuda_memorySnapshot(None)
    assert len(snapshot["device_traces"][0]) > 30_000
    path = Path(folder) / "snapshot.pickle"
    place = OwnFolder.open(path.parent)
    tracemalloc.start()
    _write_snapshot(place, snapshot)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = path.stat().st_size
    assert size > 2 * MIB
    # Pickler's own notes of what it has met take up to 1.9 times the file; pickled in memory it would be one time more.
    assert most < 2.3 * size, f"{most / size:.2f} times the file"


def test_a_long_history_is_written_as_it_is_pickled(tmp_path: Path) -> None:
    """What a script has recorded without end is not in memory a second time, whole, beside PyTorch's answer."""
    _a_long_history(folder=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot.pickle"]


@inside
def _a_disk_that_becomes_full(folder: str) -> None:
    import resource
    import signal

    import torch

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    recorder = _recorder(folder)
    _train(5)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
    recorder.end_of_process()


def test_what_was_written_before_the_disk_was_full_stays(tmp_path: Path) -> None:
    """The snapshot has no room: it is not there, whole or in part; who asked for what is."""
    _a_disk_that_becomes_full(folder=str(tmp_path))
    from ullage.running.run_files.folder import read_run

    [evidence] = read_run(tmp_path).evidence
    assert [path.name for path in evidence.folder.iterdir()] == ["environment.json"]
    assert (evidence.snapshot, evidence.surroundings["asked_bytes"]) == (None, 1 << 40)


@inside
def _history(folder: str, mode: str) -> None:
    import torch

    from ullage.running.recording import history
    from ullage.running.recording.plan import HistoryMode

    history._CHEAP_SHARE = 0  # on a machine that is slow enough every step is long enough for it
    recorder = _recorder(folder, history=HistoryMode(mode))
    switched = torch._C._cuda_isHistoryEnabled
    torch.cuda.init()
    assert switched() is (mode != "never")
    _train(4)
    assert switched() is (mode != "never")
    _train(20)
    limit = torch.cuda.mem_get_info()[1]
    assert switched() is (mode == "always")
    if mode == "auto":
        held = torch.empty(int(0.9 * limit), device="cuda", dtype=torch.uint8)
        _train(2)
        assert switched()
        assert "of the GPU's memory is in use" in recorder._history.arming.why
        del held
    recorder.stop()


def test_history_is_recorded_in_the_first_steps_and_where_memory_is_short(tmp_path: Path) -> None:
    """Always and never are what they say."""
    for mode in ("auto", "always", "never"):
        (tmp_path / mode).mkdir()
        _history(folder=str(tmp_path / mode), mode=mode)


@inside
def _a_script_that_records_itself(folder: str) -> None:
    import torch

    recorder = _recorder(folder)
    _train(2)
    torch.cuda.memory._record_memory_history(max_entries=1000)
    _train(20)
    assert torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(None)
    recorder.stop()


def test_a_script_that_records_itself_is_left_alone(tmp_path: Path) -> None:
    _a_script_that_records_itself(folder=str(tmp_path))


@inside
def _ring(folder: str, megabytes: int) -> None:
    """Fill the ring with what costs most: every entry an allocation with a deep stack of its own."""
    import psutil
    import torch

    from ullage.running.recording.plan import HistoryMode

    recorder = _recorder(folder, history=HistoryMode.ALWAYS, budget_bytes=megabytes * MIB)
    torch.empty(1, device="cuda")
    entries = recorder._history.arming.entries
    assert entries > 1000

    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        else:
            for _ in range(entries):
                torch.empty(1, device="cuda")

    before = psutil.Process().memory_info().rss
    deep(60)
    taken = psutil.Process().memory_info().rss - before
    assert taken < megabytes * MIB, f"{taken / MIB:.1f} MiB of {megabytes} for {entries} entries"
    assert taken > megabytes * MIB // 8, f"{taken / MIB:.1f} MiB of {megabytes}: it could reach further back"
    recorder.stop()


def test_the_history_stays_within_its_budget(tmp_path: Path) -> None:
    """And uses it."""
    for megabytes in (16, 64):
        (tmp_path / str(megabytes)).mkdir()
        _ring(folder=str(tmp_path / str(megabytes)), megabytes=megabytes)


@inside
def _a_fork(folder: str) -> None:
    import torch

    recorder = _recorder(folder)
    _train(2)
    pid = os.fork()
    if not pid:
        recorder.end_of_process()
        os._exit(0 if recorder._is_over else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert _live(folder).facts.state == "runs"
    loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2)
    assert len(list(loader)) == 8
    recorder.end_of_process()
    assert _live(folder).facts.state == "ended"


def test_a_forked_process_is_silent(tmp_path: Path) -> None:
    """Workers of a loader do not write into their parent's file, nor end it."""
    _a_fork(folder=str(tmp_path))


@inside
def _an_oom_without_history(folder: str) -> None:
    import torch

    from ullage.running.recording.plan import HistoryMode

    recorder = _recorder(folder, history=HistoryMode.NEVER)
    held = torch.empty(10 << 30, device="cuda", dtype=torch.uint8)
    _train(2)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(8 << 30, device="cuda", dtype=torch.uint8)
    del held
    recorder.end_of_process()


def test_without_history_the_request_that_failed_is_known_all_the_same(tmp_path: Path) -> None:
    """With its line, its bytes, and what was free: enough for the cause."""
    _an_oom_without_history(folder=str(tmp_path))
    from ullage.running.run_files.folder import read_run
    from ullage.running.supervision.verdict import explain_evidence

    [evidence] = read_run(tmp_path).evidence
    explanation = explain_evidence(evidence)
    assert explanation is not None
    assert explanation.cause.value == "truly_full"
    assert explanation.evidence["requested_bytes"] == 8 << 30
    assert explanation.failing_line is not None
    assert "test_recorder.py" in explanation.failing_line


@inside
def _a_request_larger_than_the_card(folder: str) -> None:
    import torch

    recorder = _recorder(folder)
    _train(2)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(32 << 30, device="cuda", dtype=torch.uint8)
    recorder.end_of_process()


def test_a_request_larger_than_the_card_is_told_so(tmp_path: Path) -> None:
    """To hold less of anything else cannot help it."""
    _a_request_larger_than_the_card(folder=str(tmp_path))
    from ullage.running.run_files.folder import read_run
    from ullage.running.supervision.verdict import explain_evidence

    [evidence] = read_run(tmp_path).evidence
    explanation = explain_evidence(evidence)
    assert explanation is not None
    assert "this single request of 32.00 GiB exceeds the 14.60 GiB" in explanation.remedies[-1].name


@inside
def _a_recorder_that_fails(folder: str) -> None:
    import torch
    from torch.optim import optimizer as optimizers

    seen: list[int] = []
    recorder = _recorder(folder)
    optimizers.register_optimizer_step_post_hook(lambda *_: seen.append(1))
    _train(2)
    recorder._gauge.read = None
    _train(3)
    assert len(seen) == 5
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device="cuda", dtype=torch.uint8)


def test_a_recorder_that_fails_does_not_reach_the_optimizer(tmp_path: Path) -> None:
    """Nor the hooks that others have."""
    _a_recorder_that_fails(folder=str(tmp_path))


@inside
def _a_step_while_facts_are_written(folder: str) -> None:
    import threading

    recorder = _recorder(folder)
    _train(1)
    taken, before = threading.Event(), len(_live(folder).live.recent)

    def hold_the_lock() -> None:
        with recorder._lock:
            taken.set()
            while recorder._step == 1:  # until the next step has ended, and waits
                pass

    writer = threading.Thread(target=hold_the_lock)
    writer.start()
    taken.wait()
    _train(1)
    writer.join()
    assert len(_live(folder).live.recent) > before
    recorder.end_of_process()


def test_a_step_is_sampled_although_its_end_meets_the_writing_of_facts(tmp_path: Path) -> None:
    """The thread that writes facts has the lock for a moment; on a busy machine every step may meet it."""
    _a_step_while_facts_are_written(folder=str(tmp_path))


@inside
def _a_script_that_resets(folder: str) -> None:
    import torch

    recorder = _recorder(folder)
    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.zeros_like(weight)
    for _ in range(3):
        torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
        assert torch.cuda.max_memory_allocated() >= 1 << 30
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() < 1 << 20
        optimizer.step()
        assert torch.cuda.max_memory_allocated() < 1 << 20
    assert recorder._gauge.peaks[0].bytes >= 1 << 30  # whichever sample it came in
    recorder.stop()


def test_a_peak_that_the_script_resets_is_of_the_step(tmp_path: Path) -> None:
    """Scripts log the peak and reset it before the optimizer steps."""
    _a_script_that_resets(folder=str(tmp_path))


@inside
def _forked_before_cuda(folder: str) -> None:
    import torch

    recorder = _recorder(folder)
    pids = []
    for rank in range(2):
        pid = os.fork()
        if not pid:
            os.environ["RANK"] = str(rank)
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
            recorder.end_of_process()
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    from ullage.running.run_files.folder import read_run

    run = read_run(Path(folder))
    assert [(one.facts.rank, one.facts.pid) for one in run.processes] == list(enumerate(pids))
    assert sorted(one.pid or 0 for one in run.evidence) == sorted(pids)


def test_processes_forked_before_cuda_are_themselves(tmp_path: Path) -> None:
    """As ranks that a notebook starts: each with its own number, rank and evidence."""
    _forked_before_cuda(folder=str(tmp_path))


@inside
def _a_leak(folder: str, steps: int) -> None:
    import torch

    from ullage.running.recording.plan import HistoryMode

    read, reads = torch._C._cuda_memoryStats, []
    torch._C._cuda_memoryStats = lambda device: reads.append(device) or read(device)
    recorder = _recorder(folder, history=HistoryMode.NEVER)
    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.zeros_like(weight)
    kept = []
    began = time.monotonic()
    for step in range(steps):
        if step == steps // 2:
            assert len(reads) <= step + 2 * (time.monotonic() - began) + 2
        kept.append(torch.empty(MIB, device="cuda", dtype=torch.uint8))
        optimizer.step()
    assert [found.bytes_per_step for found in recorder._monitor.findings if found.is_leak] == [MIB]
    recorder.stop()


def test_one_reading_of_a_step_serves_both_samples_and_leaks(tmp_path: Path) -> None:
    """And in the second between steps it is read once more or twice."""
    _a_leak(folder=str(tmp_path), steps=120)


@inside
def _a_compiled_step(folder: str) -> None:
    import torch

    recorder = _recorder(folder)
    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.zeros_like(weight)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(10):
            step()
    assert [str(one.message) for one in told if "ullage" in str(one.message)] == []
    assert recorder._step == 10
    recorder.stop()


def test_a_compiled_step_has_nothing_of_ours_in_it(tmp_path: Path) -> None:
    _a_compiled_step(folder=str(tmp_path))
