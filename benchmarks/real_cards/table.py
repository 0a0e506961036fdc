"""The page: how many of how many are equal on top, then a table a source, from the results alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from benchmarks.real_cards.case import Case, Figure, Result, Share, Status, Verdict
from benchmarks.real_cards.repeats import repeats_of, section_of

MIB: Final = 2**20
_MOST_COLUMNS: Final = 12
"""Where the cases of a source have more figures than this, a row says how many are equal and which is furthest off."""
_SHARES: Final = {
    "events": "events (allocations, frees, segments)",
    "segments": "segments at the end with identical blocks",
    "places": "allocations at the address of the real GPU, given its segments",
}
"""What is counted of a recording, by its name in a result."""
_HEAD: Final = ("case", "real GPU, torch", "emulated GPU, torch", "result, date")
_SHARED: Final = ("equal events", "identical segments", "equal addresses, given the segments")
_NEAR: Final = {"allocated": 0.001, "reserved": 0.01}
"""How near a peak is that the head of the page counts: figures of these names, or of these with " peak"."""
_VERDICT: Final = ("real verdict", "emulated verdict")
_UNRUN: Final = Result(case="", status=Status.NOT_RUN, reason="not run yet")


def page_of(cases: Mapping[str, Sequence[Case]], results: Mapping[str, Mapping[str, Result]]) -> str:
    """Return the page as Markdown.

    Args:
        cases: of every source, in the order of the page.
        results: of every source, by the case's name; a case without one has a row that says so.
    """
    counted = [(source, case.name) for source, some in cases.items() for case in some if not case.is_repeat]
    found = [results[source].get(name, _UNRUN) for source, name in counted]
    lines = [
        "# Comparison with real GPUs",
        "",
        "This page compares runs on real GPUs, which other people have recorded or published, with emulated runs.",
        "This repository has no files of the published runs; `benchmarks/real_cards/` describes what is downloaded.",
        "A published figure counts as equal if the emulated figure, rounded to the published precision, is the same.",
        "If the emulated figure differs from the published figure, the cell is bold.",
        "A bold cell has the published figure and its difference from the emulated figure, in bytes and in percent.",
        "In the tables, numbers in brackets are the range of several emulated runs.",
        "",
        "|  | equal |",
        "|---|---|",
        *(f"| {what} | {share.text} |" for what, share in summary_of(found)),
        *section_of(repeats_of([case for some in cases.values() for case in some], results)),
    ]
    for source, some in cases.items():
        lines += ["", f"## {source.replace('_', ' ').capitalize()}", "", *_table_of(some, results[source])]
    return "\n".join(lines) + "\n"


def summary_of(results: Sequence[Result]) -> list[tuple[str, Share]]:
    """Return the accuracy: of all that was run, how much is equal."""
    ran = [result for result in results if result.status is not Status.NOT_RUN]
    figures = [figure for result in ran for figure in result.figures.values()]
    exact = [figure for figure in figures if figure.resolution == 1]
    coarse = [figure for figure in figures if figure.resolution > 1]
    verdicts = [result.verdict for result in ran if result.verdict is not None]
    rows = [
        ("cases that were run", Share(equal=len(ran), of=len(results))),
        ("of these, cases with all figures equal", _share(result.status is Status.EQUAL for result in ran)),
        ("figures published to the byte", _share(figure.is_equal for figure in exact)),
        ("figures published with a lower precision", _share(figure.is_equal for figure in coarse)),
        *(
            (f"peaks {name}, within {near:.1%}", _share(_apart(figure) <= near for figure in _peaks(ran, name)))
            for name, near in _NEAR.items()
        ),
        *((what, _sum([getattr(result, name) for result in ran])) for name, what in _SHARES.items()),
        ("verdicts (fits, or out of memory)", _share(verdict.is_right for verdict in verdicts)),
        ("uncertain verdicts", _share(verdict.is_open for verdict in verdicts)),
    ]
    return [(what, share) for what, share in rows if share.of]


def _peaks(results: Sequence[Result], name: str) -> list[Figure]:
    return [result.figures[key] for result in results for key in (name, f"{name} peak") if key in result.figures]


def _share(equal: Iterable[bool]) -> Share:
    found = list(equal)
    return Share(equal=sum(found), of=len(found))


def _sum(shares: Sequence[Share | None]) -> Share:
    known = [share for share in shares if share is not None]
    return Share(equal=sum(share.equal for share in known), of=sum(share.of for share in known))


def _table_of(cases: Sequence[Case], results: Mapping[str, Result]) -> list[str]:
    found = {case.name: results.get(case.name, _UNRUN) for case in cases}
    names = list(dict.fromkeys(name for result in found.values() for name in result.figures))
    has_events = any(getattr(result, name) for result in found.values() for name in _SHARES)
    has_verdicts = any(result.verdict for result in found.values())
    is_wide = len(names) > _MOST_COLUMNS
    columns = ["equal figures", "largest difference"] if is_wide else names
    head = [*_HEAD, *(_SHARED if has_events else ()), *(_VERDICT if has_verdicts else []), *columns]
    rows = [
        [*_facts(case, found[case.name]), *(_shares(found[case.name]) if has_events else [])]
        + (_verdict(found[case.name].verdict) if has_verdicts else [])
        + (_in_short(found[case.name]) if is_wide else [_figure(found[case.name], name) for name in names])
        for case in cases
    ]
    sources = sorted({f"{origin.text} ({origin.licence})" for case in cases for origin in case.origins})
    return [
        f"The figures in this table come from {', '.join(sources)}.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _facts(case: Case, result: Result) -> list[str]:
    said = f"{result.status}, {result.date}" if result.date else str(result.status)
    emulated = f"{case.gpu}, {result.versions.get('torch', case.torch)}"
    real = f"{case.card}, {case.torch_published or 'not published'}"
    bold = "" if result.status is Status.EQUAL else "**"
    return [f"{case.name}: {case.what}", real, emulated, f"{bold}{said}{bold}{_reason(case, result)}"]


def _reason(case: Case, result: Result) -> str:
    """Say what the result says, after what is known of why the case differs, if it does."""
    known = case.cause if result.status is Status.DIFFERS else ""
    said = "; ".join(filter(None, [known, result.reason])).replace("|", "/")
    return f": {said}" if said else ""


def _shares(result: Result) -> list[str]:
    return [share.text if share else "" for share in (getattr(result, name) for name in _SHARES)]


def _in_short(result: Result) -> list[str]:
    """Say how many figures are equal, and which is furthest off."""
    if not result.figures:
        return ["", ""]
    worst = max(result.figures, key=lambda name: _apart(result.figures[name]))
    equal = _share(figure.is_equal for figure in result.figures.values())
    return [equal.text, "" if equal.is_whole else f"{worst}: {_figure(result, worst)}"]


def _apart(figure: Figure) -> float:
    return 0 if figure.is_equal else abs(figure.emulated - figure.published) / max(figure.published, 1)


def _figure(result: Result, name: str) -> str:
    figure = result.figures.get(name)
    if figure is None:
        return ""
    low, high = result.intervals.get(name, (0, 0))
    between = f" ({low:,} to {high:,})" if high else ""
    if figure.is_equal:
        return f"{_size(figure)}{between}"
    apart = figure.emulated - figure.published
    return f"**{_size(figure)}, emulated {apart:+,} ({apart / max(figure.published, 1):+.2%})**{between}"


def _size(figure: Figure) -> str:
    """What was published: bytes where it was bytes, else MiB."""
    if figure.resolution == 1:
        return f"{figure.published:,}"
    return f"{figure.published / MIB:,.2f} MiB"


def _verdict(verdict: Verdict | None) -> list[str]:
    """Say both; what the emulated card says wrongly is bold, what it leaves open is not."""
    if verdict is None:
        return ["", ""]
    wrong = not verdict.is_right and not verdict.is_open
    return [verdict.published, f"**{verdict.emulated}**" if wrong else verdict.emulated]
