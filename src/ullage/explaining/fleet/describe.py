"""Writes the report on the memory snapshots of many ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.describe import describe as describe_explanation
from ullage.explaining.fleet.alike import RankGroup
from ullage.explaining.fleet.fleet import DifferentRank, FleetExplanation
from ullage.report.report import Plot, Point, Remarks, Report, Section, Table, TableRow, Tone

_NAMED = 8
_ROWS = 32
_UNREADABLE_SHOWN = 8
_MORE = (
    "Use --all or --html PAGE to see every tested change for the fullest rank and all notes; --rank N explains "
    "another rank"
)


def describe(fleet: FleetExplanation) -> Report:
    """Return the report on many ranks. Unusual ranks come first, then the explanation of the rank with the most
    memory.
    """
    total = sum(len(group.ranks) for group in fleet.groups)
    fullest = describe_explanation(fleet.fullest) if fleet.fullest is not None else None
    return Report(
        headline=_headline(fleet, total),
        tone=Tone.BAD if fullest is not None and fullest.tone is Tone.BAD else Tone.PLAIN,
        subject=fleet.folder,
        sentence=_sentence(fleet),
        sections=(
            *_tables(fleet),
            *_what_is_missing(fleet),
            *((_verdict(fleet, fullest), *fullest.sections) if fullest is not None else ()),
        ),
        pictures=(_plot(fleet), *(fullest.pictures if fullest is not None else ())),
        details=(*_all_groups(fleet), *(fullest.details if fullest is not None else ())),
        more=_MORE,
    )


def _headline(fleet: FleetExplanation, total: int) -> str:
    if fleet.different:
        return f"{len(fleet.different):,} OF {total:,} RANKS {'DIFFERS' if len(fleet.different) == 1 else 'DIFFER'}"
    if len(fleet.groups) > 1:
        return f"{total:,} RANKS OF {len(fleet.groups)} KINDS"
    return f"ALL {total:,} RANKS ARE ALIKE"


def _sentence(fleet: FleetExplanation) -> str:
    said = " ".join(_of_kind(group) + "." for group in fleet.kinds[:_NAMED])
    if len(fleet.kinds) > _NAMED:
        said += f" {len(fleet.kinds) - _NAMED} more kinds: --all."
    if not fleet.different:
        return said
    shown = fleet.different[:_NAMED]
    one = len(fleet.different) == 1
    said += f" {'This rank differs' if one else f'These {len(fleet.different):,} ranks differ'}: "
    more = len(fleet.different) - len(shown)
    return said + ", ".join(rank.figures.file.name for rank in shown) + (f", and {more:,} more." if more else ".")


def _of_kind(group: RankGroup) -> str:
    low, high = (choose(one.summary.peak_allocated_bytes for one in group.ranks) for choose in (min, max))
    texts = dict.fromkeys((text_of_bytes(low), text_of_bytes(high)))
    return f"{len(group.ranks):,} ranks are alike (peak {' to '.join(texts)})"


def _tables(fleet: FleetExplanation) -> Iterator[Section]:
    if fleet.different:
        yield _differing(fleet.different)
        yield Remarks(
            title="How the ranks that differ compare with the others",
            items=tuple(f"{one.figures.file.name}: {one.why}" for one in fleet.different[:_ROWS]),
        )
    if len(fleet.kinds) > 1:
        yield Table(
            title="Kinds of ranks",
            columns=("ranks", "which", "peak allocated", "peak reserved", "largest line"),
            rows=tuple(_kind_row(group) for group in fleet.kinds),
        )


def _differing(different: Sequence[DifferentRank]) -> Table:
    rows = tuple(
        TableRow(
            cells=(
                one.figures.file.name,
                text_of_bytes(one.figures.summary.peak_allocated_bytes),
                text_of_bytes(one.figures.summary.peak_reserved_bytes),
                one.figures.summary.headline or Cause(one.figures.summary.cause).heading,
            ),
            tone=Tone.BAD if one.figures.summary.failed else Tone.PLAIN,
            is_detail=index >= _ROWS,
        )
        for index, one in enumerate(different)
    )
    more = len(rows) - _ROWS
    return Table(
        title="Ranks that differ",
        columns=("rank", "peak allocated", "peak reserved", "by itself"),
        rows=rows,
        instead=(f"{more:,} more: --all",) if more > 0 else (),
    )


def _kind_row(group: RankGroup) -> TableRow:
    summary = group.fullest.summary
    line = max(summary.lines.items(), key=lambda item: item[1][0], default=("", (0, 0)))[0]
    return TableRow(
        cells=(
            f"{len(group.ranks):,}",
            _numbers(group),
            text_of_bytes(max(one.summary.peak_allocated_bytes for one in group.ranks)),
            text_of_bytes(summary.peak_reserved_bytes),
            line,
        )
    )


def _numbers(group: RankGroup) -> str:
    ranks = sorted(one.file.rank for one in group.ranks if one.file.rank is not None)
    if len(ranks) < len(group.ranks):
        return ", ".join(one.file.name for one in group.ranks[:2]) + (", ..." if len(group.ranks) > 2 else "")
    return ranges_of(ranks)


def ranges_of(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text with ranges, such as "0 to 3, 7". Only the first eight ranges are shown."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in ranges]
    return ", ".join(texts[:_NAMED]) + (f", and {len(texts) - _NAMED:,} more" if len(texts) > _NAMED else "")


def _what_is_missing(fleet: FleetExplanation) -> Iterator[Section]:
    items = [f"{name}: {why}" for name, why in fleet.unreadable[:_UNREADABLE_SHOWN]]
    if more := len(fleet.unreadable) - len(items):
        items.append(f"{more:,} more cannot be read (--json lists all)")
    if fleet.missing:
        count = len(fleet.missing)
        items.append(f"no snapshot exists for {count:,} rank{'s' if count > 1 else ''}: {ranges_of(fleet.missing)}")
    if items:
        yield Remarks(title="Not read", items=tuple(items))
    if fleet.notes:
        yield Remarks(title="Notes on the files", items=fleet.notes)


def _verdict(fleet: FleetExplanation, fullest: Report) -> Remarks:
    return Remarks(
        title=f"The rank with the most memory, {fleet.fullest_name}: {fullest.headline}", items=(fullest.sentence,)
    )


def _all_groups(fleet: FleetExplanation) -> Iterator[Section]:
    yield Remarks(
        title="Groups of ranks that are alike",
        items=tuple(f"{_of_kind(group)}: {_numbers(group)}" for group in fleet.groups),
    )


def _plot(fleet: FleetExplanation) -> Plot:
    odd = {one.figures.file.path: one.why for one in fleet.different}
    points = [
        Point(
            x=one.file.rank if one.file.rank is not None else -1,
            y=one.summary.peak_reserved_bytes,
            tone=Tone.BAD if one.summary.failed else Tone.UNSURE if one.file.path in odd else Tone.GOOD,
            remark=f"{one.file.name}: {odd.get(one.file.path, 'like the other ranks')}",
        )
        for group in fleet.groups
        for one in group.ranks
    ]
    numbered = [
        point if point.x >= 0 else replace(point, x=number)
        for number, point in enumerate(sorted(points, key=lambda point: point.x))
    ]
    return Plot(
        title="Peak of reserved memory by rank",
        x_label="rank",
        y_label="peak reserved",
        y_is_bytes=True,
        points=tuple(sorted(numbered, key=lambda point: point.x)),
        line=(),
        line_label="",
        outcomes=("like others", "differs", "ran out of memory"),
    )
