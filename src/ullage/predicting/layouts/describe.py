"""Build the report of `ullage fit --layout` from its result."""

from collections.abc import Iterator, Sequence

from ullage.base.errors import ExitCode
from ullage.base.units import text_of_bytes
from ullage.predicting.fitting.describe import limit_label
from ullage.predicting.layouts.layout_fit import FAILS, FITS, NOT_RUN, PARTLY, LayoutFit, LayoutRow, RankRun
from ullage.predicting.layouts.option_map import CONTEXT, PIPELINE
from ullage.predicting.layouts.representative import ALL_RANKS
from ullage.predicting.prediction.data.prediction import Verdict
from ullage.predicting.prediction.description.describe import describe as describe_prediction
from ullage.report.report import Picture, Plot, Point, Remarks, Report, Section, Table, TableRow, Tone

_ROWS_SHOWN = 12
_FAILURES_SHOWN = 6
_BETWEEN = "·"
# The first line of an error ends like this if the output of a program follows on the next lines.
_LEADS_ON = "; its last output was:"
_FRAME = " │┃║|"
_TRAFFIC = (
    "The column 'sends' is an estimate: the bytes that a rank sends in a step, counted from NCCL calls under the "
    "assumption that every collective uses the ring algorithm. Which algorithm NCCL chooses and how long it takes is "
    "unknown"
)
_AGAIN = (
    "The column 'recomputed' is an estimate: the part of the forward pass that the backward pass repeated, weighted by "
    "parameters"
)


def describe(found: LayoutFit) -> Report:
    """Return the report of `ullage fit --layout`."""
    best = found.best
    script = " ".join([found.script, *found.arguments])
    fullest = best.fullest if best is not None else None
    drawn = fullest.prediction if fullest is not None and fullest.prediction.picture is not None else None
    return Report(
        headline=_headline(found),
        tone=Tone.of_exit_code(found.exit_code),
        subject=f"{script} on {found.cards} x {found.gpu}",
        sentence=_sentence(found),
        sections=tuple(_sections(found)),
        pictures=(_picture(found), *(describe_prediction(drawn).pictures if drawn else ())),
    )


def _headline(found: LayoutFit) -> str:
    fitting = sum(row.verdict == FITS for row in found.rows)
    cut = "" if found.is_whole else " SO FAR"
    partly = sum(row.verdict == PARTLY for row in found.rows)
    if fitting or partly:
        more = f", {partly} MORE FIT ON THE RANKS THAT WERE RUN" if partly else ""
        return f"{fitting} OF {len(found.rows)} LAYOUTS FIT{more}{cut}"
    is_no = found.exit_code is ExitCode.NO
    return f"NONE OF {len(found.rows)} LAYOUTS FITS{cut}" if is_no else f"UNCERTAIN{cut}"


def _sentence(found: LayoutFit) -> str:
    best = found.best
    counts = f"{_count(found.run_count, 'run')} on {found.engine}, {found.known_count} reused from earlier searches"
    if best is None:
        reasons = dict.fromkeys(row.fullest.prediction.reason for row in found.rows if row.fullest)
        return f"{next(iter(reasons), 'Nothing was run')} ({counts})."
    fullest = best.fullest
    assert fullest is not None
    free = text_of_bytes(best.free_bytes or 0)
    value = f" with {_option(found)} {best.value}" if best.value is not None else ""
    what = f" at {_step(found, best.items)} per step" if best.items is not None else ""
    return (
        f"{best.layout.text}{value} fits{what}: at least {free} of {text_of_bytes(found.total_memory_bytes)} stay free "
        f"on {_named(fullest)} ({counts})."
    )


def _named(run: RankRun) -> str:
    return "every rank" if run.stands_for == ALL_RANKS else f"the fullest rank, rank {run.rank} ({run.stands_for})"


def _option(found: LayoutFit) -> str:
    return (found.option or "").lstrip("-+").replace("-", " ").replace("_", " ")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _step(found: LayoutFit, items: int) -> str:
    return f"{items * found.item_tokens:,} tokens" if found.item_tokens else _count(items, "item")


