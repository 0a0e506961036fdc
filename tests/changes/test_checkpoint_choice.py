"""Which blocks to checkpoint: the fewest operations that save enough, and by what names they go."""

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ullage._errors import UsageError
from ullage.changes.block_choice import expression, positions, setting_of
from ullage.changes.checkpoint_choice import choose_blocks

ROOT = Path(__file__).resolve().parents[2]
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
