"""Of the recordings of Linux cards and of the fine-tunings on a T4: how many are equal in what. From the results alone.

python -m benchmarks.real_cards.shares
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from benchmarks.real_cards.case import HERE, Case, Figure, Result, Share, Status, cases_of
from benchmarks.real_cards.repeats import most_within, runs_of_recipes
from benchmarks.real_cards.run import SOURCES, read_results

_SEGMENTS: Final = 0.95
_ALLOCATED: Final = 0.001
_RESERVED: Final = 0.01


def main() -> None:
    """Print the shares."""
    linux = _ran("recordings", lambda case: case.placement == "linux")
    print("recordings of GPUs on Linux")
    for line in recordings_of(linux):
        print(f"  {line}")
    quantised = _ran("fitcheck", lambda case: "QLoRA" in case.what)
    plain = _ran("fitcheck", lambda case: "QLoRA" not in case.what)
    print("fine-tuning runs on a T4")
    edge = [result for result in _ran("fitcheck_verdicts", lambda case: True) if result.verdict is not None]
    for line in [*tunings_of(plain, quantised), *again_of(_measured_again()), *verdicts_of(edge)]:
        print(f"  {line}")


def _ran(source: str, wanted: Callable[[Case], bool]) -> list[Result]:
    results = read_results(HERE / "results" / f"{source}.json")
    names = [case.name for case in cases_of(HERE / f"{source}.toml") if wanted(case)]
    return [results[name] for name in names if name in results and results[name].status is not Status.NOT_RUN]


def _measured_again() -> list[list[Result]]:
    """Return the runs of each recipe with quantised weights that was measured more than once on one card."""
    cases = [case for source in SOURCES for case in cases_of(HERE / f"{source}.toml")]
    results = {source: read_results(HERE / "results" / f"{source}.json") for source in SOURCES}
    return [some for recipe, some in runs_of_recipes(cases, results) if "QLoRA" in recipe]


def recordings_of(results: Sequence[Result]) -> list[str]:
    """Return what is equal of recordings, a line each."""
    segments = [result.segments for result in results if result.segments]
    shares = {
        "events": _sum(result.events for result in results),
        "segments with identical blocks": _sum(segments),
        "allocations at the recorded address, given the recorded segments": _sum(result.places for result in results),
    }
    return [
        *(f"{name}: {share.text} ({share.equal / max(share.of, 1):.3%})" for name, share in shares.items()),
        f"recordings with every event: {_count(r.events is not None and r.events.is_whole for r in results)}",
        f"recordings with {_SEGMENTS:.0%} of their segments identical: "
        f"{_count(s.equal >= _SEGMENTS * s.of for s in segments)}",
        f"recordings with every segment identical: {_count(s.is_whole for s in segments)}",
        "recordings with every allocation at its address, given the recorded segments: "
        f"{_count(r.places is not None and r.places.is_whole for r in results)}",
        *(f"{name}, to the byte: {_count(r.figures[name].is_equal for r in results)}" for name in results[0].figures),
    ]


def tunings_of(plain: Sequence[Result], quantised: Sequence[Result]) -> list[str]:
    """Return how near fine-tunings come, a line each."""
    apart = {name: [_apart(result.figures[name]) for result in quantised] for name in ("allocated", "reserved")}
    most = ", ".join(f"{name} {max(found, default=0):.2%}" for name, found in apart.items())
    return [
        f"without quantised weights, every figure to the byte: {_count(r.status is Status.EQUAL for r in plain)}",
        f"NF4, allocated within {_ALLOCATED:.1%}: {_count(one <= _ALLOCATED for one in apart['allocated'])}",
        f"NF4, reserved within {_RESERVED:.0%}: {_count(one <= _RESERVED for one in apart['reserved'])}",
        f"NF4, largest difference: {most}",
        *(
            f"NF4, run with several thread orders, published {name} within their range: "
            f"{_count(_is_inside(one, name) for one in quantised if len(one.intervals))}"
            for name in apart
        ),
    ]


def again_of(recipes: Sequence[Sequence[Result]]) -> list[str]:
    """Return how near runs of recipes that were measured again come, and how near one figure a recipe can."""
    bounds = {"allocated": (_ALLOCATED, f"{_ALLOCATED:.1%}"), "reserved": (_RESERVED, f"{_RESERVED:.0%}")}
    lines = []
    for name, (bound, written) in bounds.items():
        near = _count(_apart(one.figures[name]) <= bound for runs in recipes for one in runs)
        most = sum(most_within([one.figures[name].published for one in runs], bound) for runs in recipes)
        lines.append(
            f"NF4, measured several times, {name} within {written}: {near}; with one figure per recipe at most {most}"
        )
    return lines


def verdicts_of(results: Sequence[Result]) -> list[str]:
    """Return how many runs at the edge of a card's memory have the verdict of the real card, in a line."""
    right = _count(result.verdict is not None and result.verdict.is_right for result in results)
    return [f"runs near the memory limit with the verdict of the real GPU: {right}"]


def _is_inside(result: Result, name: str) -> bool:
    """Whether what was published lies between what was run, to its last digit."""
    figure = result.figures[name]
    low, high = result.intervals.get(name, (figure.emulated, figure.emulated))
    return low - figure.resolution < figure.published < high + figure.resolution


def _apart(figure: Figure) -> float:
    return 0.0 if figure.is_equal else abs(figure.emulated - figure.published) / figure.published


def _count(equal: Iterable[bool]) -> str:
    found = list(equal)
    return Share(equal=sum(found), of=len(found)).text


def _sum(shares: Iterable[Share | None]) -> Share:
    known = [share for share in shares if share is not None]
    return Share(equal=sum(share.equal for share in known), of=sum(share.of for share in known))


if __name__ == "__main__":
    main()
