"""Results are kept as they are, and the page says of every case what came of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.real_cards.bench import Bench
from benchmarks.real_cards.case import HERE, Case, Figure, Origin, Result, Share, Status, Verdict, cases_of
from benchmarks.real_cards.run import SOURCES, asked_of, outcome_of, read_results, write_results
from benchmarks.real_cards.source import SourceError, fetched
from benchmarks.real_cards.table import page_of, summary_of

CASE = Case(
    name="one",
    source="recordings",
    what="a step",
    origins=(Origin(name="somebody/something", revision="0123456789abcdef", licence="MIT"),),
    file="a.pickle",
    card="T4",
    gpu="T4",
    torch_published="2.10.0",
    torch="2.10.0",
)
EQUAL = Result.judged(
    case="one",
    figures={
        "allocated": Figure(published=1000, emulated=1000),
        "reserved": Figure(published=5 << 20, emulated=5 << 20),
    },
    events=Share(equal=7, of=7),
    segments=Share(equal=2, of=2),
    verdict=Verdict(published="fits", emulated="fits"),
    intervals={"reserved": (5 << 20, 6 << 20)},
)


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {"allocated": Figure(published=1000, emulated=1001)}},
        {"events": Share(equal=6, of=7)},
        {"segments": Share(equal=1, of=2)},
        {"verdict": Verdict(published="fits", emulated="out of memory")},
    ],
)
def test_one_thing_that_differs_is_a_case_that_differs(change: dict) -> None:
    parts = {name: getattr(EQUAL, name) for name in ("case", "figures", "events", "segments", "verdict")}
    assert EQUAL.status is Status.EQUAL
    assert Result.judged(**{**parts, **change}).status is Status.DIFFERS


@pytest.mark.parametrize(
    ("published", "emulated", "resolution", "equal"),
    [(5 << 20, (5 << 20) + 1, 1, False), (5 << 20, (5 << 20) + 1, 1 << 20, True), (0, 1 << 20, 1 << 20, False)],
)
def test_a_figure_is_equal_at_its_own_precision(published: int, emulated: int, resolution: int, *, equal: bool) -> None:
    assert Figure(published=published, emulated=emulated, resolution=resolution).is_equal is equal


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "results" / "recordings.json"
    write_results(path, {"one": EQUAL, "gone": EQUAL}, [CASE])
    assert read_results(path) == {"one": EQUAL}
    assert read_results(tmp_path / "none.json") == {}


def test_a_whole_name_asks_for_one_case() -> None:
    cases = {"recordings": [CASE, replace(CASE, name="one-more")], "golf": [replace(CASE, name="one")]}
    asked = {only: [case.name for case in asked_of(cases, only)["recordings"]] for only in ("", "one", "golf/")}
    assert asked == {"": ["one", "one-more"], "one": ["one", "one-more"], "golf/": []}
    found = asked_of(cases, "recordings/one")
    assert [case.name for case in found["recordings"]] == ["one"]
    assert found["golf"] == []


def test_a_row_says_why_it_was_not_run(tmp_path: Path) -> None:
    def run(case: Case, bench: Bench) -> Result:
        raise SourceError("GitHub cannot\nbe reached")

    bench = Bench(folder=tmp_path, environments=tmp_path, pattern="")
    found = replace(outcome_of(CASE, bench, run), date="2000-01-01")
    page = page_of({"recordings": [CASE]}, {"recordings": {"one": found}})
    assert "**not run, 2000-01-01**: GitHub cannot be reached" in page
    assert "| cases that were run | 0 of 1 |" in page
    assert "not run**: not run yet" in page_of({"recordings": [CASE]}, {"recordings": {}})


def test_a_row_that_differs_tells_the_cause_as_it_is_known_today() -> None:
    """The cause is the case's, not the result's: it may be found after the run."""
    case = replace(CASE, cause="another cuDNN")
    differs = replace(EQUAL, status=Status.DIFFERS, reason="of 3 runs", date="2000-01-01")
    page = page_of({"recordings": [case]}, {"recordings": {"one": differs}})
    assert "| **differs, 2000-01-01**: another cuDNN; of 3 runs |" in page
    assert "another cuDNN" not in page_of({"recordings": [case]}, {"recordings": {"one": EQUAL}})


def test_the_summary_counts_what_was_run() -> None:
    differs = replace(
        EQUAL,
        status=Status.DIFFERS,
        figures={
            "allocated": Figure(published=1000, emulated=1024),
            "peak": Figure(published=0, emulated=9, resolution=10),
        },
    )
    found = dict(summary_of([EQUAL, differs, Result(case="x", status=Status.NOT_RUN)]))
    assert found["cases that were run"] == Share(equal=2, of=3)
    assert found["of these, cases with all figures equal"] == Share(equal=1, of=2)
    assert found["figures published to the byte"] == Share(equal=2, of=3)
    assert found["figures published with a lower precision"] == Share(equal=1, of=1)
    page = page_of({"recordings": [CASE]}, {"recordings": {"one": differs}})
    assert "**1,000, emulated +24 (+2.40%)**" in page


def test_a_measurement_that_is_run_twice_counts_once() -> None:
    again = replace(CASE, source="again", torch="2.14.0", is_repeat=True)
    differs = replace(EQUAL, status=Status.DIFFERS)
    page = page_of({"recordings": [CASE], "again": [again]}, {"recordings": {"one": EQUAL}, "again": {"one": differs}})
    assert "| cases that were run | 1 of 1 |\n| of these, cases with all figures equal | 1 of 1 |" in page
    assert "| T4, 2.14.0 | **differs" in page


def test_what_cannot_be_fetched_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^somebody/something@0123456 cannot be had: .*does not exist"):
        fetched(CASE.origins[0], tmp_path / "to", str(tmp_path / "{owner}+{name}"))


@pytest.mark.parametrize("source", SOURCES)
def test_the_cases_that_are_listed(source: str) -> None:
    """Names are told apart, commits are whole, and the results that are kept are of cases that there are."""
    cases = cases_of(HERE / f"{source}.toml")
    names = [case.name for case in cases]
    assert cases
    assert len(set(names)) == len(names)
    assert all(len(o.revision) == 40 for case in cases for o in case.origins if o.is_repository)
    assert set(read_results(HERE / "results" / f"{source}.json")) <= set(names)
    assert json.dumps([case.parameters for case in cases])
