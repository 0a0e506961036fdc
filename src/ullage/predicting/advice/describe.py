"""Build the report of `ullage advise` from its result."""

from collections.abc import Iterator, Sequence
from typing import Final

from ullage.base.secrets import SourceCode
from ullage.base.units import text_of_bytes
from ullage.gpu.tracing.source import Line
from ullage.predicting.advice.advice import Advice
from ullage.predicting.advice.cost import estimate_of
from ullage.predicting.advice.largest import LargestWith
from ullage.predicting.advice.trial import ChangeTrial, Combination
from ullage.predicting.changes.change import ChangeCost, Gradients
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.prediction.command.words import shown
from ullage.predicting.prediction.data.avoidable_memory import AvoidableKind
from ullage.predicting.prediction.data.prediction import Prediction, Verdict
from ullage.report.report import Bar, Bars, Meter, Quote, Remarks, Report, Section, SizedPart, Table, TableRow, Tone

_COSTS: Final = {
    ChangeCost.NOTHING: "",
    ChangeCost.TIME: "more time",
    ChangeCost.NUMERICS: "numerical differences",
    ChangeCost.CARDS: "more GPUs",
}


def describe(advice: Advice) -> Report:
    """Return the report of `ullage advise`."""
    script = shown([advice.script, *advice.arguments])
    return Report(
        headline=_headline(advice),
        tone=Tone.of_exit_code(advice.exit_code),
        subject=f"{script} on {advice.gpu}",
        sentence=_sentence(advice),
        sections=tuple(_sections(advice)),
        pictures=(_picture(advice),),
    )


def _headline(advice: Advice) -> str:
    if advice.axis is not None and advice.largest:
        return _largest_headline(advice.axis, advice.largest)
    if advice.base.verdict is Verdict.FITS:
        return "FITS WITHOUT CHANGES"
    if advice.best is not None:
        return f"FITS WITH {advice.best.combination.title.upper()}"
    return (
        "NO CHANGE THAT WAS TRIED MAKES THE SCRIPT FIT"
        if advice.is_complete
        else "NOTHING FOUND BEFORE THE INTERRUPTION"
    )


def _largest_headline(axis: Axis, rows: Sequence[LargestWith]) -> str:
    base = rows[0].value
    most = max((each for each in rows if each.value is not None), key=lambda each: each.value or 0, default=None)
    if most is None:
        return "NO VALUE THAT WAS TRIED FITS"
    if most is rows[0] or most.value == base:
        return f"{axis.name.upper()} {base} FITS, AND NO CHANGE ALLOWS A LARGER VALUE"
    return f"{axis.name.upper()} {base if base is not None else 'NONE'} FITS WITHOUT CHANGES, {most.value} WITH CHANGES"


def _sentence(advice: Advice) -> str:
    if advice.axis is not None and advice.largest:
        again = f"ullage advise ... {advice.axis.option} N --patch FILE"
        cut = "" if advice.is_complete else " The search was interrupted."
        weighed = f"All tables but the first show runs with {advice.axis.name} {advice.largest[0].to_weigh}."
        return (
            f"The script was run with each value. {weighed} To get the cheapest changes with which a value N fits as a "
            f"diff, run `{again}`.{cut}"
        )
    total = text_of_bytes(advice.total_memory_bytes)
    need = f"Without changes, the script needs {_used(advice.need)} of the GPU's {total}"
    if advice.base.verdict is Verdict.FITS:
        return f"{need}. The changes below would leave more memory free; the script was run with each."
    if advice.best is None or advice.best.prediction is None:
        lowest = min((trial.need_bytes for trial in advice.trials if trial.need_bytes), default=None)
        least = (
            f" With the change that saves the most memory, the script still needs {text_of_bytes(lowest)}."
            if lowest
            else ""
        )
        return f"{need}.{least}" if advice.is_complete else f"{need}. The search was interrupted.{least}"
    estimate = advice.estimate.text if advice.estimate is not None else ""
    costs = "".join(f"; {each}" for each in (estimate, _pinned(advice, advice.best)) if each)
    gradients = advice.best.combination.gradients(advice.facts)
    interrupted = "" if advice.is_complete else " The search was interrupted, so a cheaper change may fit too."
    is_proved = advice.written is not None and advice.written.is_proved
    proved = (
        " ullage ran the script with the edits below, and the run needed exactly as many bytes as predicted."
        if is_proved
        else ""
    )
    return (
        f"{need}; with the advised changes, it needs {_used(advice.best.prediction)}{costs}. Gradients compared with "
        f"the unchanged script: {gradients}.{proved}{interrupted}"
    )