def _sections(found: LayoutFit) -> Iterator[Section]:
    fitting = [row for row in found.rows if row.verdict == FITS]
    if fitting:
        yield _fitting(found, fitting, "Layouts that fit (◀: no other layout is at least as good in every column)")
    partly = [row for row in found.rows if row.verdict == PARTLY]
    if partly:
        yield _fitting(found, partly, f"Layouts that fit, but of the ranks along {CONTEXT} only the first was run")
    others = [row for row in found.rows if row.verdict in (Verdict.DOES_NOT_FIT.value, Verdict.UNKNOWN.value)]
    if others:
        yield _not_fitting(found, others)
    failed = [row for row in found.rows if row.verdict in (FAILS, NOT_RUN) and row.error]
    if failed:
        yield Table(
            title="Layouts with which the script fails, or which could not be run",
            columns=(*_axes(found), "error"),
            rows=tuple(
                TableRow(
                    cells=(*_sizes(row), _line_of(row.error)), tone=Tone.UNSURE, is_detail=place >= _FAILURES_SHOWN
                )
                for place, row in enumerate(failed)
            ),
            instead=_hidden(len(failed), _FAILURES_SHOWN),
        )
    yield Remarks(title="Notes", items=tuple(_remarks(found)))


def _fitting(found: LayoutFit, rows: Sequence[LayoutRow], title: str) -> Table:
    chosen = set(found.frontier) if rows[0].verdict == FITS else set()
    again = any(row.recomputed_share for row in rows)
    value = [_option(found)] if found.option else []
    step = ["tokens per step" if found.item_tokens else "items per step"] if found.option else []
    return Table(
        title=title,
        columns=(*_axes(found), *value, *step, "free", "fullest rank", "sends", *(["recomputed"] if again else [])),
        rows=tuple(
            TableRow(
                cells=_cells(found, row, mark=" ◀" if place in chosen else "", again=again),
                tone=Tone.GOOD if place in chosen else Tone.PLAIN,
                is_detail=place >= _ROWS_SHOWN and place not in chosen,
            )
            for place, row in enumerate(rows)
        ),
        instead=_hidden(len(rows), sum(place < _ROWS_SHOWN or place in chosen for place in range(len(rows)))),
    )


def _cells(found: LayoutFit, row: LayoutRow, *, mark: str, again: bool) -> tuple[str, ...]:
    fullest = row.fullest
    value = [str(row.value)] if found.option else []
    amount = (row.items or 0) * (found.item_tokens or 1)
    step = [f"{amount:,}"] if found.option else []
    share = row.recomputed_share
    layout, *choices = _sizes(row)
    return (
        layout + mark,
        *choices,
        *value,
        *step,
        text_of_bytes(row.free_bytes) if row.free_bytes is not None else "",
        _rank(fullest) if fullest else "",
        text_of_bytes(row.sent_bytes) if row.sent_bytes is not None else "",
        *([f"{100 * share:.0f} %" if share is not None else ""] if again else []),
    )


def _axes(found: LayoutFit) -> tuple[str, ...]:
    layout = found.rows[0].layout
    return (_BETWEEN.join(name for name, _ in layout.sizes), *(option.lstrip("-") for option, _ in layout.choices))


def _sizes(row: LayoutRow) -> tuple[str, ...]:
    return (_BETWEEN.join(str(size) for _, size in row.layout.sizes), *(value for _, value in row.layout.choices))


def _rank(run: RankRun) -> str:
    short = run.stands_for.replace(" stage", "")
    return str(run.rank) if run.stands_for == ALL_RANKS else f"{run.rank} ({short})"


