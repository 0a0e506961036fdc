"""A recipe that was measured more than once: how far the real card is from itself stands beside the emulated one."""

from dataclasses import replace

from benchmarks.real_cards.case import Case, Figure, Origin, Result
from benchmarks.real_cards.repeats import Between, repeats_of, section_of

CASE = Case(
    name="one",
    source="fitcheck",
    what="a model, 2 x 512",
    origins=(Origin(name="fitcheck-llm", revision="0.3.1", licence="MIT"),),
    file="a.json",
    card="T4",
    gpu="T4",
    torch_published="2.10.0",
    torch="2.10.0",
    is_recipe=True,
)


def result(name: str, published: int, emulated: int, **named: tuple[int, int]) -> Result:
    figures = {
        "allocated": Figure(published=100, emulated=100),
        "reserved": Figure(published=published, emulated=emulated),
    }
    return Result.judged(case=name, figures=figures, intervals=named)


def test_what_was_measured_twice_is_one_row_and_what_was_not_is_none() -> None:
    cases = [CASE, replace(CASE, name="two"), replace(CASE, name="other", what="a model, 2 x 1024")]
    results = {
        "fitcheck": {
            "one": result("one", 1000, 1010, reserved=(990, 1020)),
            "two": result("two", 1030, 1010),
            "other": result("other", 5000, 5000),
        }
    }
    (found,) = repeats_of(cases, results)
    assert (found.recipe, found.runs) == ("a model, 2 x 512", 2)
    assert found.published["reserved"] == Between(low=1000, high=1030)
    assert found.emulated["reserved"] == Between(low=990, high=1020)
    lines = section_of([found])
    assert "For 1 of 1 recipes, the measured reserved peaks differ by more than 2 %," in " ".join(lines)
    assert lines[-1] == "| a model, 2 x 512 | 2 | 100 | 100 | 1,000 to 1,030 (3.00%) | 990 to 1,020 (3.03%) |"


def test_cases_that_merely_look_alike_are_no_repeats() -> None:
    cases = [replace(CASE, is_recipe=False), replace(CASE, name="two", is_recipe=False)]
    results = {"fitcheck": {"one": result("one", 1, 1), "two": result("two", 2, 2)}}
    assert repeats_of(cases, results) == []
    assert section_of([]) == []


def test_another_card_is_no_repeat_and_neither_is_what_was_not_run() -> None:
    cases = [CASE, replace(CASE, name="two", card="L4"), replace(CASE, name="three")]
    results = {"fitcheck": {"one": result("one", 1, 1), "two": result("two", 2, 2)}}
    assert repeats_of(cases, results) == []
