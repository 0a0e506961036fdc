"""What a node's host needs: the arithmetic, the limit that decides, and what is read of a process's workers."""

import dataclasses
import gc
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ullage.base.units import GIB, MIB
from ullage.predicting.prediction.data.plain_data import from_plain, to_plain
from ullage.predicting.prediction.host import memory
from ullage.predicting.prediction.host.memory import (
    HostFigures,
    HostLine,
    HostUse,
    WorkersUse,
    host_use,
    reason_of_host,
)
from ullage.predicting.prediction.host.watch import HostWatch
from ullage.running.diagnosis.host import read_host

LINE = HostLine(file="train.py", line=7, function="main", is_users=True, bytes=GIB, blocks=2)
FIGURES = HostFigures(
    pinned_peak_bytes=GIB,
    pinned_lines=[LINE],
    pinned_untouched_bytes=512 * MIB,
    tensors_peak_bytes=0,
    tensor_lines=[],
    arrays_peak_bytes=0,
    array_lines=[],
    high_water_bytes=5 * GIB,
    own_bytes=GIB,
    file_bytes=GIB,
)
WORKERS = WorkersUse(count=2, private_bytes=GIB, shared_memory_bytes=GIB, beside_bytes=3 * GIB // 2)


def use(**changes: object) -> HostUse:
    found = host_use(FIGURES, WORKERS, **{"world_size": None, "given_bytes": None, **changes})
    assert found is not None
    return found


def test_one_process_and_its_workers_are_summed() -> None:
    host = use()
    assert host.resident_peak_bytes == 4 * GIB
    assert host.total_bytes == host.rank_bytes == 6 * GIB
    assert host.ranks_of_a_node == 1


@pytest.mark.parametrize(("world_size", "ranks"), [(1, 1), (4, 4), (8, 8), (64, 8)])
def test_the_ranks_of_a_node_share_the_pages_of_files(world_size: int, ranks: int) -> None:
    host = use(world_size=world_size)
    assert host.ranks_of_a_node == ranks
    assert host.total_bytes == ranks * 6 * GIB - (ranks - 1) * GIB


def test_only_a_limit_that_was_given_decides() -> None:
    assert use(given_bytes=6 * GIB).fits
    too_small = use(given_bytes=6 * GIB - 1)
    assert too_small.decides
    assert "host memory is too small" in reason_of_host(too_small)
    of_this_machine = use(world_size=8)
    huge = host_use(dataclasses.replace(FIGURES, high_water_bytes=1 << 60), WORKERS, world_size=None, given_bytes=None)
    assert of_this_machine.limit_source in ("the machine's memory", "the control group's limit")
    assert huge is not None
    assert huge.fits is False
    assert not huge.decides


@pytest.mark.parametrize(
    ("group", "machine", "limit", "source"),
    [
        (GIB, 8 * GIB, GIB, "the control group's limit"),
        (None, 8 * GIB, 8 * GIB, "the machine's memory"),
        (16 * GIB, 8 * GIB, 8 * GIB, "the machine's memory"),
        (None, None, None, "not known"),
    ],
)
def test_a_limit_that_nobody_gave_is_the_lower_of_the_groups_and_the_machines(
    group: int | None, machine: int | None, limit: int | None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = dataclasses.replace(read_host(), limit_bytes=group, memory_bytes=machine)
    monkeypatch.setattr(memory, "read_host", lambda: here)
    host = use()
    assert (host.limit_bytes, host.limit_source) == (limit, source)
    assert host.fits is (None if limit is None else limit >= 6 * GIB)


def test_a_process_that_told_nothing_has_no_figures() -> None:
    assert host_use(None, WORKERS, world_size=None, given_bytes=1) is None


def test_figures_travel_between_processes() -> None:
    assert from_plain(HostFigures, to_plain(FIGURES)) == FIGURES


def write_own(private_bytes: int) -> mmap.mmap:
    """Return memory that this process has alone."""
    own = mmap.mmap(-1, private_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(private_bytes // MIB):
        own.write(b"\1" * MIB)
    return own


@contextmanager
def script(shared_bytes: int, *private_bytes: int) -> Iterator[int]:
    """A process that has written `shared_bytes` and has then forked workers, each of which has written its own.

    It does nothing afterwards, so that it and its workers share what they shared at the fork. This process cannot be in
    its place: each page that it writes to while the workers are there (a count of references, the garbage collector)
    would become theirs alone.
    """
    ready, done = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        inherited = write_own(shared_bytes)
        for size_bytes in private_bytes:
            if not os.fork():
                own = write_own(size_bytes)
                os.write(done, b"1")
                signal.pause()
                del own
        signal.pause()
        del inherited
    for _ in private_bytes:
        os.read(ready, 1)
    try:
        yield pid
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(done)


def test_what_workers_have_alone_is_seen_and_what_they_share_is_not() -> None:
    with script(64 * MIB, 48 * MIB, 16 * MIB) as process:
        gc.collect()  # writes to pages that all of them were forked with
        watch = HostWatch(process)
        watch.look(now=True)
    assert watch.use.count == 2
    assert 64 * MIB <= watch.use.private_bytes < 64 * MIB + 16 * MIB


def test_shared_memory_counts_by_file_though_nobody_has_it_mapped() -> None:
    watch = HostWatch(os.getpid())
    watch.look(now=True)
    before = watch.use.shared_memory_bytes
    name = f"/dev/shm/ullage_test_{os.getpid()}"
    descriptor = os.open(name, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
    os.unlink(name)
    twice = os.dup(descriptor)
    os.write(descriptor, b"\1" * (8 * MIB))
    watch.look(now=True)
    os.close(twice)
    os.close(descriptor)
    assert watch.use.shared_memory_bytes == before + 8 * MIB


def test_a_process_that_is_gone_is_no_error() -> None:
    watch = HostWatch(2**22 + 1)
    watch.look(now=True)
    assert watch.use == WorkersUse()
