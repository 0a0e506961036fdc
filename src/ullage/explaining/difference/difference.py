"""Compares the memory of two recorded runs by source line and by annotation.

Lines are matched by file, function and line number. If a file was edited between the runs, two further rules match
lines of a function: lines that moved by the same distance, and the only line that is unmatched on both sides.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from ullage.base.errors import UllageError
from ullage.base.public import public
from ullage.explaining.analysis.label import UNNAMED
from ullage.explaining.difference.holding import (
    HeldBytes,
    MomentHolding,
    Place,
    holding_at_end,
    holding_at_peak,
    peak_allocated_bytes,
)
from ullage.recorded.history import Action, History
from ullage.recorded.settings import recorded_settings
from ullage.report.answer import Answer

SCHEMA: Final = 1


class Moment(StrEnum):
    """The time at which two runs are compared: at the end, or at the memory peak."""

    END = "end"
    PEAK = "peak"


class ChangeKind(StrEnum):
    """How the memory of a source line changed between two runs."""

    SAME = "same"
    MOVED = "moved"
    NEW = "new"
    VANISHED = "vanished"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """The memory of one source line in both runs, as bytes and as the number of blocks."""

    name: str
    """The file and number of the source line, or the name of the annotation.

    Line numbers may differ between the two runs. The number is from the second run if the line holds memory in that
    run.
    """
    function: str
    kind: ChangeKind
    moved_from: str | None
    before_bytes: int
    after_bytes: int
    before_blocks: int
    after_blocks: int

    @property
    def grown_bytes(self) -> int:
        """The growth in bytes from the first run to the second. Negative if memory shrank."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One allocator statistic in both runs, such as the reserved bytes."""

    name: str
    before: int
    after: int
    is_bytes: bool


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Difference(Answer):
    """The memory of two recorded runs, compared line by line. The line that grew most comes first."""

    described_in: ClassVar[str] = "ullage.explaining.difference.describe"

    before: str
    after: str
    moment: Moment
    lines: tuple[LineChange, ...]
    annotations: tuple[LineChange, ...]
    """The memory change for each annotation: a name that the program gave to a part of its code.

    The tuple is empty if the program gave no names.
    """
    levels: tuple[Level, ...]
    """The allocator's totals in both runs: allocated, pending, cached and reserved bytes, and the number of
    segments.
    """
    overall: tuple[Level, ...]
    """The allocated and reserved bytes at the end of each run, and the peak of allocated bytes if it is known."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return this comparison as plain data for `json.dumps`."""
        return {"schema": SCHEMA, **asdict(self)}


def difference_of(
    before: Sequence[History],
    after: Sequence[History],
    *,
    sources: tuple[str, str] = ("before", "after"),
    moment: Moment = Moment.END,
    semantics: str | None = None,
) -> Difference:
    """Compare two recorded runs. Each is summed over all of its devices.

    Args:
        before: the first run's histories, one for each device.
        after: the second run's histories.
        sources: the names of the two runs in the report.
        moment: END compares the runs when the snapshots were taken; PEAK when each run and device had the most
            allocated.
        semantics: the allocator's version, which is used to replay a run to find its peak.
    """
    ends = (holding_at_end(before), holding_at_end(after))
    old, new = ends
    if moment is Moment.PEAK:
        old, new = (holding_at_peak(side, semantics=semantics) for side in (before, after))
        peaks = [old.allocated_bytes, new.allocated_bytes]
    else:
        peaks = _peaks(before, after, semantics)
    return Difference(
        before=sources[0],
        after=sources[1],
        moment=moment,
        lines=tuple(_by_growth(_lines(old.places, new.places))),
        annotations=tuple(_by_growth(_annotations(old.annotations, new.annotations, old, new))),
        levels=_levels(old, new),
        overall=tuple(_overall(*ends, peaks)),
        notes=tuple(_notes(before, after, moment)),
    )


def _by_growth(changes: Iterable[LineChange]) -> list[LineChange]:
    return sorted(changes, key=lambda change: (-change.grown_bytes, -change.after_bytes, change.name))


def _lines(old: Mapping[Place, HeldBytes], new: Mapping[Place, HeldBytes]) -> list[LineChange]:
    pairs = _pairs(old, new)
    came_from = {after: before for before, after in pairs.items()}
    found = []
    for place, now in new.items():
        before = came_from.get(place)
        moved_from = str(before) if before not in (None, place) else None
        was = old[before] if before is not None else None
        found.append(_change(str(place), was, now, function=place.function, moved_from=moved_from))
    gone = (place for place in old if place not in pairs)
    return found + [_change(str(place), old[place], None, function=place.function) for place in gone]


