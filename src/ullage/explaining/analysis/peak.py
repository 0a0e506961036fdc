"""What people ask of a run that did not fail: how much at most and when, who held it, and what would lower it."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from ullage.base.units import text_of_bytes, text_of_seconds
from ullage.explaining.analysis.cause import Evidence
from ullage.explaining.analysis.holder import LineHolder
from ullage.explaining.analysis.recording import Recording, placed
from ullage.explaining.analysis.remedy import Remedy
from ullage.recorded.settings import line_to_paste

_HOLDERS_NAMED: Final = 3
_WORTH_NAMING: Final = 0.02
"""The least share of the reserved peak by which a setting has to lower it to be named."""


def peak_sentence(recording: Recording, evidence: Evidence, holders: Sequence[LineHolder]) -> str:
    """Return what a run that did not fail needed at most, when, and who held it."""
    peak, reserved = evidence["peak_allocated_bytes"], evidence["peak_reserved_bytes"]
    beyond = reserved - peak
    cached = f", {text_of_bytes(beyond)} more than was ever allocated at once" if beyond > 0 else ""
    held = ", ".join(_held(holders, evidence["allocated_bytes"]))
    return (
        f"No request failed. At its fullest, {_when(recording)}, {text_of_bytes(peak)} were allocated"
        f"{': ' + held if held else ''}. At most {text_of_bytes(reserved)} were reserved{cached}."
    )


def _held(holders: Sequence[LineHolder], total_bytes: int) -> Iterator[str]:
    for holder in holders[:_HOLDERS_NAMED]:
        yield f"{text_of_bytes(holder.bytes)} ({100 * holder.bytes / max(1, total_bytes):.0f} %) {placed(holder.line)}"


def _when(recording: Recording) -> str:
    """Say at which moment most was allocated."""
    op = recording.done.peak_allocated_op
    if op < recording.program.setup:
        return "when recording began"
    ends = recording.step_ops()
    if ends:
        step = bisect_left(ends, op) + 1
        return f"in step {step} of {len(ends)}" if step <= len(ends) else f"after step {len(ends)}, the last"
    times = recording.history.time_us
    now = int(times[recording.rebuilt.row_of_op[op]])
    if now >= 0 and times[0] >= 0:
        return f"{text_of_seconds((now - int(times[0])) / 1e6)} after recording began"
    return f"{100 * op / max(1, len(recording.program)):.0f} % into the recording"


def lower_with(remedies: Sequence[Remedy], evidence: Evidence) -> str:
    """Return the setting that would have lowered the reserved peak of a run that did not fail; empty if none does."""
    now = evidence["peak_reserved_bytes"]
    settings = [remedy for remedy in remedies if remedy.setting and remedy.proved and remedy.fits]
    best = min(settings, key=lambda remedy: remedy.peak_reserved_bytes or now, default=None)
    less = now - (best.peak_reserved_bytes or now) if best is not None else 0
    if best is None or less < _WORTH_NAMING * now:
        return ""
    return (
        f"\n{best.setting} would have reserved {text_of_bytes(less)} less (replayed). Before the process starts:\n"
        f"  {line_to_paste(best.alloc_conf or best.setting or '')}"
    )
