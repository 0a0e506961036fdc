"""The emulated card's memory against a plain model: first fit, ascending, 2 MiB pages, never more than there is."""

import ctypes

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ullage.emulator import library

PAGE = 2 << 20
CAPACITY_PAGES = 64
CONTEXT_PAGES = 3


def card_library() -> ctypes.CDLL:
    figures = dict.fromkeys(library.FIGURES, 1) | {
        "total_memory_bytes": (CAPACITY_PAGES + CONTEXT_PAGES) * PAGE,
        "context_bytes": CONTEXT_PAGES * PAGE,
    }
    library.describe_cards("a card for tests", figures, count=2, cuda_number=13000, cudnn=91900)
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


CARD = card_library()
BASE = CARD.card_allocate(0, 1)
CARD.card_free(BASE)


def pages_of(size: int) -> int:
    return -(-size // PAGE)


class Memory(RuleBasedStateMachine):
    """cudaMalloc and cuMem* of one card, side by side with a dictionary of ranges."""

    allocations = Bundle("allocations")
    reservations = Bundle("reservations")
    mapped = Bundle("mapped")

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[int, int] = {}  # first page -> pages, both kinds
        self.used = 0

    def first_fit(self, pages: int) -> int:
        at = 0
        for start in sorted(self.ranges):
            if start - at >= pages:
                break
            at = start + self.ranges[start]
        return at

    @rule(target=allocations, size=st.integers(1, 20 * PAGE))
    def allocate(self, size: int) -> tuple[int, int]:
        pages = pages_of(size)
        address = CARD.card_allocate(0, size)
        if self.used + pages > CAPACITY_PAGES:
            assert address == 0
            return (0, 0)
        assert address == BASE + self.first_fit(pages) * PAGE
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
        assert address == BASE + self.first_fit(pages) * PAGE
        self.ranges[(address - BASE) // PAGE] = pages
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


Memory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemory = Memory.TestCase


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
