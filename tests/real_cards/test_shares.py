"""Shares are counted of results, each at the precision that its figure was published with."""

from benchmarks.real_cards.case import CANNOT_BE_JUDGED, FITS, OUT_OF_MEMORY, Figure, Result, Share, Verdict
from benchmarks.real_cards.shares import again_of, recordings_of, tunings_of, verdicts_of


def recording(events: int, segments: int, emulated: int) -> Result:
    return Result.judged(
        case="one",
        events=Share(equal=events, of=100),
        segments=Share(equal=segments, of=100),
        places=Share(equal=50, of=50),
        figures={"reserved peak": Figure(published=1000, emulated=emulated)},
    )


def tuning(allocated: int, reserved: int, resolution: int = 1, intervals: dict | None = None) -> Result:
    return Result.judged(
        case="one",
        intervals=intervals or {},
        figures={
            "allocated": Figure(published=10_000, emulated=allocated, resolution=resolution),
            "reserved": Figure(published=10_000, emulated=reserved, resolution=resolution),
        },
    )


def test_segments_are_counted_one_by_one_and_by_recording() -> None:
    assert recordings_of([recording(100, 100, 1000), recording(99, 95, 1000), recording(100, 94, 1001)]) == [
        "events: 299 of 300 (99.667%)",
        "segments with identical blocks: 289 of 300 (96.333%)",
        "allocations at the recorded address, given the recorded segments: 150 of 150 (100.000%)",
        "recordings with every event: 2 of 3",
        "recordings with 95% of their segments identical: 2 of 3",
        "recordings with every segment identical: 1 of 3",
        "recordings with every allocation at its address, given the recorded segments: 3 of 3",
        "reserved peak, to the byte: 2 of 3",
    ]


def test_a_figure_within_what_its_last_digit_stands_for_is_not_off() -> None:
    plain = [tuning(10_000, 10_000), tuning(10_000, 10_001)]
    quantised = [
        tuning(10_010, 10_100, intervals={"allocated": (9_990, 10_010)}),
        tuning(10_011, 10_101),
        tuning(10_500, 10_900, resolution=1000),
    ]
    assert tunings_of(plain, quantised) == [
        "without quantised weights, every figure to the byte: 1 of 2",
        "NF4, allocated within 0.1%: 2 of 3",
        "NF4, reserved within 1%: 2 of 3",
        "NF4, largest difference: allocated 0.11%, reserved 1.01%",
        "NF4, run with several thread orders, published allocated within their range: 1 of 1",
        "NF4, run with several thread orders, published reserved within their range: 0 of 1",
    ]


def measured(published: int, emulated: int) -> Result:
    figure = Figure(published=published, emulated=emulated)
    return Result.judged(case="one", figures={"allocated": figure, "reserved": figure})


def test_runs_of_one_recipe_that_lie_apart_cannot_all_be_near_one_figure() -> None:
    alike = [measured(10_000, 10_000), measured(10_005, 10_005)]
    apart = [measured(10_000, 10_100), measured(10_150, 10_100), measured(10_400, 10_100)]
    assert again_of([alike, apart]) == [
        "NF4, measured several times, allocated within 0.1%: 2 of 5; with one figure per recipe at most 3",
        "NF4, measured several times, reserved within 1%: 4 of 5; with one figure per recipe at most 4",
    ]


def test_a_verdict_that_is_left_open_is_not_the_cards() -> None:
    outcomes = (FITS, OUT_OF_MEMORY, CANNOT_BE_JUDGED)
    results = [Result.judged(case="one", verdict=Verdict(published=FITS, emulated=each)) for each in outcomes]
    assert verdicts_of(results) == ["runs near the memory limit with the verdict of the real GPU: 1 of 3"]
