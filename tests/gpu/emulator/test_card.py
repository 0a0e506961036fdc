"""The emulated card's memory against plain models of where drivers put it: 2 MiB pages, never more than there is."""

import ctypes
import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ullage.gpu.emulator import library
from ullage.gpu.placement import PLACEMENTS

PAGE = 2 << 20
CHUNK_PAGES = 16
CAPACITY_PAGES = 64
CONTEXT_PAGES = 3


def card_library() -> ctypes.CDLL:
    place_as("linux")
    card = library._card()
    for name in ("card_allocate", "card_reserve", "card_create_pages", "card_mapped_handle"):
        getattr(card, name).restype = ctypes.c_uint64
    card.card_free_bytes.restype = ctypes.c_int64
    for name in ("card_free", "card_unreserve", "card_release_pages", "card_map", "card_unmap"):
        getattr(card, name).restype = ctypes.c_bool
    card.card_allocate.argtypes = card.card_reserve.argtypes = [ctypes.c_int, ctypes.c_size_t]
    card.card_create_pages.argtypes = [ctypes.c_int, ctypes.c_size_t]
    card.card_free.argtypes = card.card_release_pages.argtypes = [ctypes.c_uint64]
    card.card_unreserve.argtypes = card.card_unmap.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    card.card_map.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64]
    return card


def place_as(placement: str, **more: int) -> None:
    figures = dict.fromkeys(library.FIGURES, 1) | {
        "total_memory_bytes": (CAPACITY_PAGES + CONTEXT_PAGES) * PAGE,
        "context_bytes": CONTEXT_PAGES * PAGE,
        "placement": PLACEMENTS.index(placement),
        **more,
    }
    library.describe_cards("a card for tests", figures, count=2, cuda_number=13000, cudnn=91900)


def first_address(placement: str) -> int:
    place_as(placement)
    address: int = CARD.card_allocate(0, 1)
    assert CARD.card_free(address)
    return address


CARD = card_library()
BASE = first_address("windows")
TOP_PAGES = (first_address("linux") - BASE) // PAGE + CHUNK_PAGES


