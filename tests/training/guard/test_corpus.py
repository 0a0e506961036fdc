"""More than 300 training idioms in four precisions: no error of memory changes a gradient without saying so.

Half of the new idioms are losses that add up over parts, half are not. What is true of each was written down before it
was run, by people who had not read the guard's source.
"""

import random
import zlib

import pytest

from tests.shared.inside import INSIDE, SLOW, inside_with_zeros
from tests.training.guard.test_idioms import NOT_AT_RANDOM

if INSIDE:
    from tests.training.guard.idioms.outcome import (
        NEW_FAMILIES,
        disturbed,
        expected_of,
        idioms,
        in_parts,
        in_precision,
        undisturbed,
    )

SEEDS = 10 if SLOW else 1
PRECISIONS = ("float64", "float32", "bfloat16", "float16")
NOT_SPLIT = frozenset(
    (
        *("binary_weights_with_originals", "ctc_with_flat_targets", "deep_q_weights_over_their_maximum"),
        *("fused_linear_cross_entropy_with_z_loss", "hidden_states_by_stream", "hyper_network_sets_weights"),
        *("mean_over_padding_of_the_longest", "retinanet_positives_per_image", "reversible_block"),
        *("rotary_cache_that_grows", "simpo_collated_in_the_loss", "temporal_ensembling_by_item"),
        "weight_gradient_fused_into_an_accumulator",
    )
)
"""Idioms whose parts add up, which the guard does not find out: it refuses to split them."""
NOT_SPLIT_IN = {
    "float32": {"physics_informed", "r1_every_second_step"},
    "bfloat16": {"physics_informed"},
    "float16": {"physics_informed"},
}
"""The same in a precision only: gradients of gradients, which autograd rounds to the type of their tensor."""
FAIL_ALONE = {
    "bfloat16": {"pyg", "pyg_written_to"},
    "float16": {"pyg", "pyg_written_to", "a_sequence_first", "lstm", "autocast_by_hand"},
}
"""Idioms that PyTorch does not run on the CPU in a precision."""


def _tried(name: str, precision: str, *, is_new: bool) -> tuple[str, str]:
    """Return what comes of errors at operations chosen by number, and of a batch that runs out until it is cut."""
    build = in_precision((idioms(NEW_FAMILIES) if is_new else idioms())[name], precision)
    outcome, expected, operations = undisturbed(build)
    if outcome:
        assert outcome.startswith("refused"), outcome
        return outcome, outcome
    chance = random.Random(zlib.crc32(f"{name} {precision}".encode()))
    found = set()
    precision = "bfloat16" if precision == "float32" and "autocast" in name else precision  # for what is compared
    for _ in range(0 if name in NOT_AT_RANDOM else SEEDS):
        first = chance.randrange(operations)
        second = first + chance.randrange(1, max(operations // 2, 2))
        for at in ({first}, {first, second}):
            one = disturbed(build, expected, at, precision=precision)
            assert not one.startswith("OTHER"), (at, one)
            found.add(one)
    cut = in_parts(build, expected, precision=precision)
    assert not cut.startswith("OTHER"), cut
    return str(sorted(found)), cut


@pytest.mark.by_day(7)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", ["language_models", "vision", "state", "learning"])
@pytest.mark.parametrize("share", range(8))
@inside_with_zeros
def test_a_new_idiom_is_equal_or_refused(family: str, precision: str, share: int) -> str:
    """Whole or in parts; and items that depend on each other are never split."""
    done = []
    for number, (name, expected) in enumerate(expected_of([family]).items()):
        if number % 8 != share:
            continue
        found, cut = _tried(name, precision, is_new=True)
        is_refused = cut.startswith("refused")
        if expected == "coupled":
            assert is_refused or cut == "told", (name, cut)
        else:
            may_be_refused = name in NOT_SPLIT or name in NOT_SPLIT_IN.get(precision, ())
            assert is_refused == may_be_refused, (name, cut)
        done.append(f"{name}: {found}, in parts: {cut}")
    return "\n".join(done)


@pytest.mark.by_day(7)
@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("share", range(24))
@inside_with_zeros
def test_an_older_idiom_is_equal_or_refused(precision: str, share: int) -> str:
    """The idioms of `test_idioms.py`, which has them in float64."""
    done = []
    for number, name in enumerate(idioms()):
        if number % 24 == share and name not in FAIL_ALONE.get(precision, ()):
            done.append(f"{name}: {_tried(name, precision, is_new=False)}")
    return "\n".join(done)


@inside_with_zeros
def test_the_corpus_has_300_idioms() -> str:
    """Each new one has its expectation, and the tables name idioms that exist."""
    new, old = idioms(NEW_FAMILIES), idioms()
    assert new.keys() == expected_of().keys()
    assert len(new.keys() | old.keys()) >= 300
    assert new.keys() > NOT_SPLIT.union(*NOT_SPLIT_IN.values())
    assert old.keys() > set().union(*FAIL_ALONE.values())
    labels = list(expected_of().values())
    return f"{len(old)} and {len(new)}: { ({label: labels.count(label) for label in sorted(set(labels))}) }"
