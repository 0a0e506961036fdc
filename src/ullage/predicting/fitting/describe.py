"""Build the report of `ullage fit` from its result."""

from collections.abc import Iterator

from ullage.base.units import text_of_bytes
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.fit import Fit, FrontierRow, Largest, Probe, TriedChange
from ullage.predicting.prediction.command.words import shown
from ullage.predicting.prediction.data.prediction import Verdict
from ullage.predicting.prediction.description.describe import describe as describe_prediction
from ullage.predicting.prediction.verdict.reason import deciding
from ullage.report.report import Picture, Plot, Point, Remarks, Report, Section, Table, TableRow, Tone

_PLACES_SHOWN = 2
_RANGE = (
    "range: the lowest to the highest memory that a real GPU's driver may report as used at the peak; a value fits if "
    'even the highest figure fits, which is in the column "used at most"'
)


def describe(fit: Fit) -> Report:
    """Return the report of `ullage fit`."""
    script = shown([fit.script, *fit.arguments])
    best, first = fit.largest.best, fit.largest.probes[0].prediction
    rank = f", rank {first.rank} of {first.world_size}" if first.world_size else ""
    return Report(
        headline=_headline(fit),
        tone=Tone.GOOD if best else Tone.UNSURE if _is_unjudged(fit) else Tone.BAD,
        subject=f"{script} on {fit.gpu}{rank}",
        sentence=_sentence(fit),
        sections=tuple(_sections(fit)),
        pictures=(_picture(fit), *(describe_prediction(best.prediction).pictures if best else ())),
    )


def _headline(fit: Fit) -> str:
    best = fit.largest.best
    if best is None:
        return "UNCERTAIN" if _is_unjudged(fit) else "NOTHING FITS"
    suffix = f" WITH {fit.second.name.upper()} {fit.second.low}" if fit.second else ""
    return f"{fit.axis.name.upper()} {best.value} FITS{suffix}"


def _is_unjudged(fit: Fit) -> bool:
    return fit.largest.best is None and fit.largest.probes[0].prediction.verdict is Verdict.UNKNOWN


def _sentence(fit: Fit) -> str:
    best, following, name = fit.largest.best, fit.largest.next, fit.axis.name
    if best is None:
        lowest = fit.largest.probes[0]
        even = f"Even {name} {lowest.value} {_verdict(lowest)}: {lowest.prediction.reason}"
        return f"{even}. Larger values were not tried."
    suffix = f" at {fit.second.name} {fit.second.low}" if fit.second else ""
    margin = f" with a margin of {text_of_bytes(fit.margin_bytes)}" if fit.margin_bytes else ""
    text = (
        f"{best.value} is the largest {name} that fits{suffix}{margin}{_certainty(best)}; "
        f"at least {text_of_bytes(_free(best))} of {text_of_bytes(fit.total_memory_bytes)} stay free"
    )
    growth = best.prediction.growth
    if growth is not None:
        text += f", but every step keeps {text_of_bytes(growth.bytes_per_step)} more"
    if fit.largest.failure is not None:
        value, error = fit.largest.failure
        return f"{text}. With {value} the script itself fails: {error.splitlines()[0].partition(': ')[2] or error}."
    if following is None:
        if len({probe.prediction.peak_allocated_bytes for probe in fit.largest.probes}) == 1 < len(fit.largest.probes):
            text += f". Every {name} that was run needs the same memory: memory does not depend on it"
        return f"{text}. It is the largest value that you allowed."
    return f"{text}. {following.value} {_verdict(following)}. Both values were run."


def _certainty(probe: Probe) -> str:
    places = deciding(probe.prediction.reads, "drawn", "unknown")
    if places:
        seeds = len(probe.prediction.draws)
        tried = f"with {seeds} seeds" if seeds else "with one seed"
        return (
            f" {tried} for values that only a real GPU computes and that decide ({', '.join(places[:_PLACES_SHOWN])})"
        )
    if probe.prediction.growth:
        return ""
    is_estimated = probe.prediction.cudnn.problems.keys() & {"table", "unknown"}
    return (
        ", if the estimates of cuDNN's workspaces are right" if is_estimated else " even at the upper end of the range"
    )


def _verdict(probe: Probe) -> str:
    if probe.prediction.oom_count and probe.prediction.oom is None:
        return "runs out of memory, which the script handles"
    if probe.prediction.verdict is Verdict.FITS and not probe.fits:
        complete = any(step.complete for step in probe.prediction.steps)
        return "fits without the margin" if complete else "makes no optimizer step"
    texts = {Verdict.FITS: "fits", Verdict.DOES_NOT_FIT: "does not fit", Verdict.UNKNOWN: "is uncertain"}
    return texts[probe.prediction.verdict]


def _free(probe: Probe) -> int:
    return probe.prediction.total_memory_bytes - probe.prediction.interval_bytes[1]


def _sections(fit: Fit) -> Iterator[Section]:
    if fit.frontier and fit.second:
        yield _frontier(fit.axis, fit.second, fit.frontier)
    yield _probes(fit)
    if fit.tried:
        yield _changes(fit)
    probe = fit.largest.best or fit.largest.probes[0]
    yield Remarks(title="Notes", items=(_RANGE, *probe.prediction.notes, *fit.notes))


