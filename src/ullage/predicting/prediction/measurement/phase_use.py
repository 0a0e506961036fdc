"""Compute the peak memory and the timeline position of each phase of a run.

The peak equals `torch.cuda.max_memory_allocated` after a call of `reset_peak_memory_stats` at the beginning of the
phase.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from ullage.gpu.tracing.journal import Entries
from ullage.predicting.prediction.data.prediction import PhaseBand, PhaseUse
from ullage.predicting.prediction.measurement.trace import Levels, Memory
from ullage.predicting.prediction.phases.name import STEPS, PhaseName
from ullage.predicting.prediction.phases.spans import Emptied, Marks, Span, base_spans, spans_of


def uses_of(marks: Marks, entries: Entries, levels: Levels, memory: Memory, *, ran_out: bool) -> list[PhaseUse]:
    """Return the memory peaks of each phase of a run on one device.

    Args:
        marks: the calls and passes that hooks noted during the run.
        entries: the recorded allocator events.
        levels: the allocated and reserved bytes of the device.
        memory: the live memory of the device.
        ran_out: whether the run ended because memory ran out.
    """
    named = spans_of(marks, entries)
    base = base_spans(marks, named, len(entries) - 1 if ran_out else None)
    uses = []
    for name in PhaseName:
        spans = [span for span in [*base, *named] if span.name == name]
        if not spans:
            continue
        before, allocated, moment = max((_peak_of(span, levels) for span in spans), key=lambda peak: peak[1])
        line = memory.line_of(moment) if moment is not None else None
        first = bisect_left(marks.step_ends, spans[0].begin + 1)
        uses.append(
            PhaseUse(
                name=name.value,
                first_step=first + 1 if name in (PhaseName.FIRST_STEP, PhaseName.STEADY_STEP) else first,
                peak_allocated_bytes=allocated,
                before_bytes=before,
                peak_reserved_bytes=max(_reserved_of(span, levels, marks.emptied, memory.device) for span in spans),
                file=line.file if line else None,
                line=line.line if line else None,
                count=_count(name, spans, marks.step_ends),
            )
        )
    return [use for use in uses if use.peak_reserved_bytes or use.name in STEPS]


def _count(name: PhaseName, spans: Sequence[Span], step_ends: Sequence[int]) -> int:
    if name is PhaseName.STEADY_STEP:
        return len({bisect_left(step_ends, span.end) for span in spans})
    return 1 if name in STEPS else len(spans)


def _inside(span: Span, levels: Levels) -> slice:
    low, high = np.searchsorted(levels.index, [span.begin, span.end], side="right")
    return slice(int(low), int(high))


# The last value is None if the peak is not higher than the bytes before the phase.
def _peak_of(span: Span, levels: Levels) -> tuple[int, int, int | None]:
    inside = _inside(span, levels)
    before = int(levels.allocated[inside.start - 1]) if inside.start else 0
    if inside.stop > inside.start:
        at = inside.start + int(levels.allocated[inside].argmax())
        if levels.allocated[at] > before:
            return before, int(levels.allocated[at]), int(levels.index[at])
    return before, before, None


def _reserved_of(span: Span, levels: Levels, emptied: Emptied, device: int) -> int:
    inside = _inside(span, levels)
    before = int(levels.reserved[inside.start - 1]) if inside.start else 0
    since = int(levels.index[inside.start - 1]) if inside.start else -1
    for index, its_device, reserved in zip(emptied.indices, emptied.devices, emptied.reserved_bytes, strict=True):
        if its_device == device and since <= index <= span.begin:
            before = reserved  # the last matching entry counts
    return max(before, int(levels.reserved[inside].max())) if inside.stop > inside.start else before


def bands_of(marks: Marks, entries: Entries, levels: Levels, edges: Sequence[int]) -> list[PhaseBand]:
    """Return the timeline position of each phase except steps. Nested phases come last."""
    bands = []
    named = [span for span in spans_of(marks, entries) if not span.of_other_thread]
    loading = [span for span in base_spans(marks, named, None) if span.name == PhaseName.LOADING]
    for span in [*loading, *named] if named else ():
        inside = _inside(span, levels)
        if inside.stop == inside.start:
            continue
        first, last = (bisect_right(edges, at) - 1 for at in (inside.start, inside.stop - 1))
        bands.append(PhaseBand(name=span.name.value, first=first, last=last))
    return bands
