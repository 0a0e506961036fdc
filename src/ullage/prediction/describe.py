"""Arrange a prediction into a report: what first, in which words."""

from collections.abc import Iterator

from ullage._units import text_of_bytes
from ullage.prediction.prediction import LineUse, Prediction, Read, Verdict
from ullage.report.report import Curve, Meter, Part, Quote, Remarks, Report, Section, Shares, Tone
from ullage.tracing.source import Line

_TONES = {Verdict.FITS: Tone.GOOD, Verdict.DOES_NOT_FIT: Tone.BAD, Verdict.UNKNOWN: Tone.UNSURE}
_HEADLINES = {Verdict.FITS: "FITS", Verdict.DOES_NOT_FIT: "DOES NOT FIT", Verdict.UNKNOWN: "CANNOT BE JUDGED"}
_LINES_SHOWN = 8
_READS_SHOWN = 5


def describe(prediction: Prediction) -> Report:
    """Make the report of a prediction."""
    script = " ".join([prediction.script, *prediction.arguments])
    return Report(
        headline=_HEADLINES[prediction.verdict],
        tone=_TONES[prediction.verdict],
        subject=f"{script} on {prediction.gpu}",
        sentence=prediction.reason[0].upper() + prediction.reason[1:] + ".",
        sections=tuple(_sections(prediction)),
    )


def _sections(prediction: Prediction) -> Iterator[Section]:
    if prediction.oom is not None:
        place = Line(prediction.oom.file, prediction.oom.line) if prediction.oom.file and prediction.oom.line else None
        yield Quote(title="PyTorch's own error", text=prediction.oom.text, place=f"at {place}" if place else "")
    if prediction.peak_reserved_bytes:
        yield _card(prediction)
        moment, roles, lines = _moment(prediction)
        yield _roles(moment, roles)
        yield _lines(moment, lines, sum(roles.values()))
        yield _over_time(prediction)
    if prediction.reads:
        yield Remarks(
            title="Values read back (an emulated card computes nothing: they were zero)", items=_reads(prediction.reads)
        )
    if prediction.notes:
        yield Remarks(title="To know", items=tuple(prediction.notes))


def _moment(prediction: Prediction) -> tuple[str, dict[str, int], list[LineUse]]:
    if prediction.oom is not None and prediction.oom.roles:
        return "when memory ran out", prediction.oom.roles, prediction.oom.lines
    step = f" in step {prediction.peak_step}" if prediction.peak_step else ""
    return f"at the peak{step}", prediction.roles, prediction.lines


def _card(prediction: Prediction) -> Meter:
    context = Part(label="CUDA context", size_bytes=prediction.context_bytes, remark=_context_remark(prediction))
    if prediction.oom is not None and prediction.oom.reserved_bytes:
        allocated, reserved = prediction.oom.allocated_bytes, prediction.oom.reserved_bytes
        title, rest = "The card when memory ran out", "free"
    else:
        allocated, reserved = prediction.peak_allocated_bytes, prediction.peak_reserved_bytes
        title, rest = "The card at its fullest", "headroom"
    reserved_remark = f"reserved {text_of_bytes(reserved)}, exact"
    return Meter(
        title=title,
        total_bytes=prediction.total_memory_bytes,
        total_label="total",
        parts=(
            Part(label="allocated", size_bytes=allocated, remark="by tensors, exact"),
            Part(label="cached beside it", size_bytes=reserved - allocated, remark=reserved_remark),
            context,
        ),
        rest_label=rest,
    )


def _context_remark(prediction: Prediction) -> str:
    """Say where the context's size comes from, and the interval of all that is not exact."""
    low, high = (value - prediction.peak_reserved_bytes for value in prediction.interval_bytes)
    if low == high:
        return prediction.context_source
    beside = " with cuDNN's workspaces" if prediction.workspace_bound_bytes else ""
    return f"{prediction.context_source}; {text_of_bytes(low)} to {text_of_bytes(high)}{beside}"


def _roles(moment: str, roles: dict[str, int]) -> Shares:
    total = sum(roles.values())
    return Shares(
        title=f"What was allocated {moment}: {text_of_bytes(total)}",
        total_bytes=total,
        parts=tuple(Part(label=role.replace("_", " "), size_bytes=size) for role, size in roles.items() if size),
    )


def _lines(moment: str, lines: list[LineUse], total: int) -> Shares:
    return Shares(
        title=f"Your lines that allocated it ({moment})",
        total_bytes=total,
        parts=tuple(
            Part(
                label=_place(line),
                size_bytes=line.bytes,
                remark=f"{line.role.replace('_', ' ')}, {line.blocks} block{'' if line.blocks == 1 else 's'}",
            )
            for line in lines[:_LINES_SHOWN]
        ),
    )


def _place(line: LineUse) -> str:
    if line.file is None or line.line is None:
        return "(no line of yours)"
    return f"{Line(line.file, line.line)} {line.function}" + (" (backward)" if line.phase == "backward" else "")


def _over_time(prediction: Prediction) -> Curve:
    complete = [step for step in prediction.steps if step.complete]
    told = ", ".join(f"{step.step}: {text_of_bytes(step.peak_allocated_bytes)}" for step in complete[-6:])
    settled = "the peak has settled" if prediction.settled else "the peak has not settled: run more with --steps"
    return Curve(
        title="Allocated memory over the run",
        values=tuple(prediction.timeline["allocated_bytes"]),
        marks=tuple(prediction.timeline["step_ends"]),
        mark_label="below: where each step ends",
        remark=f"peak by step  {told}; {settled}" if complete else "",
    )


def _reads(reads: list[Read]) -> tuple[str, ...]:
    shown = []
    for read in reads[:_READS_SHOWN]:
        place = str(Line(read.file, read.line)) if read.file and read.line else "a library"
        warning = "; it DECIDES A SHAPE, so memory is understated from there on" if read.decides_shape else ""
        shown.append(f"{place}: {read.op}, {read.count} times{warning}")
    if len(reads) > _READS_SHOWN:
        shown.append(f"and {len(reads) - _READS_SHOWN} other places")
    return tuple(shown)