def _not_fitting(found: LayoutFit, rows: Sequence[LayoutRow]) -> Table:
    value = [_option(found)] if found.option else []
    return Table(
        title="Layouts that do not fit" + (f", even with the smallest {value[0]}" if value else ""),
        columns=(*_axes(found), *value, "rank", "why"),
        rows=tuple(
            TableRow(
                cells=(
                    *_sizes(row),
                    *([str(row.value)] if found.option else []),
                    _rank(fullest),
                    fullest.prediction.reason,
                ),
                tone=Tone.BAD if row.verdict == Verdict.DOES_NOT_FIT.value else Tone.UNSURE,
                is_detail=place >= _FAILURES_SHOWN,
            )
            for place, row in enumerate(rows)
            if (fullest := row.fullest) is not None
        ),
        instead=_hidden(len(rows), _FAILURES_SHOWN),
    )


def _hidden(count: int, shown: int) -> tuple[str, ...]:
    return (f"{count - shown} more: use --json or --html to see all",) if count > shown else ()


def _line_of(error: str) -> str:
    first, _, rest = error.partition("\n")
    if not first.endswith(_LEADS_ON):
        return first
    said = [line.strip(_FRAME) for line in rest.splitlines()]
    telling = [line for line in said if "error" in line.lower()] or [line for line in said if line]
    return f"{first.removesuffix(_LEADS_ON)}: {telling[-1]}" if telling else first


def _remarks(found: LayoutFit) -> Iterator[str]:
    missing = sum(row.verdict == NOT_RUN and not row.error for row in found.rows)
    if missing:
        yield (
            f"{_count(missing, 'layout')} were not tried; run the same command again to continue from the stored "
            "results"
        )
    yield _ranks(found)
    yield from _contexts(found)
    yield _TRAFFIC
    if any(row.recomputed_share for row in found.rows):
        yield _AGAIN
    yield from found.notes


def _ranks(found: LayoutFit) -> str:
    has_stages = any(row.layout.size(PIPELINE) > 1 for row in found.rows)
    stages = "of the stages of a pipeline, the first, the second and the last rank; " if has_stages else ""
    but = f" but {CONTEXT}" if any(row.layout.size(CONTEXT) > 1 for row in found.rows) else ""
    return (
        f"Each rank was run alone, as one of {found.cards} ranks: {stages}along every other axis{but} only the first "
        "rank, because the other ranks run the same code with shards that are not larger"
    )


def _contexts(found: LayoutFit) -> Iterator[str]:
    if all(row.layout.size(CONTEXT) == 1 for row in found.rows):
        return
    partly = sum(row.verdict == PARTLY for row in found.rows)
    why = ", because another layout is at least as good in every column" if found.is_whole else ""
    rest = f"; of {_count(partly, 'layout')} only the first rank was run{why}" if partly else ""
    yield (
        f"Each rank along {CONTEXT} attends to different parts of a sequence, and its reserved memory follows no "
        f"simple rule: if a layout fits, every such rank was run{rest}"
    )


def _picture(found: LayoutFit) -> Picture:
    drawn = sorted(
        (row for row in found.rows if row.fullest is not None),
        key=lambda row: -(row.free_bytes if row.free_bytes is not None else -1),
    )
    total = found.total_memory_bytes
    return Plot(
        title="Peak GPU memory of the fullest rank of each layout",
        x_label="layouts, those with most free memory first",
        y_label="peak GPU memory",
        y_is_bytes=True,
        points=tuple(
            Point(x=place + 1, y=total - (row.free_bytes or 0), tone=_tone(row), remark=_remark(found, row))
            for place, row in enumerate(drawn)
        ),
        line=(),
        line_label="",
        limit=total - found.margin_bytes,
        limit_label=limit_label(found.gpu, total, found.margin_bytes),
    )


def _tone(row: LayoutRow) -> Tone:
    if row.verdict == FITS:
        return Tone.GOOD
    return Tone.BAD if row.verdict == Verdict.DOES_NOT_FIT.value else Tone.UNSURE


def _remark(found: LayoutFit, row: LayoutRow) -> str:
    value = f", {_option(found)} {row.value}" if row.value is not None else ""
    fullest = row.fullest
    rank = f", rank {_rank(fullest)}" if fullest else ""
    return f"{row.layout.text}{value}{rank}: {row.verdict}"
