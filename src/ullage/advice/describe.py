"""Arrange advice into a report."""

from collections.abc import Iterator
from typing import Final

from ullage._secrets import SourceCode
from ullage._units import text_of_bytes
from ullage.advice.advice import Advice
from ullage.advice.cost import estimate_of
from ullage.advice.trial import ChangeTrial
from ullage.changes.change import ChangeCost, Gradients
from ullage.prediction.command.words import shown
from ullage.prediction.prediction import Prediction, Verdict
from ullage.report.report import Meter, Plot, Point, Quote, Remarks, Report, Section, SizedPart, Table, TableRow, Tone
from ullage.tracing.source import Line

_COSTS: Final = {
    ChangeCost.NOTHING: "",
    ChangeCost.TIME: "time",
    ChangeCost.NUMERICS: "other numbers",
    ChangeCost.CARDS: "more cards",
}


def describe(advice: Advice) -> Report:
    """Make the report of advice."""
    script = shown([advice.script, *advice.arguments])
    return Report(
        headline=_headline(advice),
        tone=Tone.GOOD if advice.exit_code == 0 else Tone.UNSURE if advice.exit_code == 4 else Tone.BAD,
        subject=f"{script} on {advice.gpu}",
        sentence=_sentence(advice),
        sections=tuple(_sections(advice)),
        pictures=(_picture(advice),),
    )


def _headline(advice: Advice) -> str:
    if advice.base.verdict is Verdict.FITS:
        return "FITS AS IT IS"
    if advice.best is not None:
        return f"FITS WITH {advice.best.combination.title.upper()}"
    return "NOTHING THAT WAS TRIED MAKES IT FIT" if advice.is_complete else "NOT FOUND YET"


def _sentence(advice: Advice) -> str:
    total = text_of_bytes(advice.total_memory_bytes)
    need = f"As it is, the script needs {_used(advice.need)} of {total}"
    if advice.base.verdict is Verdict.FITS:
        return f"{need}. The changes below would leave more room; each was run."
    if advice.best is None or advice.best.prediction is None:
        lowest = min(
            (trial for trial in advice.trials if trial.need_bytes), key=lambda each: each.need_bytes or 0, default=None
        )
        least = (
            f" The most that one change saves leaves {_used(lowest.prediction)}."
            if lowest and lowest.prediction
            else ""
        )
        return f"{need}.{least}" if advice.is_complete else f"{need}. The search was interrupted.{least}"
    estimate = advice.estimate.text if advice.estimate is not None else ""
    costs = f"; {estimate}" if estimate else ""
    gradients = advice.best.combination.gradients(advice.facts)
    proved = " The script with the lines below was run too, and needs the same bytes." if _is_proved(advice) else ""
    return f"{need}; with it, {_used(advice.best.prediction)}{costs}; gradients {gradients}.{proved}"


def _is_proved(advice: Advice) -> bool:
    return advice.written is not None and advice.written.is_proved


def _used(found: Prediction) -> str:
    return text_of_bytes(found.interval_bytes[1])


def _sections(advice: Advice) -> Iterator[Section]:
    yield _meter(advice)
    yield from _written(advice)
    if advice.need.avoidable:
        yield _avoidable(advice)
    if advice.trials:
        yield _changes(advice)
    if advice.not_made:
        yield Table(
            title="Not made in this script",
            columns=("change", "why"),
            rows=tuple(TableRow(cells=(each.change.name, each.why), tone=Tone.QUIET) for each in advice.not_made),
        )
    notes = tuple(dict.fromkeys((*advice.base.notes, *advice.need.notes)))
    if notes:
        yield Remarks(title="To know", items=notes)


def _meter(advice: Advice) -> Meter:
    parts = [SizedPart(label="as it is", size_bytes=advice.need.interval_bytes[1], remark="the script unchanged")]
    if advice.best is not None and advice.best.prediction is not None:
        parts = [
            SizedPart(
                label="with the advice",
                size_bytes=advice.best.prediction.interval_bytes[1],
                remark=advice.best.combination.title,
            )
        ]
    return Meter(
        title="Used of the card at most",
        total_bytes=advice.total_memory_bytes,
        total_label=advice.gpu,
        parts=tuple(parts),
    )


