"""Ranks in groups, and what tells one from the others; of made-up figures."""

import random
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ullage.explaining.fleet.alike import RankFigures, groups_of, why_it_differs
from ullage.explaining.fleet.rank_files import RankFile
from ullage.explaining.fleet.rank_summary import RankSummary

GIB = 1 << 30
USUAL = RankSummary(
    device=0,
    cause="did_not_fail",
    peak_allocated_bytes=60 * GIB,
    peak_reserved_bytes=62 * GIB,
    allocated_bytes=60 * GIB,
    reserved_bytes=61 * GIB,
    requested_bytes=None,
    room_bytes=None,
    failing_line=None,
    retries=0,
    growth_bytes=0,
    growth_line=None,
    entries=1000,
    settings=None,
    cublas_bytes=32 << 20,
    lines={"model.py:12": (40 * GIB, 100), "train.py:7": (20 * GIB, 5)},
    roles={"activations": 40 * GIB, "parameters": 20 * GIB},
)


def figures(*summaries: RankSummary) -> list[RankFigures]:
    """Ranks with these figures, numbered."""
    return [
        RankFigures(
            file=RankFile(path=Path(f"{rank}.pickle"), rank=rank, name=f"rank {rank}", size_bytes=1), summary=one
        )
        for rank, one in enumerate(summaries)
    ]


def test_equal_ranks_are_one_kind() -> None:
    [group] = groups_of(figures(*[USUAL] * 1000))
    assert group.is_kind
    assert len(group.ranks) == 1000


def test_a_continuum_is_one_kind_and_a_gap_divides() -> None:
    """Batches of different lengths: the peaks span a tenth, and no two neighbours are a hundredth apart."""
    chance = random.Random(1)
    peaks = [60 * GIB - chance.randrange(6 * GIB) for _ in range(500)]
    varying = [replace(USUAL, peak_allocated_bytes=peak, peak_reserved_bytes=peak + GIB) for peak in peaks]
    odd = replace(USUAL, peak_allocated_bytes=66 * GIB, peak_reserved_bytes=67 * GIB)
    groups = groups_of(figures(*varying, odd))
    assert [(len(group.ranks), group.is_kind) for group in groups] == [(500, True), (1, False)]


def test_stages_of_a_pipeline_are_kinds_though_their_peaks_are_equal() -> None:
    other = replace(USUAL, lines={"model.py:30": (40 * GIB, 100), "train.py:7": (20 * GIB, 5)})
    groups = groups_of(figures(*[USUAL, other] * 64))
    assert [(len(group.ranks), group.is_kind) for group in groups] == [(64, True), (64, True)]


def test_an_end_that_differs_is_no_matter_of_bytes() -> None:
    """A rank with the same bytes that grows, that failed, or that has another card's workspace."""
    odd = (
        replace(USUAL, growth_line="train.py:9", growth_bytes=1, cause="leak"),
        replace(USUAL, requested_bytes=GIB, cause="truly_full"),
        replace(USUAL, cublas_bytes=8_519_680),
        replace(USUAL, settings="expandable_segments:True"),
    )
    groups = groups_of(figures(*[USUAL] * 100, *odd))
    assert [len(group.ranks) for group in groups] == [100, 1, 1, 1, 1]


def test_two_ranks_that_differ_are_both_told() -> None:
    odd = replace(USUAL, peak_allocated_bytes=70 * GIB, peak_reserved_bytes=71 * GIB)
    groups = groups_of(figures(USUAL, odd))
    assert [len(group.ranks) for group in groups] == [1, 1]


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 3)), min_size=1, max_size=60))
def test_every_rank_is_in_one_group_whatever_the_order(peaks: list[tuple[int, int]]) -> None:
    summaries = [
        replace(USUAL, peak_allocated_bytes=peak * GIB, peak_reserved_bytes=(peak + spare) * GIB)
        for peak, spare in peaks
    ]
    ranks = figures(*summaries)
    groups = groups_of(ranks)
    assert sorted(one.file.rank or 0 for group in groups for one in group.ranks) == list(range(len(ranks)))
    again = groups_of(ranks[::-1])
    assert {frozenset(one.file.rank for one in group.ranks) for group in groups} == {
        frozenset(one.file.rank for one in group.ranks) for group in again
    }


def test_what_a_rank_has_more_of_is_named_with_its_line() -> None:
    more = replace(
        USUAL,
        allocated_bytes=68 * GIB,
        peak_allocated_bytes=68 * GIB,
        peak_reserved_bytes=70 * GIB,
        lines={"model.py:12": (48 * GIB, 120), "train.py:7": (20 * GIB, 5)},
        roles={"activations": 48 * GIB, "parameters": 20 * GIB},
    )
    assert why_it_differs(more, USUAL) == "8.00 GiB more allocated, 8.00 GiB of it activations, 8.00 GiB at model.py:12"
    assert why_it_differs(USUAL, more).startswith("8.00 GiB less allocated, 8.00 GiB of it activations")


def test_memory_in_pieces_and_an_error_of_memory_are_said() -> None:
    pieces = replace(USUAL, peak_reserved_bytes=70 * GIB)
    assert why_it_differs(pieces, USUAL) == (
        "fragmentation: the peak of reserved memory is 10.00 GiB above the peak of allocated memory, on other ranks "
        "2.00 GiB"
    )
    failed = replace(USUAL, requested_bytes=2 * GIB, cause="fragmented", failing_line="model.py:12")
    assert why_it_differs(failed, USUAL) == "out of memory (fragmentation): a request of 2.00 GiB failed at model.py:12"
