"""Batches under a budget of tokens: every item once, few shapes, ranks alike, and a run that goes on where it was."""

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared import fresh
from ullage import TokenBudgetBatchSampler, UsageError

DOCUMENT = Path(__file__).parents[3] / "docs/variable_lengths.md"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # small tensors; a second thread only waits for a core


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Lengths and settings with which every item fits."""

    lengths: list[int]
    settings: dict[str, Any]
    ranks: int = 1
    epoch: int = 0

    def sampler(self, rank: int = 0) -> TokenBudgetBatchSampler:
        made = TokenBudgetBatchSampler(self.lengths, num_replicas=self.ranks, rank=rank, **self.settings)
        made.set_epoch(self.epoch)
        return made

    def batches(self, rank: int = 0) -> list[tuple[int, ...]]:
        return [tuple(batch) for batch in self.sampler(rank)]

    def dealt(self) -> list[list[tuple[int, ...]]]:
        """Return the batches of each rank."""
        return [self.batches(rank) for rank in range(self.ranks)]

    def shape(self, batch: tuple[int, ...]) -> tuple[int, int]:
        """Return items and padded length, in plain arithmetic."""
        bucket, longest = self.settings["bucket"], max(self.lengths[index] for index in batch)
        return len(batch), (longest + bucket - 1) // bucket * bucket

    def cost(self, batch: tuple[int, ...]) -> int:
        items, length = self.shape(batch)
        return items * length


@st.composite
def cases(draw: st.DrawFn, most_ranks: int = 6) -> Case:
    """Few or many items, of few or many lengths, with any settings."""
    longest, bucket = draw(st.integers(1, 300)), draw(st.integers(1, 64))
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=80))
    least = -(-max(lengths) // bucket) * bucket
    ranks = draw(st.integers(1, most_ranks))
    chosen = {
        "max_tokens": draw(st.integers(least, least * 8)),
        "bucket": bucket,
        "max_items": draw(st.none() | st.integers(1, 6)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 1 << 70)),
        "largest_first": draw(st.booleans()),
    }
    return Case(lengths=lengths, settings=chosen, ranks=ranks, epoch=draw(st.integers(0, 5)))


def batches_alone(case: Case) -> int:
    """Return how many batches an epoch has before they are dealt."""
    return len(replace(case, ranks=1).batches())


@given(cases(most_ranks=1))
def test_every_index_comes_exactly_once_and_no_batch_costs_too_much(case: Case) -> None:
    """On one rank an epoch is the data set, each batch within the budget and `max_items`, with `drop_last` or not."""
    for drop_last in (False, True):
        tried = replace(case, settings=case.settings | {"drop_last": drop_last})
        batches = tried.batches()
        assert sorted(index for batch in batches for index in batch) == list(range(len(case.lengths)))
        assert all(case.cost(batch) <= case.settings["max_tokens"] for batch in batches)
        assert all(len(batch) <= (case.settings["max_items"] or len(batch)) for batch in batches)
        assert len(tried.sampler()) == len(batches)


@given(cases(most_ranks=1))
def test_there_are_at_most_two_shapes_a_bucket_the_same_in_every_epoch(case: Case) -> None:
    """All batches of a bucket have as many items as fit but for one; `shapes` and `padded_length` say what they are."""
    per_epoch = [Counter(map(case.shape, replace(case, epoch=epoch).batches())) for epoch in range(3)]
    assert per_epoch[0] == per_epoch[1] == per_epoch[2]
    for length in {length for _, length in per_epoch[0]}:
        most = min(case.settings["max_tokens"] // length, case.settings["max_items"] or len(case.lengths))
        partly = [count for (items, at), count in per_epoch[0].items() if at == length and items != most]
        assert partly in ([], [1])
    sampler = case.sampler()
    assert sorted(sampler.shapes) == sorted(per_epoch[0])
    costs = [items * length for items, length in sampler.shapes]
    assert costs == sorted(costs, reverse=True)
    assert all(sampler.padded_length(batch) == case.shape(tuple(batch))[1] for batch in sampler)
    assert sampler.round_up(max(case.lengths)) == max(length for _, length in per_epoch[0])


@given(cases())
def test_every_rank_gets_as_many_batches_and_all_items_are_dealt(case: Case) -> None:
    """Batches that do not go evenly are dealt a second time, never to the same rank; nothing is left out."""
    dealt = case.dealt()
    assert {len(batches) for batches in dealt} == {len(case.sampler())} == {-(-batches_alone(case) // case.ranks)}
    assert all(len(set(batches)) == len(batches) for batches in dealt)
    times = Counter(batch for batches in dealt for batch in batches)
    assert sorted(index for batch in times for index in batch) == list(range(len(case.lengths)))
    assert max(times.values()) <= -(-case.ranks // len(times)) + (len(times) >= case.ranks > 1)


@given(cases())
def test_with_drop_last_no_batch_is_dealt_twice(case: Case) -> None:
    """Fewer batches are left out than there are ranks; ranks that would get none are refused."""
    tried = replace(case, settings=case.settings | {"drop_last": True})
    alone = batches_alone(case)
    if alone < case.ranks:
        with pytest.raises(UsageError, match="too few for"):
            tried.sampler()
        return
    dealt = tried.dealt()
    assert {len(batches) for batches in dealt} == {len(tried.sampler())} == {alone // case.ranks}
    everything = [batch for batches in dealt for batch in batches]
    indices = [index for batch in everything for index in batch]
    assert len(set(everything)) == len(everything) == alone - alone % case.ranks
    assert len(set(indices)) == len(indices)


@given(cases())
def test_ranks_at_the_same_position_have_like_batches(case: Case) -> None:
    """As many rounds are of one shape as there can be; of the others none has a cost within another's span.

    The first round may be an exception: it has whatever costs most.
    """
    rounds = [list(map(case.shape, batches)) for batches in zip(*case.dealt(), strict=True)]
    rest = rounds[1:] if case.settings["largest_first"] else rounds
    times = Counter(shape for shapes in rest for shape in shapes)
    mixed = [shapes for shapes in rest if len(set(shapes)) > 1]
    assert len(rest) - len(mixed) == sum(count // case.ranks for count in times.values())
    costs = [sorted(items * length for items, length in shapes) for shapes in mixed]
    assert all(lower[-1] <= upper[0] for lower, upper in pairwise(sorted(costs)))


@given(cases())
def test_the_batch_that_costs_most_is_the_first_of_each_rank(case: Case) -> None:
    """With `largest_first` no rank, at any later position, has a batch that costs more than any rank's first."""
    tried = replace(case, settings=case.settings | {"largest_first": True})
    dealt = tried.dealt()
    least = min(case.cost(batches[0]) for batches in dealt)
    assert all(case.cost(batch) <= least for batches in dealt for batch in batches[1:])