def pages_of(size: int) -> int:
    return -(-size // PAGE)


class Memory(RuleBasedStateMachine):
    """cudaMalloc and cuMem* of one card, side by side with a dictionary of ranges."""

    placement = "windows"
    first_page = 0
    allocations = Bundle("allocations")
    reservations = Bundle("reservations")
    mapped = Bundle("mapped")

    def __init__(self) -> None:
        super().__init__()
        place_as(self.placement)
        self.ranges: dict[int, int] = {}  # first page -> pages, both kinds
        self.chunks: dict[int, int] = {}  # the same, of what Linux takes
        self.used = 0

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The gaps in [start, end) as (first page, pages), from the lowest up."""
        inside = sorted(page for page in self.ranges if start <= page < end)
        ends = [start, *(page + self.ranges[page] for page in inside)]
        return [(low, high - low) for low, high in zip(ends, [*inside, end], strict=True)]

    def first_fit(self, pages: int, start: int | None = None, end: int = TOP_PAGES) -> int | None:
        first = self.first_page if start is None else start
        return next((page for page, room in self.gaps(first, end) if room >= pages), None)

    def expected(self, pages: int) -> int:
        """Where cudaMalloc puts memory."""
        at = self.first_fit(pages)
        assert at is not None
        return at

    @rule(target=allocations, size=st.integers(1, 20 * PAGE))
    def allocate(self, size: int) -> tuple[int, int]:
        pages = pages_of(size)
        address = CARD.card_allocate(0, size)
        if self.used + pages > CAPACITY_PAGES:
            assert address == 0
            return (0, 0)
        assert address == BASE + self.expected(pages) * PAGE
        self.ranges[(address - BASE) // PAGE] = pages
        self.used += pages
        return (address, pages)

    @rule(allocation=consumes(allocations))
    def free(self, allocation: tuple[int, int]) -> None:
        address, pages = allocation
        assert CARD.card_free(address) == bool(pages)
        if pages:
            del self.ranges[(address - BASE) // PAGE]
            self.used -= pages

    @rule(target=reservations, pages=st.integers(1, 100))
    def reserve(self, pages: int) -> tuple[int, int]:
        address = CARD.card_reserve(0, pages * PAGE)
        at = self.first_fit(pages)
        assert at is not None
        assert address == BASE + at * PAGE
        self.ranges[at] = pages
        return (address, pages)

    @rule(target=mapped, reservation=consumes(reservations), pages=st.integers(1, 10))
    def map(self, reservation: tuple[int, int], pages: int) -> tuple[int, int, int]:
        address, reserved = reservation
        handle = CARD.card_create_pages(0, pages * PAGE)
        assert bool(handle) == (self.used + pages <= CAPACITY_PAGES)
        if not handle:
            return (address, reserved, 0)
        assert CARD.card_map(address, pages * PAGE, handle) == (pages <= reserved)
        assert CARD.card_release_pages(handle)  # the mapping keeps the pages
        if pages > reserved:
            return (address, reserved, 0)
        self.used += pages
        return (address, reserved, pages)

    @rule(mapping=consumes(mapped))
    def unmap(self, mapping: tuple[int, int, int]) -> None:
        address, reserved, pages = mapping
        assert CARD.card_unmap(address, reserved * PAGE) == bool(pages)
        assert CARD.card_unreserve(address, reserved * PAGE)
        del self.ranges[(address - BASE) // PAGE]
        self.used -= pages

    @invariant()
    def the_driver_counts_what_is_there(self) -> None:
        assert CARD.card_used_bytes(0) == (self.used + CONTEXT_PAGES) * PAGE
        assert CARD.card_free_bytes(0) == (CAPACITY_PAGES - self.used) * PAGE

    def teardown(self) -> None:
        for start in list(self.ranges):
            address, size = BASE + start * PAGE, self.ranges[start] * PAGE
            if not CARD.card_free(address):
                CARD.card_unmap(address, size)
                assert CARD.card_unreserve(address, size)
        assert CARD.card_used_bytes(0) == CONTEXT_PAGES * PAGE


class LinuxMemory(Memory):
    """The same where a Linux driver takes address space in chunks, from the top down."""

    placement = "linux"
    first_page = (2**44 - BASE) // PAGE

    def expected(self, pages: int) -> int:
        self.chunks = {
            start: size
            for start, size in self.chunks.items()
            if any(start <= page < start + size for page in self.ranges)
        }
        for start, size in sorted(self.chunks.items()):
            at = self.first_fit(pages, start, start + size)
            if at is not None:
                return at
        wanted, top = -(-pages // CHUNK_PAGES) * CHUNK_PAGES, TOP_PAGES
        for start, size in sorted(self.chunks.items(), reverse=True):
            if top - (start + size) >= wanted:
                break
            top = start
        self.chunks[top - wanted] = wanted
        return top - wanted


for machine in (Memory, LinuxMemory):
    machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemory = Memory.TestCase
TestLinuxMemory = LinuxMemory.TestCase


@pytest.mark.parametrize(("placement", "is_low"), [("linux", False), ("windows", True)])
def test_addresses_tell_linux_from_the_others_as_those_of_real_cards_do(placement: str, is_low: bool) -> None:
    assert (first_address(placement) < 2**44) == is_low


def test_on_wsl_the_memory_of_the_driver_lies_between_the_segments() -> None:
    """As recorded on a card of 128 multiprocessors: 198 MiB of stacks, 240 once a kernel needs more, and handles."""
    code = """
from tests.gpu.emulator.test_card import BASE, CARD, PAGE, place_as
place_as("wsl", sm_count=128, max_threads_per_sm=1536, total_memory_bytes=500 * PAGE)
def taken(pages): return (CARD.card_allocate(0, PAGE * pages) - BASE) // PAGE
used = CARD.card_used_bytes(0)
assert [taken(20), taken(1)] == [99, 119]
CARD.card_launch(None)
assert taken(10) == 121, "one page is the first kernel's"
CARD.card_note_kernel(0, True)
assert taken(8) == 0, "the first stacks have left a hole"
CARD.card_note_handle(0)
assert taken(1) == 13
CARD.card_note_handle(0)
assert taken(77) == 18, "the hole is filled"
assert taken(6) == 131 + 120, "the new stacks lie above"
assert BASE < 2**44
assert CARD.card_used_bytes(0) - used == PAGE * (20 + 1 + 10 + 8 + 1 + 77 + 6), "the driver's own is the context's"
"""
    subprocess.run([sys.executable, "-c", code], check=True)  # no kernel has run in a process that is new


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**64 - PAGE])
def test_an_absurd_size_is_no_memory_and_not_a_small_block(size: int) -> None:
    assert CARD.card_allocate(0, size) == 0
    assert CARD.card_allocate(5, PAGE) == 0


def test_each_card_has_addresses_of_its_own() -> None:
    first, second = CARD.card_allocate(0, 1), CARD.card_allocate(1, 1)
    assert [CARD.card_device_of(ctypes.c_uint64(address)) for address in (first, second)] == [0, 1]
    assert CARD.card_free(first)
    assert CARD.card_free(second)
    assert not CARD.card_free(first)


def test_beside_the_host_a_chunk_goes_where_the_process_has_given_memory_back() -> None:
    """In a process of its own: what else is mapped and given back would decide, too."""
    code = """
import mmap
from tests.gpu.emulator.test_card import CARD, CHUNK_PAGES, PAGE, place_as
place_as("linux-host")
chunk = CHUNK_PAGES * PAGE
first = CARD.card_allocate(0, 1)
host = mmap.mmap(-1, 8 * chunk)
below = CARD.card_allocate(0, chunk)
host.close()
above = CARD.card_allocate(0, chunk)
assert first >= 2**44, first
assert {address % chunk for address in (first, below, above)} == {0}
assert below < above, (below, above)  # by the rule of "linux", each lies below the one before
assert CARD.card_free(above)
assert CARD.card_allocate(0, chunk) == above  # its place was given back
"""
    subprocess.run([sys.executable, "-c", code], check=True)
