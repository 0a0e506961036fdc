"""Which blocks to checkpoint: the fewest operations that save enough, and by what names they go."""

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ullage.base.errors import UsageError
from ullage.predicting.changes.activations.block_choice import choices, choose_blocks, expression, positions, setting_of
from ullage.predicting.changes.activations.checkpoint import CHANGE
from ullage.predicting.changes.training.facts import BlockList, ModelFacts, TrainingFacts

ROOT = Path(__file__).resolve().parents[3]
LISTS = [("layer1", 3), ("down.0.blocks", 2)]


def is_enough(chosen: tuple[int, ...], saved: list[int], needed: int) -> bool:
    """Whether a subset saves what is needed, when the loss is computed and when each block is computed again."""
    limit = sum(saved) - needed
    kept = [sum(saved[other] for other in range(number) if other not in chosen) + saved[number] for number in chosen]
    return sum(saved[number] for number in chosen) >= needed and all(each <= limit for each in kept)


def test_the_choice_is_the_best_of_all_subsets() -> None:
    drawn = random.Random(0)
    found = 0
    for _ in range(600):
        count = drawn.randint(1, 8)
        saved = [drawn.randint(0, 9) * drawn.choice([1, 10]) for _ in range(count)]
        flops = [drawn.randint(1, 9) for _ in range(count)]
        needed = drawn.randint(1, sum(saved) + 1)
        chosen = choose_blocks(saved, flops, needed)
        every = itertools.chain.from_iterable(itertools.combinations(range(count), n) for n in range(1, count + 1))
        enough = [each for each in every if is_enough(each, saved, needed)]
        if not enough:
            assert chosen == tuple(number for number, size in enumerate(saved) if size)
            continue
        found += 1
        assert is_enough(chosen, saved, needed)
        assert sum(flops[n] for n in chosen) == min(sum(flops[n] for n in each) for each in enough)
    assert found > 100


def test_of_equal_blocks_the_first_are_chosen() -> None:
    assert choose_blocks([10] * 12, [1] * 12, 35) == (0, 1, 2, 3)
    assert choose_blocks([10] * 12, [1] * 12, 0) == ()
    assert choose_blocks([10] * 12, [1] * 12, 1000) == tuple(range(12))


def test_many_different_blocks_are_chosen_among_quickly() -> None:
    drawn = random.Random(1)
    saved = [drawn.randint(1, 10**9) for _ in range(80)]
    flops = [drawn.randint(1, 10**12) for _ in range(80)]
    needed = sum(saved) // 2
    chosen = choose_blocks(saved, flops, needed)
    assert is_enough(chosen, saved, needed)


@pytest.mark.parametrize(
    ("setting", "chosen", "code"),
    [
        ("all", [0, 1, 2, 3, 4], "[*model.layer1, *model.down[0].blocks]"),
        ("every_second", [0, 2, 4], "[*model.layer1, *model.down[0].blocks][::2]"),
        ("first:4", [0, 1, 2, 3], "[*model.layer1, *model.down[0].blocks][:4]"),
        ("only:layer1.1-2,down.0.blocks.1", [1, 2, 4], "[*model.layer1[1:3], model.down[0].blocks[1]]"),
        ("only:layer1.1-2", [1, 2], "model.layer1[1:3]"),
    ],
)
def test_settings_name_blocks(setting: str, chosen: list[int], code: str) -> None:
    every = positions("all", LISTS)
    assert positions(setting, LISTS) == [every[number] for number in chosen]
    assert setting_of(positions(setting, LISTS), LISTS) == setting
    assert expression("model", setting, LISTS) == code


@pytest.mark.parametrize("setting", ["", "half", "only:", "only:layer9.0", "only:layer1.3", "only:layer1.2-1"])
def test_a_setting_that_names_no_block_is_an_error(setting: str) -> None:
    with pytest.raises(UsageError):
        positions(setting, LISTS)


@pytest.mark.skipif("ULLAGE_SLOW" not in os.environ, reason="runs every subset of three models: ULLAGE_SLOW=1")
def test_on_cards_the_choice_is_within_three_percent_of_the_best_subset() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/advise/checkpoint_subsets.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_search_goes_through_is_each_the_least_computation_for_what_it_saves() -> None:
    saved, flops = [40, 30, 10, 20], [4, 1, 4, 4]
    offered = choices(saved, flops)
    totals = [sum(saved[number] for number in each) for each in offered]
    assert offered[0] == (1,), "the block that saves most by operation"
    assert totals == sorted(set(totals))
    assert totals[-1] == 100
    assert choices([5, 5, 5], [1, 1, 1]) == [(0,), (0, 1), (0, 1, 2)]


def test_the_settings_name_the_blocks_of_the_choice() -> None:
    """Of two stages the second saves more by operation: the search begins there, and the lines name its blocks."""
    lists = [
        BlockList(path="a", kind="A", count=2, parameter_bytes=1, saved_by_block=[10, 10], flops_by_block=[9, 9]),
        BlockList(path="b", kind="B", count=2, parameter_bytes=1, saved_by_block=[30, 30], flops_by_block=[1, 1]),
    ]
    model = ModelFacts(kind="Net", library="", names=[], block_lists=lists, parameter_bytes=4, dtypes=[])
    settings = CHANGE.settings_for(TrainingFacts(model=model)).settings
    assert settings[0] == "only:b.0"
    assert settings[-1] == "all"
    assert CHANGE.title("only:b.0-1") == "activation checkpointing of b.0-1"
    assert "model.b[0:2]" in CHANGE.recipe_for(TrainingFacts(model=model), "only:b.0-1").snippet
    assert CHANGE.added_flops is not None
    assert CHANGE.added_flops(TrainingFacts(model=model), "only:a.0,b.1") == 10