@given(cases(most_ranks=1))
def test_without_shuffle_batches_come_by_their_first_index(case: Case) -> None:
    """A bucket is filled in the order of indices; every epoch is the same."""
    tried = replace(case, settings=case.settings | {"shuffle": False, "largest_first": False})
    batches = tried.batches()
    assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)
    by_bucket: dict[int, list[int]] = {}
    for batch in batches:
        by_bucket.setdefault(case.shape(batch)[1], []).extend(batch)
    assert all(indices == sorted(indices) for indices in by_bucket.values())
    assert replace(tried, epoch=case.epoch + 1).batches() == batches


def test_each_epoch_and_seed_has_an_order_of_its_own() -> None:
    """Items are with others and batches come in another order; the same epoch comes out the same again."""
    case = Case(lengths=[1 + index % 90 for index in range(400)], settings={"max_tokens": 512, "bucket": 32})
    orders = [replace(case, epoch=epoch).batches() for epoch in (0, 1, 2, 0)]
    orders.append(replace(case, epoch=1, settings=case.settings | {"seed": 1}).batches())
    assert orders[0] == orders[3]
    differing = [orders[0], orders[1], orders[2], orders[4]]
    assert len({tuple(order) for order in differing}) == 4
    assert len({tuple(sorted(map(tuple, map(sorted, order)))) for order in differing}) == 4
    assert len({tuple(map(case.shape, order)) for order in differing}) == 4