def _change(
    name: str, was: HeldBytes | None, now: HeldBytes | None, *, function: str = "", moved_from: str | None = None
) -> LineChange:
    if was is None or now is None:
        kind = ChangeKind.NEW if was is None else ChangeKind.VANISHED
    else:
        kind = ChangeKind.SAME if moved_from is None else ChangeKind.MOVED
    was, now = was or HeldBytes(), now or HeldBytes()
    return LineChange(
        name=name,
        function=function,
        kind=kind,
        moved_from=moved_from,
        before_bytes=was.bytes,
        after_bytes=now.bytes,
        before_blocks=was.blocks,
        after_blocks=now.blocks,
    )


def _pairs(old: Iterable[Place], new: Iterable[Place]) -> dict[Place, Place]:
    functions: defaultdict[tuple[str, str], tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for side, places in enumerate((old, new)):
        for place in places:
            functions[place.file, place.function][side].add(place.line)
    return {
        Place(file=file, function=function, line=line): Place(file=file, function=function, line=other)
        for (file, function), (before, after) in functions.items()
        for line, other in _moves(before, after).items()
    }


# Lines that moved by the same distance are matched together, the largest group first. Of groups of equal size, the
# shortest distance comes first.
def _moves(before: set[int], after: set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    before, after = set(before), set(after)
    while before and after:
        together = {
            shift: [line for line in sorted(before) if line + shift in after]
            for shift in {there - here for here in before for there in after}
        }
        shift, lines = max(together.items(), key=lambda item: (len(item[1]), -abs(item[0]), item[0]))
        if len(lines) == 1 and shift and not len(before) == len(after) == 1:
            break  # A single line that moved may as well be a different line.
        for line in lines:
            found[line] = line + shift
        before -= set(lines)
        after -= {line + shift for line in lines}
    return found


def _annotations(
    old: Mapping[str, HeldBytes], new: Mapping[str, HeldBytes], first: MomentHolding, second: MomentHolding
) -> list[LineChange]:
    if not old and not new:
        return []
    old = old or {UNNAMED: sum(first.places.values(), HeldBytes())}
    new = new or {UNNAMED: sum(second.places.values(), HeldBytes())}
    return [_change(name, old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new))]


def _levels(old: MomentHolding, new: MomentHolding) -> tuple[Level, ...]:
    values = {
        "allocated": (old.allocated_bytes, new.allocated_bytes),
        "freed, pending": (old.pending_bytes, new.pending_bytes),
        "cached": (old.cached_bytes, new.cached_bytes),
        "reserved": (old.reserved_bytes, new.reserved_bytes),
    }
    levels = [Level(name=name, before=was, after=now, is_bytes=True) for name, (was, now) in values.items()]
    return (*levels, Level(name="segments", before=old.segments, after=new.segments, is_bytes=False))


def _peaks(before: Sequence[History], after: Sequence[History], semantics: str | None) -> list[int]:
    if not any(len(history) for history in (*before, *after)):
        return []
    try:
        return [sum(peak_allocated_bytes(history, semantics) for history in side) for side in (before, after)]
    # This run used a different allocator than PyTorch's own, so it has no replay; its end can still be compared.
    except UllageError:
        return []


def _overall(old: MomentHolding, new: MomentHolding, peaks: Sequence[int]) -> Iterable[Level]:
    yield Level(name="allocated at the end", before=old.allocated_bytes, after=new.allocated_bytes, is_bytes=True)
    yield Level(name="reserved at the end", before=old.reserved_bytes, after=new.reserved_bytes, is_bytes=True)
    if peaks:
        yield Level(name="allocated at the peak", before=peaks[0], after=peaks[1], is_bytes=True)


def _notes(before: Sequence[History], after: Sequence[History], moment: Moment) -> Iterable[str]:
    devices = [[history.device for history in side] for side in (before, after)]
    if devices[0] != devices[1]:
        first, second = (", ".join(map(str, side)) for side in devices)
        yield (
            f"the first snapshot has the GPUs {first}, the second {second}; the GPUs of each snapshot are added up "
            "(--device selects one)"
        )
    elif len(before) > 1:
        yield f"{len(before)} GPUs are added up (--device selects one)"
    texts = [_settings_of(side) for side in (before, after)]
    if texts[0] != texts[1]:
        first, second = (text or "(nothing set)" for text in texts)
        yield f"the allocator settings differ: {first} before, {second} after"
    for name, side in (("first", before), ("second", after)):
        if moment is Moment.PEAK and not any(len(history) for history in side):
            yield f"the {name} snapshot has no trace; its state at the end is used as its peak"
        failures = sum(int((history.action == Action.OOM).sum()) for history in side)
        if failures:
            yield f"in the {name} run {failures} request{'s' if failures > 1 else ''} failed"


def _settings_of(histories: Sequence[History]) -> str:
    found = (recorded_settings(history.settings) for history in histories)
    return next((text for text in found if text is not None), "")