def _used(found: Prediction) -> str:
    return text_of_bytes(found.interval_bytes[1])


def _sections(advice: Advice) -> Iterator[Section]:
    if advice.largest:
        yield _largest(advice)
    yield _meter(advice)
    if advice.best is not None:
        parts = advice.best.combination.parts
        yield Remarks(
            title="What the advised changes do",
            items=tuple(f"{part.title}: {part.change.explanation}" for part in parts),
        )
    remarks = _remarks(advice)
    if remarks:
        yield Remarks(title="What else the changes do in this script", items=remarks)
    yield from _written(advice)
    if advice.need.avoidable:
        yield from _avoidable(advice)
    if advice.trials:
        yield from _changes(advice)
    if advice.not_made:
        yield Table(
            title="Changes that cannot be applied to this script",
            columns=("change", "reason"),
            rows=tuple(TableRow(cells=(each.change.name, each.why), tone=Tone.QUIET) for each in advice.not_made),
        )
    notes = tuple(dict.fromkeys((*advice.base.notes, *advice.need.notes)))
    if notes:
        yield Remarks(title="Notes", items=notes)


def _largest(advice: Advice) -> Table:
    assert advice.axis is not None
    return Table(
        title=f"The largest {advice.axis.name} that fits",
        columns=("changes", "fits", "does not fit", "peak memory", "cost"),
        rows=tuple(_largest_row(advice, each) for each in advice.largest),
        wraps=True,
    )


def _largest_row(advice: Advice, one: LargestWith) -> TableRow:
    name = one.combination.title if one.combination.parts else "no changes"
    if one.largest is None:
        return TableRow(cells=(name, "", "", "", one.problem), tone=Tone.QUIET)
    best, following = one.largest.best, one.largest.next
    return TableRow(
        cells=(
            name,
            "none" if best is None else str(best.value),
            "" if following is None else str(following.value),
            "" if best is None else _used(best.prediction),
            _costs(advice, one.combination),
        ),
        tone=Tone.BAD if best is None else Tone.GOOD,
    )


def _meter(advice: Advice) -> Meter:
    label, used, remark = "without changes", advice.need, "the unchanged script"
    if advice.best is not None and advice.best.prediction is not None:
        label, used, remark = "with the advised changes", advice.best.prediction, advice.best.combination.title
    return Meter(
        title="Peak of used GPU memory",
        total_bytes=advice.total_memory_bytes,
        total_label=advice.gpu,
        parts=(SizedPart(label=label, size_bytes=used.interval_bytes[1], remark=remark),),
    )


def _avoidable(advice: Advice) -> Iterator[Section]:
    found = advice.need.avoidable
    yield Table(
        title="Avoidable memory at the peak",
        columns=("memory", "size at the peak", "saving", "where"),
        rows=tuple(
            TableRow(
                cells=(
                    _named(each.kind) + (f": {', '.join(each.names)}" if each.names else ""),
                    text_of_bytes(each.peak_bytes),
                    "" if each.gain_bytes is None else text_of_bytes(each.gain_bytes),
                    str(Line(each.file, each.line)) if each.file and each.line else each.module,
                )
            )
            for each in found
        ),
        wraps=True,
    )
    remedies = tuple(dict.fromkeys(f"{_named(each.kind)}: {each.remedy}" for each in found if each.remedy))
    if remedies:
        yield Remarks(title="How to avoid it", items=remedies)


def _named(kind: AvoidableKind) -> str:
    return kind.value.replace("_", " ")


def _changes(advice: Advice) -> Iterator[Section]:
    base = advice.need.interval_bytes[1]
    ordered = sorted(advice.trials, key=lambda trial: (trial.combination.cost, trial.need_bytes or 0))
    yield Table(
        title="Each change alone, by running the script with it",
        columns=("change", "peak memory", "saving", "cost", ""),
        rows=tuple(_change(advice, trial, base) for trial in ordered),
        wraps=True,
    )
    estimates = {trial.combination.title: estimate_of(trial.combination, advice.facts) for trial in ordered}
    times = tuple(f"{title}: {one.text}" for title, one in estimates.items() if one.host_bytes)
    if times:
        yield Remarks(title="Estimated time of the copies to host memory", items=times)


