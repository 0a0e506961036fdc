"""The page of `make snapshots`: how many of how many are right on top, then a row for each file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.snapshots.run import Explained

_MOST_WITHOUT_LINE: Final = 0.05
_LEAST_TOLD: Final = 0.005
"""The least share of a file's bytes that an operation must have to be listed."""
_PEAKS: Final = ("peak allocated", "peak reserved")
_HEAD: Final = ("file", "events", "heading", *_PEAKS, "no stack", "operation alone", "no line", "expected")

_INTRODUCTION: Final = """\
The first table shows how often the results of `ullage explain` are right for the memory snapshots that were found in
public repositories. The last table on this page has one row for each public snapshot. The snapshot files are not part
of this repository; `benchmarks/snapshots/snapshots.toml` lists where to get each file. The following list explains
the words in the last table.

* *equal*: the peak that `explain` reports is equal, to the byte, to the peak that `benchmarks/snapshots/raw.py`
  computes. `raw.py` starts with the final state of a snapshot, undoes all recorded events, and then redoes them.
* *open*: the snapshot shows only a range for the peak, because blocks from before the recording were freed during the
  recording. In all *open* rows, the peak that `explain` reports is within the range from the snapshot.
* *no stack*: the share of the bytes at the peak that have no stack in the snapshot. No tool can find a source line
  for memory without a stack.
* *operation alone*: the share of the bytes with a stack for which `explain` finds an operation but no source line.
* *no line*: the share of the bytes with a stack for which `explain` finds neither a source line nor an operation.
* *expected*: a person read the snapshot first, and wrote down which heading `explain` should print. *right* means
  that `explain` printed this heading."""


def page_of(found: Sequence[Explained]) -> str:
    """Return the page as Markdown."""
    return (
        "\n".join(
            [
                "# How right is `explain` on public snapshots?",
                "",
                _INTRODUCTION,
                "",
                "|  | right |",
                "|---|---|",
                *(f"| {what} | {figure} |" for what, figure in summary(found)),
                "",
                *_without_line(found),
                f"| {' | '.join(_HEAD)} |",
                f"|{'---|' * len(_HEAD)}",
                *(f"| {' | '.join(_row(one))} |" for one in found),
            ]
        )
        + "\n"
    )


def summary(found: Sequence[Explained]) -> Iterable[tuple[str, str]]:
    """Return what was compared, and how many of how many are right."""
    had = [one for one in found if not one.missing]
    read = [one for one in had if one.answer is not None]
    expected = [one for one in had if one.published.expected is not None]
    open_peaks = [one for one in read if one.allocated == "open"]
    lines = [one for one in read if one.without_line + sum(one.operation_alone.values()) < _MOST_WITHOUT_LINE]
    named = [one for one in read if one.without_line < _MOST_WITHOUT_LINE]
    yield "files that could be fetched, of all that were found", f"{len(had)} of {len(found)}"
    yield "parsed", f"{len(read)} of {len(had)}"
    yield "the right GPU", f"{sum(one.is_right_card for one in read)} of {len(read)}"
    yield "peak reserved, to the byte", f"{sum(one.reserved == 'equal' for one in read)} of {len(read)}"
    yield "peak allocated, to the byte", f"{sum(one.allocated == 'equal' for one in read)} of {len(read)}"
    yield "peak allocated, within what the file leaves open", f"{len(open_peaks)} of {len(read)}"
    below = f"less than {_MOST_WITHOUT_LINE:.0%} of the bytes that have a stack are without"
    yield f"{below} a line of user code", f"{len(lines)} of {len(read)}"
    yield f"{below} a line or an operation", f"{len(named)} of {len(read)}"
    yield "headings as expected", f"{sum(not one.unexpected for one in expected)} of {len(expected)}"
    seconds = [one.seconds for one in read] or [0.0]
    yield "seconds a file: median, most", f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"


def _without_line(found: Sequence[Explained]) -> Iterable[str]:
    """Return, as a list, which files have more without a line than they should, and what that is."""
    above = [one for one in found if one.without_line + sum(one.operation_alone.values()) >= _MOST_WITHOUT_LINE]
    if not above:
        return
    least = f"{_MOST_WITHOUT_LINE:.0%} or more of the bytes with a stack have no line of user code"
    yield f"In the following snapshots, {least}. For each snapshot, the list shows which operations"
    yield "allocated the memory without a line of user code."
    yield "The line of a backward operation is found from the forward pass before it, if that pass was recorded."
    yield ""
    for one in above:
        what = [f"{name[1:-1]} {share:.1%}" for name, share in one.operation_alone.items() if share >= _LEAST_TOLD]
        what += [f"no operation either {one.without_line:.1%}"] if one.without_line >= _LEAST_TOLD else []
        yield f"* {_name(one)}: {', '.join(what)}"
    yield ""


def _name(one: Explained) -> str:
    published = one.published
    address = f"https://github.com/{published.repository}/blob/{published.commit}/{published.path}".replace(" ", "%20")
    return f"[{published.repository.split('/')[0]}: {published.path.rsplit('/', 1)[-1]}]({address})"


def _row(one: Explained) -> Iterable[str]:
    name = _name(one)
    if one.missing or one.answer is None:
        return name, "", one.missing or f"refused: {one.refused}", *[""] * 5, _expectation(one)
    figures, device = one.answer["evidence"], one.answer["device"]
    several = sum(card.is_used for card in (one.cards or {}).values()) > 1 or device
    answer = one.answer["headline"] + (f", GPU {device}" if several else "")
    return (
        name,
        f"{one.card.events if one.card is not None else 0:,}",
        answer if one.is_right_card else f"{answer}, **another GPU**",
        _peak(figures.get("peak_allocated_bytes", 0), one.allocated),
        _peak(figures.get("peak_reserved_bytes", 0), one.reserved),
        f"{one.without_stack:.0%}",
        f"{sum(one.operation_alone.values()):.0%}",
        f"{one.without_line:.0%}",
        _expectation(one),
    )


def _peak(size: int, found: str) -> str:
    return f"{size:,}, {found}" if found in ("equal", "open") else f"**{found}**"


def _expectation(one: Explained) -> str:
    if one.published.expected is None:
        return one.published.known
    why = one.published.expected["why"]
    return f"right: {why}" if not one.unexpected else f"**{'; '.join(one.unexpected)}**: {why}"