def test_no_item_is_left_out_epoch_after_epoch() -> None:
    """What `drop_last` leaves out, and what is dealt twice without it, is drawn anew."""
    case = Case(
        lengths=[*[30] * 50, 100, 200],
        settings={"max_tokens": 320, "bucket": 32, "drop_last": True},
        ranks=4,
    )
    assert batches_alone(case) % case.ranks == 3
    seen, twice = Counter[int](), Counter[int]()
    for epoch in range(60):
        once = replace(case, epoch=epoch)
        seen.update(index for batches in once.dealt() for batch in batches for index in batch)
        dealt = replace(once, settings=case.settings | {"drop_last": False}).dealt()
        times = Counter(index for batches in dealt for batch in batches for index in batch)
        twice.update(index for index, count in times.items() if count == 2)
    assert set(seen) == set(twice) == set(range(52))
    assert max(seen.values()) < 60


def test_ranks_hardly_wait_for_each_other() -> None:
    """Of what 8 ranks could do in an epoch of lengths such as texts have, under 1 % is lost to waiting."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5.0, 0.8, 20_000), 1, 2048).astype(int).tolist()
    case = Case(lengths=lengths, settings={"max_tokens": 8192, "bucket": 64}, ranks=8)
    rounds = list(zip(*case.dealt(), strict=True))
    time_taken = 8 * sum(max(map(case.cost, batches)) for batches in rounds)
    assert sum(case.cost(batch) for batches in rounds for batch in batches) > 0.99 * time_taken


@settings(deadline=None)  # one sampler a position
@given(cases(), st.data())
def test_a_state_goes_on_with_the_very_next_batch(case: Case, data: st.DataObject) -> None:
    """At every position of an epoch, on another rank's state too, and into the epoch after; JSON holds the state."""
    rank = data.draw(st.integers(0, case.ranks - 1))
    whole, next_epoch = case.batches(rank), replace(case, epoch=case.epoch + 1).batches(rank)
    saving = case.sampler()
    going = iter(saving)
    for position in range(len(whole) + 1):
        state = json.loads(json.dumps(saving.state_dict()))
        resumed = TokenBudgetBatchSampler(case.lengths, num_replicas=case.ranks, rank=rank, **case.settings)
        resumed.load_state_dict(state)
        assert (resumed.epoch, resumed.start) == (case.epoch, position)
        assert resumed.state_dict() == state
        resumed.set_epoch(resumed.epoch)
        assert [tuple(batch) for batch in resumed] == whole[position:]
        assert resumed.state_dict()["position"] == len(resumed) == len(whole)
        resumed.set_epoch(case.epoch + 1)
        assert [tuple(batch) for batch in resumed] == next_epoch
        next(going, None)


def test_lightning_finds_where_to_set_the_epoch() -> None:
    """It calls `set_epoch` of `loader.batch_sampler.sampler`, and else every epoch would have one order."""
    sampler = TokenBudgetBatchSampler([5] * 20, max_tokens=64)
    sampler.sampler.set_epoch(2)
    assert sampler.epoch == 2


def test_a_loop_that_is_left_begins_anew() -> None:
    """Only a loaded state goes on: as with any DataLoader, a second `for` begins at the front."""
    sampler = TokenBudgetBatchSampler([5] * 20, max_tokens=64)
    first = list(sampler)
    for _, _ in zip(range(3), sampler, strict=False):
        pass
    assert list(sampler) == first
    state = sampler.state_dict(consumed=4)
    sampler.load_state_dict(state)
    assert [list(sampler), list(sampler)] == [first[4:], first]


