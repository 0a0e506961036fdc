"""The count of the host's large pieces of memory: what is there, the most at once, and whose it was then."""

import ctypes
import mmap
import os
import random
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from ullage.gpu.tracing import journal
from ullage.gpu.tracing.journal import Journal
from ullage.gpu.tracing.journal.host import HostKind, HostLedger, resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the journal is built on Linux")
MIB = 1 << 20
PINNED = int(HostKind.PINNED)


@pytest.fixture
def library() -> ctypes.CDLL:
    loaded = journal.library()
    loaded.host_note.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    loaded.host_forget.argtypes = [ctypes.c_int, ctypes.c_void_p]
    return loaded


@pytest.fixture
def ledger() -> Iterator[HostLedger]:
    """The ledger of this process, which keeps its peak: what a test adds is far above what others have."""
    watched = Journal()
    assert watched.stacks.are_recorded
    watched.host.open()
    yield watched.host
    watched.host.close()


def test_the_peak_is_kept_with_the_lines_that_had_it(library: ctypes.CDLL, ledger: HostLedger) -> None:
    base = ledger.peak_bytes(HostKind.PINNED) + MIB
    library.host_note(PINNED, 0x1000, base)
    library.host_note(PINNED, 0x2000, 3 * MIB)
    library.host_forget(PINNED, 0x1000)
    library.host_note(PINNED, 0x3000, MIB)
    assert ledger.bytes(HostKind.PINNED) == 4 * MIB
    assert ledger.peak_bytes(HostKind.PINNED) == base + 3 * MIB
    rows = ledger.rows_at_peak(HostKind.PINNED)
    assert [row.bytes for row in rows] == sorted([base, 3 * MIB], reverse=True)
    assert {row.line.function for row in rows} == {test_the_peak_is_kept_with_the_lines_that_had_it.__name__}
    assert all(row.is_users for row in rows)
    for address in (0x2000, 0x3000):
        library.host_forget(PINNED, address)
    assert ledger.bytes(HostKind.PINNED) == 0


def test_what_is_forgotten_twice_or_was_never_noted_counts_for_nothing(
    library: ctypes.CDLL, ledger: HostLedger
) -> None:
    library.host_note(PINNED, 0x5000, MIB)
    for address in (0x5000, 0x5000, 0x6000, None):
        library.host_forget(PINNED, address)
    assert ledger.bytes(HostKind.PINNED) == 0


def test_an_address_that_comes_again_replaces_what_was_there(library: ctypes.CDLL, ledger: HostLedger) -> None:
    for size in (MIB, 5 * MIB):
        library.host_note(PINNED, 0x7000, size)
    assert ledger.bytes(HostKind.PINNED) == 5 * MIB
    library.host_forget(PINNED, 0x7000)


@pytest.mark.parametrize("seed", range(5))
def test_random_pieces_sum_up_as_a_dictionary_does(seed: int, library: ctypes.CDLL, ledger: HostLedger) -> None:
    chance = random.Random(seed)
    there: dict[int, int] = {}
    base = ledger.peak_bytes(HostKind.PINNED)
    library.host_note(PINNED, 0x10, base + 1)
    peak = 0
    for _ in range(3000):
        address = chance.randrange(1, 700) * 64 + 0x100000
        if address in there and chance.random() < 0.6:
            library.host_forget(PINNED, address)
            del there[address]
        else:
            there[address] = chance.randrange(1, 1 << 30)
            library.host_note(PINNED, address, there[address])
        peak = max(peak, sum(there.values()))
        assert ledger.bytes(HostKind.PINNED) == base + 1 + sum(there.values())
    assert ledger.peak_bytes(HostKind.PINNED) == base + 1 + peak
    assert sum(row.bytes for row in ledger.rows_at_peak(HostKind.PINNED)) == base + 1 + peak
    for address in (0x10, *there):
        library.host_forget(PINNED, address)
    assert ledger.bytes(HostKind.PINNED) == 0


def test_arrays_of_numpy_are_counted_from_a_mebibyte_on(ledger: HostLedger) -> None:
    before = ledger.bytes(HostKind.ARRAYS)
    small, zeros, ones = np.ones(1000), np.zeros(MIB, np.uint8), np.ones((3, MIB), np.uint8)
    assert ledger.bytes(HostKind.ARRAYS) == before + 4 * MIB
    grown = np.ones(2 * MIB, np.uint8)
    grown.resize(5 * MIB, refcheck=False)
    assert ledger.bytes(HostKind.ARRAYS) == before + 9 * MIB
    del small, zeros, ones, grown
    assert ledger.bytes(HostKind.ARRAYS) == before
    rows = [row for row in ledger.rows_at_peak(HostKind.ARRAYS) if row.line.file == __file__]
    assert sum(row.bytes for row in rows) == 9 * MIB


def test_a_fork_counts_nothing_and_waits_for_nobody(library: ctypes.CDLL, ledger: HostLedger) -> None:
    before = ledger.bytes(HostKind.PINNED)
    child = os.fork()
    if not child:
        library.host_note(PINNED, 0x9000, MIB)
        os._exit(int(ledger.bytes(HostKind.PINNED) != before))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_resident_rises_with_what_is_written() -> None:
    before = resident()
    with mmap.mmap(-1, 32 * MIB) as block:  # new pages, whatever was given back before
        block.write(b"x" * (32 * MIB))
        now = resident()
    assert now.bytes - before.bytes > 24 * MIB
    assert now.peak_bytes >= now.bytes > now.file_bytes > 0
