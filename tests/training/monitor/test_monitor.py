"""What a monitor says of growth that is no leak, and what it leaves as it was."""

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import random
    import weakref

    import torch

    from tests.training.monitor import healthy, leaking
    from tests.training.monitor.loops import KEPT_FLOATS, Training
    from ullage import UsageError
    from ullage.training.monitor.finding import FindingKind
    from ullage.training.monitor.monitor import Monitor


@inside
def test_a_buffer_that_is_full_is_growth_that_ended() -> str:
    """A leak as long as it fills, and none from the time on at which it is full; with its line."""
    training, replay, said = Training(), [], []
    with Monitor(holders=False, log=said.append) as monitor:
        for number in range(240):
            if len(replay) == 100:
                replay.pop(random.randrange(100))
            replay.append(torch.zeros(KEPT_FLOATS, device="cuda"))
            training.step()
            monitor.step()
            if number == 60:
                assert [finding.kind for finding in monitor.findings] == [FindingKind.LEAK], str(monitor)
    ended = [finding for finding in monitor.findings if finding.kind is FindingKind.GROWTH_ENDED]
    assert len(ended) == 1
    assert not [finding for finding in monitor.findings if finding.is_leak]
    assert ended[0].until_step is not None
    assert 100 <= ended[0].until_step <= 150  # a quarter of the time that it grew has passed
    assert (ended[0].line or "").startswith("monitor/test_monitor.py:")
    assert [line.split(" at step")[0] for line in said][:2] == ["leak", "growth that ended"], said
    return str(monitor)


@inside
def test_what_rises_once_is_warm_up() -> str:
    """A copy of the weights made at step 100 is said once, with its size, and nothing else is."""
    with Monitor(holders=False) as monitor:
        healthy.average_of_weights_late(monitor, 200)
    (found,) = monitor.findings
    assert found.kind is FindingKind.WARM_UP
    assert found.total_bytes >= 512 * 512 * 4 * 2
    assert 90 <= found.since_step <= 104
    return str(monitor)


@inside
def test_a_peak_that_follows_the_batch_is_a_longer_batch() -> str:
    """The peak rises and what stays does not; the allocator's counters are as they would be alone."""
    training = Training(128)
    with Monitor(holders=False) as monitor:
        for number in range(120):
            training.step(256 if number < 60 else 8192)
            monitor.step()
    assert [one.kind for one in monitor.findings if one.kind is not FindingKind.WARM_UP] == [
        FindingKind.LONGER_BATCH
    ], str(monitor)
    assert torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() > 8192 * 128 * 4
    return str(monitor)


@inside
def test_batches_sorted_by_length_are_longer_batches() -> str:
    """Though what a step leaves behind, its own batch, grows evenly."""
    with Monitor(holders=False) as monitor:
        healthy.lengths_that_grow(monitor, 200)
    assert FindingKind.LONGER_BATCH in {one.kind for one in monitor.findings}, str(monitor)
    return str(monitor)


@inside
def test_pieces_that_nothing_fits_into_are_fragmentation() -> str:
    """What is reserved rises far above the peak: each length leaves a segment that the next is too long for."""
    training = Training()
    with Monitor(holders=False) as monitor:
        for number in range(400):
            mib = 24 + (2 * (number // 8) if number > 40 else 0)
            batch = torch.empty(mib << 18, device="cuda")
            training.step()
            del batch
            monitor.step()
    assert FindingKind.FRAGMENTATION in {one.kind for one in monitor.findings}, str(monitor)
    assert not [one for one in monitor.findings if one.is_leak]
    return str(monitor)


@inside
def test_cuda_is_not_initialised_where_it_is_not_used() -> None:
    """Steps on the CPU: nothing is found, and no context is made."""
    with Monitor() as monitor:
        for _ in range(40):
            monitor.step()
    assert not torch.cuda.is_initialized()
    assert monitor.findings == []
    assert str(monitor).startswith("40 steps in 1 phase\n")


@inside
def test_a_recording_that_the_user_has_switched_on_stays_on() -> None:
    """Evidence is gathered from it, and it has all its entries afterwards."""
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")
    with Monitor(holders=False) as monitor:
        leaking.a_cache_by_step(monitor, 50)
    assert [one.line for one in monitor.findings if one.is_leak] != [None]
    assert torch._C._cuda_isHistoryEnabled()
    assert len(torch.cuda.memory._snapshot()["device_traces"][0]) > 1000


@inside
def test_backward_runs_in_its_own_threads_again() -> None:
    """Where its blocks leak, it runs in the caller's until the line is known, and no longer."""
    with Monitor(holders=False) as monitor:
        leaking.a_gradient_hook_that_appends(monitor, 50)
    assert [one for one in monitor.findings if one.is_leak]
    assert torch._C._is_multithreading_enabled()


@inside
def test_a_monitor_keeps_no_tensor_alive() -> None:
    """What leaked is gone when the user lets go of it, while the monitor and its findings live."""
    training, kept = Training(), []
    monitor = Monitor()
    for _ in range(48):
        kept.append(torch.zeros(KEPT_FLOATS, device="cuda"))
        training.step()
        monitor.step()
    assert [one for one in monitor.findings if one.is_leak]
    watched = [weakref.ref(one) for one in kept]
    before = torch.cuda.memory_allocated()
    kept.clear()
    assert not [one for one in watched if one() is not None]
    assert torch.cuda.memory_allocated() == before - 48 * 4 * KEPT_FLOATS


@inside
def test_what_cannot_be_watched_is_refused() -> None:
    """The message names what was given and what is expected."""
    with pytest.raises(UsageError, match=r"device='cpu' cannot be monitored; expected a CUDA device"):
        Monitor(device="cpu")
    with pytest.raises(UsageError, match=r"min_bytes=0 is too small; expected at least 1 byte"):
        Monitor(min_bytes=0)


@pytest.mark.parametrize("is_counted_inside", [True, False])
@pytest.mark.parametrize("every", [100, 700])
@inside
def test_what_each_evaluation_keeps_is_a_leak_of_the_evaluation(every: int, is_counted_inside: bool) -> None:
    """Whether `step()` is called inside the phase or not; nothing is said of the steps of the training."""
    kept, passing = [], lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    with Monitor(holders=False) as monitor:
        for number in range(1, 10 * every):
            passing(1)
            if number % every == 0:
                with monitor.phase("eval"):
                    for _ in range(10):
                        passing(2)
                        if is_counted_inside:
                            monitor.step()
                    kept.append(passing(32))
            monitor.step()
    (leak,) = [finding for finding in monitor.findings if finding.is_leak]
    assert leak.phase == "eval", str(monitor)
    assert leak.total_bytes == 8 * 32 << 20
    assert leak.bytes_per_step == (leak.total_bytes // 80 if is_counted_inside else 32 << 20)


@inside
def test_equal_rises_at_equal_intervals_are_a_leak() -> None:
    """Without a phase; and a few of them are a warm-up."""
    for rises in (5, 7):
        kept = []
        with Monitor(holders=False) as monitor:
            for number in range(1, 300 * rises + 60):
                torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
                if number % 300 == 0:
                    kept.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
                monitor.step()
        rare = [finding for finding in monitor.findings if finding.is_leak and finding.bytes_per_step > 8 << 10]
        assert bool(rare) == (rises > 5), str(monitor)