def test_an_iteration_from_before_counts_no_more() -> None:
    """What a forgotten iterator hands out does not move the position of the one that is at work."""
    sampler = TokenBudgetBatchSampler([5] * 20, max_tokens=64)
    forgotten = iter(sampler)
    next(forgotten)
    current = iter(sampler)
    for iterator in (current, forgotten, forgotten):
        next(iterator)
    assert sampler.state_dict()["position"] == 1
    sampler.set_epoch(1)
    next(current)
    assert sampler.state_dict()["position"] == 0


def test_what_was_consumed_is_counted_from_the_beginning_of_the_epoch() -> None:
    """More than was handed out, and less than was done before a resume, cannot be."""
    sampler = TokenBudgetBatchSampler([5] * 20, max_tokens=64)
    iterator = iter(sampler)
    for _ in range(6):
        next(iterator)
    assert sampler.state_dict()["position"] == 6
    sampler.load_state_dict(sampler.state_dict(consumed=4))
    next(iter(sampler))
    assert [sampler.state_dict(consumed=n)["position"] for n in (4, 5)] == [4, 5]
    for wrong in (3, 6):
        with pytest.raises(
            UsageError, match=rf"consumed={wrong} is out of range: in epoch 0 this sampler has returned batches 4 to 5"
        ):
            sampler.state_dict(consumed=wrong)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_tokens": 128}, "saved with max_tokens=64, but this sampler has max_tokens=128, so"),
        ({"seed": 3, "shuffle": False}, "shuffle=True, seed=0, but this sampler has shuffle=False, seed=3"),
        ({"bucket": 32}, "bucket=64, but this sampler has bucket=32"),
        ({"num_replicas": 2, "rank": 1}, "num_replicas=1, but this sampler has num_replicas=2"),
        ({"lengths": [5] * 19}, "lengths='20 lengths"),
        ({"lengths": [5] * 19 + [6]}, "lengths='20 lengths"),
    ],
)
def test_a_state_of_another_sampler_says_what_differs(change: dict[str, Any], says: str) -> None:
    """Batches would be others: the settings that differ are named, with both values."""
    state = TokenBudgetBatchSampler([5] * 20, max_tokens=64).state_dict()
    other = TokenBudgetBatchSampler(**({"lengths": [5] * 20, "max_tokens": 64} | change))
    with pytest.raises(UsageError, match=says):
        other.load_state_dict(state)
    assert other.start == 0


def test_what_is_no_state_is_refused() -> None:
    """A state is what `state_dict` returned, with a position that its epoch has."""
    sampler = TokenBudgetBatchSampler([5] * 20, max_tokens=64)
    for wrong in ({}, {"epoch": 0, "position": 2}, sampler.state_dict() | {"epoch": -1}, [1, 2], None):
        with pytest.raises(UsageError, match="is not the state of a TokenBudgetBatchSampler but"):
            sampler.load_state_dict(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="position 21; expected at most 20"):
        sampler.load_state_dict(sampler.state_dict() | {"position": 21})