def _avoidable(advice: Advice) -> Table:
    return Table(
        title="What of the peak can be avoided",
        columns=("what", "at the peak", "gain", "where", "what to do"),
        rows=tuple(
            TableRow(
                cells=(
                    each.kind.value.replace("_", " ") + (f": {', '.join(each.names)}" if each.names else ""),
                    text_of_bytes(each.peak_bytes),
                    "" if each.gain_bytes is None else text_of_bytes(each.gain_bytes),
                    str(Line(each.file, each.line)) if each.file and each.line else each.module,
                    each.remedy,
                )
            )
            for each in advice.need.avoidable
        ),
    )


def _changes(advice: Advice) -> Table:
    base = advice.need.interval_bytes[1]
    ordered = sorted(advice.trials, key=lambda trial: (trial.combination.cost, trial.need_bytes or 0))
    return Table(
        title="Every change alone, each one run",
        columns=("change", "used at most", "gain", "costs", "gradients", ""),
        rows=tuple(_change(advice, trial, base) for trial in ordered),
    )


def _change(advice: Advice, trial: ChangeTrial, base: int) -> TableRow:
    need = trial.need_bytes
    gain = base - need if need is not None else 0
    estimate = estimate_of(trial.combination, advice.facts)
    cost = estimate.text or _COSTS[trial.combination.cost]
    is_best = advice.best is not None and trial.combination == advice.best.combination
    gradients = trial.combination.gradients(advice.facts)
    return TableRow(
        cells=(
            trial.combination.title,
            "" if need is None else text_of_bytes(need),
            _signed(gain),
            cost,
            "" if gradients is Gradients.SAME else gradients.value,
            "fits ◀" if is_best else "fits" if trial.fits else "",
        ),
        tone=Tone.GOOD if trial.fits else Tone.PLAIN if gain > 0 else Tone.QUIET,
        share=min(1.0, (need or 0) / advice.total_memory_bytes),
    )


def _signed(gain: int) -> str:
    if not gain:
        return "none"
    return text_of_bytes(gain) if gain > 0 else f"{text_of_bytes(-gain)} more"


def _written(advice: Advice) -> Iterator[Section]:
    found = advice.written
    if found is None:
        return
    if found.command:
        yield Quote(title="To set", text=found.command, is_to_paste=True)
    if found.diff:
        yield Quote(title="To write, as a diff", text=SourceCode(found.diff.rstrip("\n")), is_to_paste=True)
    for part in found.parts:
        if not part.is_in_diff:
            yield Quote(title=f"To write for {part.name}; {part.why_not}", text=part.snippet)
    if found.problem:
        yield Remarks(
            title="Not proved", items=(f"{found.problem}: the bytes were measured with the change made from outside",)
        )
    elif not found.is_proved and found.proof is not None:
        promised = advice.best.prediction.peak_allocated_bytes if advice.best and advice.best.prediction else 0
        yield Remarks(
            title="Not proved",
            items=(
                f"the script with these lines allocates {found.proof.peak_allocated_bytes:,} bytes at the most, with "
                f"the change from outside {promised:,}",
            ),
        )


def _picture(advice: Advice) -> Plot:
    """Return the need of every change beside the card's line."""
    points = [Point(x=0, y=advice.need.interval_bytes[1], tone=Tone.BAD, remark="as it is")]
    for number, trial in enumerate(advice.trials, 1):
        if trial.need_bytes is not None:
            tone = Tone.GOOD if trial.fits else Tone.BAD
            points.append(Point(x=number, y=trial.need_bytes, tone=tone, remark=trial.combination.title))
    return Plot(
        title="What each change alone needs",
        x_label="change",
        y_label="used at most",
        y_is_bytes=True,
        points=tuple(points),
        line=(),
        line_label="",
        limit=advice.total_memory_bytes,
        limit_label=f"{advice.gpu}: {text_of_bytes(advice.total_memory_bytes)}",
    )
