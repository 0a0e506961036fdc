"""The page of `make snapshots`: how many of how many are right on top, then a row for each file."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.snapshots.run import Explained

_MOST_WITHOUT_LINE: Final = 0.05
_LEAST_TOLD: Final = 0.005
"""Of a list of reasons those are left out that tell of less."""
_PEAKS: Final = ("allocated at most", "reserved at most")
_HEAD: Final = ("file", "events", "answer", *_PEAKS, "no stack", "operation alone", "no line", "expected")


def page_of(found: Sequence[Explained]) -> str:
    """Return the page as Markdown."""
    return (
        "\n".join(
            [
                "# Public snapshots",
                "",
                "What `ullage explain` says of every snapshot that was found in public",
                "repositories. Nothing of theirs is here: `benchmarks/snapshots/snapshots.toml` says where each is.",
                "A peak is *equal* where it is, to the byte, what an independent reading of the file gives (the end",
                "undone event by event, then done again: `benchmarks/snapshots/raw.py`), and *open* where that reading",
                "leaves it open, because blocks of before the recording were freed in it, and ullage's is within.",
                "*No stack*: the share of the bytes at the peak of which the file has no stack, so that nobody can",
                "tell a line. Of the rest, *operation alone* is what is told the name of an operation and no line,",
                "and *no line* what is told neither.",
                "What was expected of a headline was written from the file itself, not from an answer.",
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
    yield "read", f"{len(read)} of {len(had)}"
    yield "the right card", f"{sum(one.is_right_card for one in read)} of {len(read)}"
    yield "peak reserved, to the byte", f"{sum(one.reserved == 'equal' for one in read)} of {len(read)}"
    yield "peak allocated, to the byte", f"{sum(one.allocated == 'equal' for one in read)} of {len(read)}"
    yield "peak allocated, within what the file leaves open", f"{len(open_peaks)} of {len(read)}"
    below = f"of the bytes that have a stack less than {_MOST_WITHOUT_LINE:.0%} without"
    yield f"{below} a line of yours", f"{len(lines)} of {len(read)}"
    yield f"{below} a line or an operation", f"{len(named)} of {len(read)}"
    yield "headlines as they were expected", f"{sum(not one.unexpected for one in expected)} of {len(expected)}"
    seconds = [one.seconds for one in read] or [0.0]
    yield "seconds a file: median, most", f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"


def _without_line(found: Sequence[Explained]) -> Iterable[str]:
    """Return, as a list, which files have more without a line than they should, and what that is."""
    above = [one for one in found if one.without_line + sum(one.operation_alone.values()) >= _MOST_WITHOUT_LINE]
    if not above:
        return
    yield f"Files with {_MOST_WITHOUT_LINE:.0%} and more of these bytes without a line of yours, and what they are:"
    yield "(of backward, a line is told by the forward pass before it; what was there before recording began has none)"
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
        answer if one.is_right_card else f"{answer}, **another card**",
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
