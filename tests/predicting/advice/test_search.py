"""The search for the cheapest combination; a model of what changes save stands in for the card, so all is known."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.golden.test_report import FITS
from ullage.predicting.advice.search import AdviceSearch
from ullage.predicting.advice.trial import ChangeSetting, ChangeTrial, Combination, combination, excludes
from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients
from ullage.predicting.editing.edit import Recipe

ROOM = 100


def change(key: str, cost: ChangeCost, excluded: Sequence[str] = ()) -> Change:
    return Change(
        key=key,
        name=key,
        cost=cost,
        gradients=Gradients.SAME,
        explanation="",
        excludes=frozenset(excluded),
        settings_for=lambda facts: Applicable(),
        recipe_for=lambda facts, setting: Recipe(snippet=""),
    )


@dataclass
class Card:
    """What a script needs with changes: the largest of several moments, each of which some changes make smaller."""

    moments: list[dict[str, int]]
    """For each moment, its size ("") and what a unit of strength of each change saves of it."""
    seen: list[Combination] = field(default_factory=list)

    def need(self, one: Combination) -> int:
        return max(
            moment[""] - sum(moment.get(part.change.key, 0) * int(part.setting) for part in one.parts)
            for moment in self.moments
        )

    def run(self, combinations: Sequence[Combination]) -> list[ChangeTrial]:
        self.seen += combinations
        return [self.trial(one) for one in combinations]

    def trial(self, one: Combination) -> ChangeTrial:
        assert not any(excludes(a, b) for a, b in itertools.combinations(one.parts, 2)), one.title
        need = self.need(one)
        found = replace(FITS, interval_bytes=(need, need), oom=None)
        return ChangeTrial(combination=one, prediction=found, fits=need <= ROOM)


def settings(changes: Sequence[tuple[Change, int]]) -> dict[str, list[ChangeSetting]]:
    return {
        one.key: [ChangeSetting(change=one, setting=str(strength)) for strength in range(1, strongest + 1)]
        for one, strongest in changes
    }


def every(known: dict[str, list[ChangeSetting]]) -> list[Combination]:
    choices = itertools.product(*([None, *each] for each in known.values()))
    made = [combination([part for part in choice if part is not None]) for choice in choices]
    return [one for one in made if not any(excludes(a, b) for a, b in itertools.combinations(one.parts, 2))]


FREE, SLOW, OTHER, CARDS = ChangeCost


def searched(card: Card, known: dict[str, list[ChangeSetting]]) -> ChangeTrial | None:
    search = AdviceSearch(known, card.need(combination([])), card.run)
    search.singles()
    return search.best()


def test_more_cards_are_the_last_resort() -> None:
    """They are not run where anything else fits; where nothing does, as few as will do, and beside the rest if need be.

    The gains are of one moment of 200 bytes, of which 100 have room.
    """
    known = settings([(change("slow", SLOW), 4), (change("cards", CARDS), 3)])
    card = Card([{"": 200, "slow": 30, "cards": 60}])
    best = searched(card, known)
    assert best is not None
    assert best.combination.title == "slow"
    assert not any(part.change.key == "cards" for one in card.seen for part in one.parts)
    alone = searched(Card([{"": 200, "slow": 5, "cards": 60}]), known)
    assert alone is not None
    assert [part.setting for part in alone.combination.parts] == ["2"]
    both = searched(Card([{"": 200, "slow": 20, "cards": 30}]), known)
    assert both is not None
    assert {part.change.key for part in both.combination.parts} == {"slow", "cards"}
    assert searched(Card([{"": 200, "slow": 1, "cards": 1}]), known) is None


def test_the_cheapest_single_change_that_fits_is_the_answer() -> None:
    known = settings([(change("free", FREE), 1), (change("slow", SLOW), 4), (change("other", OTHER), 1)])
    card = Card(moments=[{"": 130, "free": 5, "slow": 20, "other": 100}])
    best = searched(card, known)
    assert best is not None
    assert [part.text for part in best.combination.parts] == ["slow=2"], "as mild as fits"


def test_what_takes_more_time_at_its_mildest_is_not_made_milder() -> None:
    """It cannot be the answer any more, and each setting is a run."""
    known = settings([(change("slow", SLOW), 8), (change("quick", SLOW), 1)])
    card = Card(moments=[{"": 130, "slow": 20, "quick": 40}])
    search = AdviceSearch(
        known, 130, card.run, time=lambda one: (sum(float(p.setting) for p in one.parts if p.change.key == "slow"), 0)
    )
    search.singles()
    best = search.best()
    assert best is not None
    assert [part.text for part in best.combination.parts] == ["quick=1"]
    assert [one.parts[0].text for one in card.seen] == ["slow=8", "quick=1"]


def test_two_cheap_ones_go_before_a_dear_one() -> None:
    known = settings([(change("a", FREE), 1), (change("b", FREE), 1), (change("other", OTHER), 1)])
    card = Card(moments=[{"": 130, "a": 20, "b": 20, "other": 100}])
    best = searched(card, known)
    assert best is not None
    assert [part.text for part in best.combination.parts] == ["a=1", "b=1"]


def test_what_saves_nothing_alone_may_be_needed_beside_another() -> None:
    """Two moments are fullest: each change makes one smaller, and only both together help."""
    known = settings([(change("a", SLOW), 1), (change("b", SLOW), 1)])
    card = Card(moments=[{"": 130, "a": 50}, {"": 130, "b": 50}])
    best = searched(card, known)
    assert best is not None
    assert len(best.combination.parts) == 2


def test_what_cannot_be_made_together_is_not_tried_together() -> None:
    known = settings([(change("a", FREE, ["b"]), 1), (change("b", FREE), 1), (change("c", SLOW), 1)])
    card = Card(moments=[{"": 130, "a": 10, "b": 12, "c": 20}])
    best = searched(card, known)
    assert best is not None
    assert {part.text for part in best.combination.parts} == {"b=1", "c=1"}


def test_nothing_fits_is_said_and_not_searched_for_ever() -> None:
    known = settings([(change(name, SLOW), 3) for name in "abcde"])
    card = Card(moments=[{"": 1000, **dict.fromkeys("abcde", 1)}])
    assert searched(card, known) is None
    assert len(card.seen) < 30


@pytest.mark.parametrize("seed", range(200))
def test_the_answer_fits_and_nothing_of_it_can_be_left_out_or_made_milder(seed: int) -> None:
    chance = random.Random(seed)
    changes = [
        (change(name, chance.choice([FREE, SLOW, OTHER])), chance.randint(1, 4))
        for name in "abcdef"[: chance.randint(1, 6)]
    ]
    card = Card(
        moments=[
            {"": chance.randint(90, 200), **{one.key: chance.choice([0, 0, 5, 20, 40]) for one, _ in changes}}
            for _ in range(chance.randint(1, 3))
        ]
    )
    known = settings(changes)
    best = searched(card, known)
    fitting = [one for one in every(known) if one.parts and card.need(one) <= ROOM]
    assert (best is not None) == bool(fitting)
    if best is None:
        return
    assert card.need(best.combination) <= ROOM
    assert best.combination.cost == min(one.cost for one in fitting), "no cheaper class would do"
    for part in best.combination.parts:
        rest = best.combination.without(part)
        assert not rest.parts or card.need(rest) > ROOM
        index = known[part.change.key].index(part)
        if index:
            assert card.need(best.combination.with_part(known[part.change.key][index - 1])) > ROOM
    assert len(set(card.seen)) == len(card.seen), "nothing is run twice"
    assert len(card.seen) <= 6 + sum(strongest for _, strongest in changes) + 20
