"""Explains the memory timeline of PyTorch's profiler: the peak, when it was reached, and what it consisted of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ullage.base.units import text_of_bytes, text_of_seconds
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.explain import Explanation
from ullage.recorded.timeline import CATEGORIES, MemoryTimeline
from ullage.report.report import Curve, Remarks, Report, Section, Shares, SizedPart, Tone

_BINS: Final = 160
_NAMED: Final = 4
_LACKS: Final = (
    "a timeline has no source lines, no addresses and no reserved memory, so it cannot show fragmentation or the cause "
    "of an out-of-memory error",
    "the profiler infers the categories from the operators that it saw; memory from before the profiled part is "
    "included, but often as unknown",
    "the file does not name the device whose memory it shows",
    "to see which lines hold the memory, call torch.cuda.memory._record_memory_history() at the start and "
    "torch.cuda.memory._dump_snapshot('oom.pickle') where memory is high, then run ullage explain oom.pickle",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TimelineExplanation(Explanation):
    """The explanation of a memory timeline that PyTorch's profiler exported."""

    timeline: MemoryTimeline
    categories: tuple[tuple[str, int], ...]
    """The categories of memory at the peak, each with its bytes. The largest comes first."""

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain data for `json.dumps`."""
        return {
            **Explanation.to_json(self),
            "categories": [{"name": name, "bytes": size} for name, size in self.categories],
        }


def explain_timeline(timeline: MemoryTimeline, *, source: str) -> TimelineExplanation:
    """Explain a memory timeline.

    Args:
        timeline: the memory of one device by category.
        source: the name of the file in reports.
    """
    totals, peak = timeline.total_bytes, timeline.peak
    held = zip(CATEGORIES, timeline.size_bytes[peak].tolist(), strict=True)
    categories = tuple(sorted(((name, size) for name, size in held if size), key=lambda one: -one[1]))
    at_peak, at_end = int(totals[peak]), int(totals[-1])
    named = ", ".join(f"{name} {text_of_bytes(size)}" for name, size in categories[:_NAMED])
    return TimelineExplanation(
        source=source,
        cause=Cause.DID_NOT_FAIL,
        headline=f"PEAK {text_of_bytes(at_peak)}",
        sentence=(
            f"In this timeline of the profiler, tensors use at most {text_of_bytes(at_peak)}, "
            f"{text_of_seconds(int(timeline.time_us[peak]) / 1e6)} after its beginning: {named}. When it ends, after "
            f"{text_of_seconds(int(timeline.time_us[-1]) / 1e6)}, {text_of_bytes(at_end)} are in use."
        ),
        evidence={
            "peak_allocated_bytes": at_peak,
            "allocated_bytes": at_end,
            "peak_time_us": int(timeline.time_us[peak]),
            "length_us": int(timeline.time_us[-1]),
        },
        notes=_LACKS,
        timeline=timeline,
        categories=categories,
    )


def describe_timeline(explanation: TimelineExplanation) -> Report:
    """Return the report for the explanation of a memory timeline."""
    return Report(
        headline=explanation.headline,
        tone=Tone.PLAIN,
        subject=explanation.source,
        sentence=explanation.sentence,
        sections=tuple(_sections(explanation)),
    )


def _sections(explanation: TimelineExplanation) -> Iterator[Section]:
    timeline = explanation.timeline
    yield Shares(
        title="What the memory was used for at the peak, according to the profiler",
        total_bytes=explanation.evidence["peak_allocated_bytes"],
        parts=tuple(SizedPart(label=name, size_bytes=size) for name, size in explanation.categories),
    )
    if len(timeline.time_us) > 1:
        values, mark = _binned(timeline)
        yield Curve(
            title="Memory over time",
            values=values,
            marks=(mark,),
            mark_label="the peak",
            remark=f"{text_of_seconds(int(timeline.time_us[-1]) / 1e6)} from left to right",
        )
    yield Remarks(title="What this file does not contain", items=explanation.notes)


# Each bin has the highest level during its time.
def _binned(timeline: MemoryTimeline) -> tuple[tuple[int, ...], int]:
    length = int(timeline.time_us[-1]) + 1
    bins = min(_BINS, len(timeline.time_us))
    place = np.minimum(timeline.time_us * bins // length, bins - 1)
    values = np.full(bins, -1, np.int64)
    np.maximum.at(values, place, timeline.total_bytes)
    # The level of a bin without a change is the last level before it.
    last = np.searchsorted(place, np.arange(bins), side="right") - 1
    values = np.where(values < 0, timeline.total_bytes[np.maximum(last, 0)], values)
    return tuple(values.tolist()), int(place[timeline.peak])