def _change(advice: Advice, trial: ChangeTrial, base: int) -> TableRow:
    need = trial.need_bytes
    gain = base - need if need is not None else 0
    is_best = advice.best is not None and trial.combination == advice.best.combination
    return TableRow(
        cells=(
            trial.combination.title,
            "" if need is None else text_of_bytes(need),
            "" if need is None else text_of_bytes(gain) if gain >= 0 else f"-{text_of_bytes(-gain)}",
            ", ".join(each for each in (_costs(advice, trial.combination), _pinned(advice, trial)) if each),
            "fits ◀" if is_best else "fits" if trial.fits else "",
        ),
        tone=Tone.GOOD if trial.fits else Tone.PLAIN if gain > 0 else Tone.QUIET,
    )


def _pinned(advice: Advice, trial: ChangeTrial) -> str:
    size = trial.pinned_bytes(advice.need)
    return f"{text_of_bytes(size)} of pinned host memory" if size else ""


def _costs(advice: Advice, one: Combination) -> str:
    estimate = estimate_of(one, advice.facts)
    gradients = one.gradients(advice.facts)
    if gradients is Gradients.UNKNOWN:
        return ", ".join(part for part in (estimate.short, "gradients not known to be the same") if part)
    parts = [part for part in (estimate.short or _COSTS[one.cost],) if part]
    if gradients is Gradients.ROUNDING:
        parts.append("same gradients up to rounding")
    return ", ".join(parts)


def _remarks(advice: Advice) -> tuple[str, ...]:
    changes = {part.change.key: part.change for trial in advice.trials for part in trial.combination.parts}
    found = {each.name: each.remark_for(advice.facts) for each in changes.values() if each.remark_for is not None}
    return tuple(f"{name}: {remark}" for name, remark in found.items() if remark)


def _written(advice: Advice) -> Iterator[Section]:
    found = advice.written
    if found is None:
        return
    if found.command:
        yield Quote(title="Environment variables and arguments to set", text=found.command, is_to_paste=True)
    if found.diff:
        yield Quote(title="The changes as a diff", text=SourceCode(found.diff.rstrip("\n")), is_to_paste=True)
    for part in found.parts:
        if not part.is_in_diff:
            yield Quote(title=f"To add by hand for {part.name}; {part.why_not}", text=part.snippet)
    if found.problem:
        yield Remarks(
            title="Not verified",
            items=(
                f"{found.problem}. The memory figures are those of a run that applied the changes without editing "
                "the script.",
            ),
        )
    elif not found.is_proved and found.proof is not None:
        promised = advice.best.prediction.peak_allocated_bytes if advice.best and advice.best.prediction else 0
        yield Remarks(
            title="Not verified",
            items=(
                f"With the source code above, the script's peak is {found.proof.peak_allocated_bytes:,} allocated "
                f"bytes; when ullage applies the changes without editing the script, the peak is {promised:,} bytes.",
            ),
        )


def _picture(advice: Advice) -> Bars:
    as_it_is = Tone.GOOD if advice.base.verdict is Verdict.FITS else Tone.BAD
    needs = [("no changes", advice.need.interval_bytes[1], as_it_is, "")]
    if advice.best is not None and advice.best.need_bytes is not None and len(advice.best.combination.parts) > 1:
        needs.append((advice.best.combination.title, advice.best.need_bytes, Tone.GOOD, "the advised changes"))
    for trial in sorted(advice.trials, key=lambda each: (each.combination.cost, each.need_bytes or 0)):
        if trial.need_bytes is not None:
            is_best = advice.best is not None and trial.combination == advice.best.combination
            tone = Tone.GOOD if trial.fits else Tone.BAD
            needs.append((trial.combination.title, trial.need_bytes, tone, "the advised changes" if is_best else ""))
    return Bars(
        title="Memory that the script needs with each change alone",
        bars=tuple(Bar(label=label, size_bytes=size, tone=tone, remark=remark) for label, size, tone, remark in needs),
        limit_bytes=advice.total_memory_bytes,
        limit_label=f"{advice.gpu}: {text_of_bytes(advice.total_memory_bytes)}",
    )