def test_an_item_that_is_too_long_is_refused_alone_or_left_out() -> None:
    """By what it costs, which is its padded length: 100 is 128 in buckets of 64."""
    lengths = [10, 100, 20, 300, 30]
    with pytest.raises(
        UsageError, match=r"item 1 has length 100, padded to 128 \(2 items are too long\); expected at most"
    ):
        TokenBudgetBatchSampler(lengths, max_tokens=127)
    with pytest.raises(UsageError, match=r"item 3 has length 300, padded to 320; .*max_tokens=200: .*max_tokens=320"):
        TokenBudgetBatchSampler(lengths, max_tokens=200)
    alone = TokenBudgetBatchSampler(lengths, max_tokens=127, oversize="alone")
    assert sorted(map(sorted, alone)) == [[0], [1], [2], [3], [4]]
    assert next(iter(alone)) == [3]
    drop = TokenBudgetBatchSampler(lengths, max_tokens=192, oversize="drop")
    assert sorted(index for batch in drop for index in batch) == [0, 1, 2, 4]
    assert (drop.dropped, alone.dropped) == (1, 0)
    assert drop.padded_length([0, 3]) == 320
    with pytest.raises(UsageError, match="all 5 items are longer than max_tokens=63 and are left out"):
        TokenBudgetBatchSampler(lengths, max_tokens=63, oversize="drop")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": np.array([], dtype=int)}, "lengths is empty"),
        ({"lengths": 7}, "lengths is 7; expected a list, an array or a tensor"),
        ({"lengths": np.ones((2, 2), dtype=int)}, r"shape \(2, 2\); expected a one-dimensional array"),
        ({"lengths": np.array([1.0, 2.0])}, "array of float64"),
        ({"lengths": [5, 5, 0]}, "the length of item 2 is 0; expected a whole number from 1 to"),
        ({"lengths": np.array([5, -5])}, "the length of item 1 is -5; expected"),
        ({"lengths": [5, 2.0]}, r"the length of item 1 is 2.0; expected"),
        ({"lengths": [5, True]}, "the length of item 1 is True; expected"),
        ({"lengths": [5, None]}, "the length of item 1 is None; expected"),
        ({"lengths": ["abc"]}, "the length of item 0 is 'abc'; expected"),
        ({"lengths": [1 << 70]}, "the length of item 0 is 1180591620717411303424; expected"),
        ({"max_tokens": 0}, "max_tokens is 0; expected a whole number of 1 or more"),
        ({"max_tokens": 4096.0}, "max_tokens is 4096.0; expected"),
        ({"bucket": 0}, "bucket is 0; expected"),
        ({"bucket": -64}, "bucket is -64; expected"),
        ({"max_items": 0}, "max_items is 0; expected"),
        ({"seed": -1}, "seed is -1; expected a whole number of 0 or more"),
        ({"oversize": "skip"}, "oversize='skip' is not allowed; expected 'error', 'alone' or 'drop'"),
        ({"num_replicas": 0, "rank": 0}, "num_replicas is 0; expected"),
        ({"num_replicas": 2, "rank": 2}, "rank=2 is out of range for num_replicas=2; expected a rank from 0 to 1"),
        ({"num_replicas": 2, "rank": -1}, "rank is -1; expected"),
        ({"num_replicas": 2}, "num_replicas=2 was given without rank=, and torch.distributed is not initialised"),
        ({"rank": 1}, "rank=1 is out of range for num_replicas=1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(change: dict[str, Any], says: str) -> None:
    """With the value, the place and what was expected."""
    with pytest.raises(UsageError, match=says) as caught:
        TokenBudgetBatchSampler(**({"lengths": [5] * 20, "max_tokens": 64} | change))
    assert "\n" not in str(caught.value)


def test_calls_with_what_cannot_be_are_refused() -> None:
    """An epoch is a whole number, and a batch has an item."""
    sampler = TokenBudgetBatchSampler([5] * 20, max_tokens=64)
    for wrong in (-1, 1.5, "2"):
        with pytest.raises(UsageError, match="epoch is"):
            sampler.set_epoch(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no indices"):
        sampler.padded_length([])


@pytest.mark.parametrize("kind", ["list", "int32", "uint8", "uint64", "numpy ints", "tuple", "generator", "mixed"])
def test_lengths_of_any_whole_type_are_the_same(kind: str) -> None:
    """And they are copied: what the caller does to an array afterwards changes nothing."""
    plain = [5, 250, 77, 128, 200, 3]
    given_as = {
        "list": plain,
        "tuple": tuple(plain),
        "generator": (length for length in plain),
        "numpy ints": [np.int32(length) for length in plain],
        "mixed": [np.uint8(length) if length % 2 else length for length in plain],
    }.get(kind)
    lengths = np.array(plain, dtype=kind) if given_as is None else given_as
    sampler = TokenBudgetBatchSampler(lengths, max_tokens=512)
    if isinstance(lengths, np.ndarray):
        lengths[:] = 1
    expected = TokenBudgetBatchSampler(plain, max_tokens=512)
    assert list(sampler) == list(expected)
    assert sampler.state_dict() == expected.state_dict()


ORDER = """
from ullage import TokenBudgetBatchSampler
sampler = TokenBudgetBatchSampler([1 + 7 * n % 40 for n in range(24)], 64, bucket=16, seed=11, num_replicas=2, rank=1)
sampler.set_epoch(3)
print(list(sampler))
"""
RANK_1 = "[[8, 4], [17], [22], [16], [2, 0, 18, 7], [6, 13], [14, 15]]"


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_order_is_the_same_in_every_process_and_stays_what_it_is(hash_seed: str) -> None:
    """A run may go on under another version of ullage: whoever changes the order breaks it, and this test."""
    assert fresh.run(ORDER, environment={"PYTHONHASHSEED": hash_seed}).stdout.strip() == RANK_1


def test_a_million_lengths_are_planned_in_two_seconds() -> None:
    """From a list to the first batch, in this process's own time."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5.5, 0.8, 1_000_000), 1, 4096).astype(int).tolist()
    began = time.process_time()
    sampler = TokenBudgetBatchSampler(lengths, max_tokens=16384, num_replicas=8, rank=3)
    next(iter(sampler))
    assert time.process_time() - began < 2


WITH_TORCH = """
import gc, itertools, ullage
ullage.emulate("T4")
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler
from torch.testing._internal.distributed.fake_pg import FakeStore
from ullage import TokenBudgetBatchSampler, UsageError
gc.freeze()

lengths = [1 + 37 * n % 200 for n in range(150)]
items = [torch.full((length,), n) for n, length in enumerate(lengths)]
answers = {}


def make(**settings):
    return TokenBudgetBatchSampler(lengths, max_tokens=512, **settings)


def load(sampler, workers):
    def collate(some):
        width = sampler.round_up(max(len(item) for item in some))
        padded = torch.stack([torch.nn.functional.pad(item, (0, width - len(item))) for item in some])
        return padded.shape, [int(item[0]) for item in some]

    return DataLoader(items, batch_sampler=sampler, num_workers=workers, collate_fn=collate)


for workers in (0, 2):
    sampler = make()
    whole = list(sampler)
    loader = load(sampler, workers)
    got = list(loader)
    ahead = []
    again = []
    for stop in (1, len(sampler) // 2, len(sampler)):
        sampler = make()
        for n, _ in enumerate(load(sampler, workers), start=sampler.start + 1):
            if n == stop:
                break
        ahead.append(sampler.state_dict()["position"] - stop)
        resumed = make()
        resumed.load_state_dict(sampler.state_dict(consumed=stop))
        again.append([indices for _, indices in load(resumed, workers)] == whole[stop:])
    answers[workers] = {
        "same": [indices for _, indices in got] == whole,
        "shapes": sorted(set(map(tuple, (shape for shape, _ in got)))) == sorted(sampler.shapes),
        "len": len(loader) == len(got),
        "ahead": ahead,
        "again": again,
    }

answers["tensor"] = [
    list(TokenBudgetBatchSampler(kind, max_tokens=512)) == whole
    for kind in (torch.tensor(lengths), torch.tensor(lengths, dtype=torch.int16), list(torch.tensor(lengths)))
]
answers["refused"] = []
for wrong in (torch.tensor([1.5, 2]), torch.tensor(3), torch.ones(2, 2, dtype=torch.int), torch.tensor([True])):
    try:
        TokenBudgetBatchSampler(wrong, max_tokens=512)
    except UsageError as error:
        answers["refused"].append(str(error))

# One item a batch: then batches are samples, and DistributedSampler's rules for samples are ours for batches.
answers["counts"] = []
for n, ranks, drop_last in itertools.product((1, 2, 7, 8, 9, 31), (1, 2, 3, 8), (False, True)):
    if drop_last and n < ranks:
        continue
    theirs = [list(DistributedSampler(range(n), ranks, r, drop_last=drop_last)) for r in range(ranks)]
    ours = [
        list(itertools.chain(*TokenBudgetBatchSampler(
            lengths[:n], 512, max_items=1, num_replicas=ranks, rank=r, drop_last=drop_last
        )))
        for r in range(ranks)
    ]
    answers["counts"].append([
        list(map(len, theirs)) == list(map(len, ours)), len(set(sum(theirs, []))) == len(set(sum(ours, [])))
    ])

distributed.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
answers["found"] = list(make()) == list(make(num_replicas=4, rank=2)) != list(make(num_replicas=1, rank=0))
answers["overruled"] = list(make(num_replicas=1, rank=0)) == whole
tell(answers)
"""


@pytest.fixture(scope="module")
def with_torch() -> Any:
    """What a process with PyTorch found, once for the tests below."""
    return fresh.answer(WITH_TORCH, environment=ONE_THREAD)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_data_loader_goes_by_it_and_goes_on(with_torch: Any, workers: str) -> None:
    """The loader's batches are the sampler's, padded to its shapes; with `consumed`, none is lost to workers ahead."""
    found = with_torch[workers]
    assert found["same"]
    assert found["shapes"]
    assert found["len"]
    assert found["again"] == [True] * 3
    assert found["ahead"] == ([0, 0, 0] if workers == "0" else [4, 4, 0])


def test_tensors_of_lengths_are_read(with_torch: Any) -> None:
    """Whole numbers of any type; others are refused as anywhere."""
    assert with_torch["tensor"] == [True] * 3
    refused = with_torch["refused"]
    assert [text.split(";")[0] for text in refused] == [
        "the length of item 0 is 1.5",
        "lengths is tensor(3)",
        "the length of item 0 is [1, 1]",
        "the length of item 0 is True",
    ]


def test_batches_are_dealt_as_distributed_sampler_deals_samples(with_torch: Any) -> None:
    """As many for each rank and as many different ones, with `drop_last` and without."""
    assert len(with_torch["counts"]) > 30
    assert all(all(same) for same in with_torch["counts"])


def test_ranks_come_from_torch_distributed(with_torch: Any) -> None:
    """Where it is initialised; what is passed counts before it."""
    assert with_torch["found"]
    assert with_torch["overruled"]


DOCUMENT_TWICE = """
import gc, os, runpy, ullage
ullage.emulate("T4")
import torch
gc.freeze()
os.chdir(os.environ["FOLDER"])
ends = []
for start in range(2):
    end = runpy.run_path("train.py", run_name="__main__")
    saved = torch.load("run.pt")["sampler"]
    ends.append([end["guard"]._event_log.step, len(end["sampler"]), saved["epoch"], saved["position"]])
tell(ends)
"""


def test_the_documents_example_runs_and_goes_on(tmp_path: Path) -> None:
    """As it stands in docs/variable_lengths.md: a second start does what the first had not saved, and no more."""
    text = DOCUMENT.read_text()
    (tmp_path / "train.py").write_text(text.split("```python\n")[1].split("```")[0])
    first, second = fresh.answer(DOCUMENT_TWICE, environment=ONE_THREAD | {"FOLDER": str(tmp_path)})
    steps, batches, epoch, position = first
    assert (steps, epoch) == (2 * batches, 1)
    assert 0 < position < batches
    assert second == [batches - position, batches, epoch, position]
    assert len(text.splitlines()) <= 40