def _picture(fit: Fit) -> Picture:
    if fit.second:
        return Plot(
            title=f"Each {fit.axis.name} that was run for each {fit.second.name}",
            x_label=fit.second.name,
            y_label=fit.axis.name,
            y_is_bytes=False,
            points=tuple(
                Point(x=row.value, y=probe.value, tone=_tone(probe), remark=_used(probe))
                for row in fit.frontier
                for probe in row.largest.probes
            ),
            line=tuple((row.value, row.largest.best.value) for row in fit.frontier if row.largest.best),
            line_label="the largest that fits",
        )
    measured = [probe for probe in fit.largest.probes if probe.prediction.oom is None]
    total = fit.total_memory_bytes
    return Plot(
        title=f"Memory that each {fit.axis.name} needs",
        x_label=fit.axis.name,
        y_label="used at most",
        y_is_bytes=True,
        points=tuple(
            Point(x=probe.value, y=_used_bytes(probe), tone=_tone(probe), remark=_used(probe))
            for probe in fit.largest.probes
        ),
        line=tuple((probe.value, _used_bytes(probe)) for probe in measured),
        line_label="used at most",
        limit=total - fit.margin_bytes,
        limit_label=limit_label(fit.gpu, total, fit.margin_bytes),
    )


def limit_label(gpu: str, total_bytes: int, margin_bytes: int) -> str:
    """Return the label of the line in the plot that marks the memory of the GPU."""
    less = f", less {text_of_bytes(margin_bytes)} left free" if margin_bytes else ""
    return f"{gpu}: {text_of_bytes(total_bytes)}{less}"


def _used_bytes(probe: Probe) -> int:
    prediction = probe.prediction
    return prediction.total_memory_bytes if prediction.oom else prediction.interval_bytes[1]


def _used(probe: Probe) -> str:
    prediction = probe.prediction
    used = "ran out of memory" if prediction.oom else f"at most {text_of_bytes(prediction.interval_bytes[1])} used"
    return f"{used}: {_verdict(probe)}"


def _tone(probe: Probe) -> Tone:
    if probe.fits:
        return Tone.GOOD
    return Tone.BAD if probe.prediction.verdict is Verdict.DOES_NOT_FIT else Tone.UNSURE


def _probes(fit: Fit) -> Table:
    return Table(
        title=f"Memory that each {fit.axis.name} needs",
        columns=(fit.axis.name, "allocated", "reserved", "used at most", "verdict"),
        rows=tuple(_probe(probe, fit.largest) for probe in fit.largest.probes),
    )


def _probe(probe: Probe, largest: Largest) -> TableRow:
    prediction = probe.prediction
    ran_out = prediction.oom is not None
    mark = " ◀" if largest.best is not None and largest.best.value == probe.value else ""
    return TableRow(
        cells=(
            str(probe.value),
            ("> " if ran_out else "") + text_of_bytes(prediction.peak_allocated_bytes),
            ("> " if ran_out else "") + text_of_bytes(prediction.peak_reserved_bytes),
            "out of memory" if ran_out else text_of_bytes(prediction.interval_bytes[1]),
            _verdict(probe) + mark,
        ),
        tone=_tone(probe),
        share=1.0 if ran_out else min(1.0, prediction.interval_bytes[1] / prediction.total_memory_bytes),
    )


def _changes(fit: Fit) -> Table:
    return Table(
        title="Changes that need no edit of the script, each one run (allocator settings: PYTORCH_CUDA_ALLOC_CONF)",
        columns=("change", fit.axis.name, "gain", "how"),
        rows=tuple(_change(tried, fit.largest) for tried in fit.tried),
    )


def _change(tried: TriedChange, largest: Largest) -> TableRow:
    before = largest.best.value if largest.best else 0
    best = tried.largest.best if tried.largest else None
    if not tried.applies:
        why = "no effect: the script sets it itself, or fails with it"
        return TableRow(cells=(tried.change.name, "", "", why), tone=Tone.QUIET)
    if best is None:
        return TableRow(cells=(tried.change.name, "", "none", tried.how), tone=Tone.QUIET)
    return TableRow(cells=(tried.change.name, str(best.value), f"+{best.value - before}", tried.how), tone=Tone.GOOD)


def _frontier(axis: Axis, second: Axis, rows: tuple[FrontierRow, ...]) -> Table:
    most = max((row.largest.best.value for row in rows if row.largest.best), default=1)
    return Table(
        title=f"The largest {axis.name} for each {second.name}",
        columns=(second.name, axis.name, "free at least"),
        rows=tuple(
            TableRow(
                cells=(
                    str(row.value),
                    str(row.largest.best.value) if row.largest.best else "none",
                    text_of_bytes(_free(row.largest.best)) if row.largest.best else "",
                ),
                tone=Tone.GOOD if row.largest.best else Tone.BAD,
                share=row.largest.best.value / most if row.largest.best else 0.0,
            )
            for row in rows
        ),
    )
