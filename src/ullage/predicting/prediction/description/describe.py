"""Create the sections and the texts of a prediction's report."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ullage.base.units import text_of_bytes
from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.command.words import NOTEBOOK, PYTHON_FILES, shown
from ullage.predicting.prediction.data.prediction import HostRead, LineUse, Peaks, Placement, Prediction, Verdict
from ullage.predicting.prediction.description import epoch
from ullage.predicting.prediction.description.host import host_sections
from ullage.predicting.prediction.description.tables import (
    TONES,
    bands_of,
    moment_of_peak,
    phases_table,
    place_of,
    resumed_tables,
    shortened,
    table_of_peaks,
)
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE
from ullage.predicting.prediction.verdict import outside
from ullage.predicting.prediction.verdict.draw_interval import interval_of_peaks
from ullage.predicting.prediction.verdict.workspace import doubt_of, less_or_more, rows_of
from ullage.report.report import (
    Curve,
    Icicle,
    Map,
    Meter,
    Picture,
    Quote,
    Remarks,
    Report,
    Section,
    Shares,
    SizedPart,
    Stack,
    Strip,
    Table,
    TableRow,
    Tone,
    Within,
)

_HEADLINES = {Verdict.FITS: "FITS", Verdict.DOES_NOT_FIT: "DOES NOT FIT", Verdict.UNKNOWN: "UNCERTAIN"}
_LINES_SHOWN = 8
_READS_SHOWN = 5
_SEGMENTS_SHOWN = 60
# The user gave a memory size and an architecture, but no name.
_GPU_BY_SIZE = re.compile(r"([\d.]+) (\w+) \w+ \((sm_\w+)\)")


def describe(prediction: Prediction) -> Report:
    """Return the report of a prediction."""
    script = shown([prediction.script, *prediction.arguments])
    rank = f", rank {prediction.rank} of {prediction.world_size}" if prediction.world_size else ""
    grows = prediction.verdict is Verdict.FITS and prediction.growth is not None
    limit = prediction.oom.limit_bytes if prediction.oom and prediction.verdict is Verdict.DOES_NOT_FIT else None
    headline = _HEADLINES[prediction.verdict] + (", BUT GROWS" if grows else "")
    if prediction.host is not None and prediction.host.decides:
        headline += ": host memory"
    return Report(
        headline=headline if limit is None else f"{headline}: the script's own limit of {text_of_bytes(limit)}",
        tone=Tone.UNSURE if grows else TONES[prediction.verdict],
        subject=f"{script} on {prediction.gpu}{rank}{' (highest use)' if prediction.ranks else ''}",
        sentence=prediction.reason[0].upper() + prediction.reason[1:] + ".",
        sections=tuple(_sections(prediction)),
        pictures=tuple(_pictures(prediction)),
    )


def _sections(prediction: Prediction) -> Iterator[Section]:
    yield from _next(prediction)
    if prediction.oom is not None:
        place = Line(prediction.oom.file, prediction.oom.line) if prediction.oom.file and prediction.oom.line else None
        yield Quote(title="PyTorch's error message", text=prediction.oom.text, place=f"at {place}" if place else "")
    if prediction.peak_reserved_bytes:
        yield _card(prediction)
    yield from host_sections(prediction.host)
    if prediction.peak_reserved_bytes:
        moment, roles, lines, library_lines = _moment(prediction)
        yield _roles(moment, roles)
        if library_lines:
            yield _library_lines(moment, library_lines, _leading(lines), sum(roles.values()))
        else:
            yield _lines(moment, lines, sum(roles.values()))
        yield _over_time(prediction)
        if (by_phase := phases_table(prediction.phases)) is not None:
            yield by_phase
        yield from resumed_tables(prediction)
    if prediction.epoch is not None:
        places = [Line(use.file, use.line) for use in prediction.lines if use.file and use.line]
        yield from epoch.sections_of(prediction.epoch, prediction.verdict, places)
    if prediction.eager is not None:
        yield _beside_eager(prediction, prediction.eager)
    for rows, table in ((prediction.ranks, _ranks), (prediction.processes, _processes), (prediction.draws, _draws)):
        if rows:
            yield table(prediction)
    if prediction.reads:
        yield Remarks(title="Values read back from the GPU", items=_reads(prediction.reads))
    if prediction.notes:
        yield Remarks(title="Notes", items=tuple(prediction.notes))
    if prediction.job_request is not None:
        asked = prediction.job_request
        yield Quote(title=f"Resources to request from {asked.whose}", text=asked.text, is_to_paste=True)


def is_of_card(prediction: Prediction) -> bool:
    """Return whether the script does not fit because the GPU is too small."""
    own_limit = prediction.oom is not None and prediction.oom.limit_bytes is not None
    return not own_limit and not (prediction.host is not None and prediction.host.decides)


def _next(prediction: Prediction) -> Iterator[Quote]:
    if prediction.verdict is Verdict.DOES_NOT_FIT and is_of_card(prediction):
        yield Quote(title="Next: find changes that make it fit", text=_advise(prediction), is_to_paste=True)
    elif prediction.verdict is Verdict.FITS and (command := _command_on_gpu(prediction)):
        text = shlex.join(["ullage", "run", *command])
        yield Quote(title="Next: run it on the GPU and record its memory", text=text, is_to_paste=True)


def _command_on_gpu(prediction: Prediction) -> list[str]:
    command = [prediction.script, *prediction.arguments]
    if prediction.script.endswith(NOTEBOOK):
        return []
    ranks = prediction.world_size or 1
    if ranks == 1 or not prediction.script.endswith(PYTHON_FILES):
        return command
    return ["torchrun", "--nproc-per-node", str(ranks), *command] if ranks <= CARDS_OF_A_NODE else []


def _advise(prediction: Prediction) -> str:
    ranks = ["--world-size", str(prediction.world_size)] if prediction.world_size else []
    by_size = _GPU_BY_SIZE.fullmatch(prediction.gpu)
    gpu = [f"{by_size[1]}{by_size[2]}", "--arch", by_size[3]] if by_size else [prediction.gpu]
    options = ["--gpu", *gpu, *ranks]
    return shlex.join(["ullage", "advise", *options, prediction.script, *prediction.arguments])


def _moment(prediction: Prediction) -> tuple[str, dict[str, int], list[LineUse], list[LineUse]]:
    oom = prediction.oom
    if oom is not None and oom.roles:
        return "when memory ran out", oom.roles, oom.lines, oom.library_lines
    return moment_of_peak(prediction), prediction.roles, prediction.lines, prediction.library_lines


def _card(prediction: Prediction) -> Meter:
    below, above = doubt_of(prediction.cudnn, prediction.guesses)
    placement = prediction.placement
    low_context, high_context = prediction.context_interval_bytes
    exact = "exact except workspaces" if below or above else "exact"
    if is_drawn(prediction):
        exact = "with random values"
    if prediction.oom is not None and prediction.oom.reserved_bytes:
        title, rest = "GPU memory when memory ran out", "free"
        allocated, reserved, context = prediction.oom.allocated_bytes, prediction.oom.reserved_bytes, low_context
        remark = prediction.context_source if context == prediction.context_bytes else "the smallest possible size"
    else:
        title = "GPU memory at the peak"
        least = prediction.total_memory_bytes - prediction.interval_bytes[1]
        rest = f"free (at least {text_of_bytes(least)})" if least > 0 else "free (none at the high end of the range)"
        allocated, reserved = prediction.peak_allocated_bytes, prediction.peak_reserved_bytes
        context, remark = prediction.context_bytes, _context_remark(prediction, low_context, high_context)
    parts = [
        SizedPart(label="allocated", size_bytes=allocated, remark=f"by tensors, {exact}"),
        SizedPart(
            label="cached by PyTorch",
            size_bytes=reserved - allocated,
            remark=f"total reserved: {text_of_bytes(reserved)}, {_placed(placement, exact)}",
        ),
        SizedPart(label="CUDA context", size_bytes=context, remark=remark),
    ]
    if (taken := outside.part_of(prediction.outside)) is not None:
        parts.insert(2, taken)
    limit = prediction.oom.limit_bytes if prediction.oom else None
    if limit is not None:
        rest = "free on the GPU"
    limits = (
        (
            Within(
                label="the script's own limit",
                text=f"PyTorch may reserve at most {text_of_bytes(limit)}, even if more is free",
            ),
        )
        if limit is not None
        else ()
    )
    low, high = prediction.interval_bytes
    used = (
        ()
        if prediction.oom is not None or low == high
        else (Within(label="range of use", text=_range_text(low, high)),)
    )
    return Meter(
        title=title,
        total_bytes=prediction.total_memory_bytes,
        total_label="GPU total",
        parts=tuple(parts),
        within=rows_of(prediction.cudnn, prediction.guesses) + outside.rows_of(prediction.outside) + limits + used,
        rest_label=rest,
    )


def _range_text(low: int, high: int) -> str:
    return (
        f"{text_of_bytes(low)} to {text_of_bytes(high)} (lowest to highest), because only a real GPU knows the exact "
        "sizes of its CUDA context and of some workspaces"
    )


def _placed(placement: Placement | None, exact: str) -> str:
    if placement is None or placement.decides_nothing:
        return exact
    but = {"exact": "", "exact except workspaces": "; workspaces are not exact"}.get(exact, f"; {exact}")
    driver = {"linux": "Linux", "linux-host": "Linux", "wsl": "WSL", "windows": "Windows"}[placement.driver]
    if not placement.is_certain:
        return f"if segments are placed as on {driver}{but}"
    off = less_or_more(placement.below_bytes, placement.above_bytes)
    return f"if segments are placed as on {driver}, else up to {off}{but}"


def _context_remark(prediction: Prediction, low: int, high: int) -> str:
    if low == high:
        return prediction.context_source
    return (
        f"range {text_of_bytes(low)} to {text_of_bytes(high)} (lowest to highest); "
        f"{prediction.context_source.removeprefix('assumed: ')}"
    )


def _roles(moment: str, roles: dict[str, int]) -> Shares:
    total = sum(roles.values())
    return Shares(
        title=f"Memory allocated {moment}, by role: {text_of_bytes(total)}",
        total_bytes=total,
        parts=tuple(SizedPart(label=role.replace("_", " "), size_bytes=size) for role, size in roles.items() if size),
    )


def _lines(moment: str, lines: list[LineUse], total: int) -> Shares:
    return _shares(f"Memory allocated {moment}, by line of your code", total, [(_place(line), line) for line in lines])


def _library_lines(moment: str, lines: list[LineUse], leading: str, total: int) -> Shares:
    labels = [shortened(line.module) if line.module else _place(line) for line in lines]
    title = f"Memory allocated {moment}, by module; most of it was allocated through {leading}"
    return _shares(title, total, list(zip(labels, lines, strict=True)))


def _shares(title: str, total: int, lines: list[tuple[str, LineUse]]) -> Shares:
    parts = [
        SizedPart(label=label, size_bytes=line.bytes, remark=_purpose(line)) for label, line in lines[:_LINES_SHOWN]
    ]
    return Shares(title=title, total_bytes=total, parts=tuple(parts))


def _leading(lines: list[LineUse]) -> str:
    sizes: Counter[str] = Counter()
    for line in lines:
        sizes[_place(line)] += line.bytes
    return sizes.most_common(1)[0][0]


def _place(line: LineUse) -> str:
    return place_of(line.file, line.line, "(not your code)")


def _purpose(line: LineUse) -> str:
    if line.module:
        place = f"{Path(line.file).name}:{line.line}" if line.file and line.line else "(no line)"
        return f"{_role(line)}, {place}"
    return f"{_role(line)}, {line.blocks} block{'' if line.blocks == 1 else 's'}"


def _role(line: LineUse) -> str:
    during = " in backward" if line.phase == "backward" else ""
    return f"{line.role.replace('_', ' ')}{during}"


def _over_time(prediction: Prediction) -> Curve:
    complete = [step for step in prediction.steps if step.complete]
    told = ", ".join(f"{step.step}: {text_of_bytes(step.peak_allocated_bytes)}" for step in complete[-6:])
    return Curve(
        title="Allocated memory over the run",
        values=tuple(prediction.timeline["allocated_bytes"]),
        marks=tuple(prediction.timeline["step_ends"]),
        mark_label="numbers below: end of each step",
        remark=f"peak in step {told}{_settling(prediction)}" if complete else "",
        bands=bands_of(prediction.bands),
    )


def _beside_eager(prediction: Prediction, eager: Peaks) -> Table:
    graphs = prediction.compiled_graphs
    compiled = f"compiled, {graphs} graph{'' if graphs == 1 else 's'}"
    runs: list[tuple[tuple[str, ...], Peaks | Prediction]] = [((compiled,), prediction), (("eager",), eager)]
    title = "Peaks with torch.compile and without it"
    return table_of_peaks(title, ("run",), runs, has_bars=True, has_tones=True)


def _ranks(prediction: Prediction) -> Table:
    return table_of_peaks(
        "Peaks of all ranks (each was run without the others)",
        ("rank",),
        [((str(each.rank),), each) for each in prediction.ranks],
        fullest=next((each for each in prediction.ranks if each.rank == prediction.rank), None),
        mark=" ◀ highest",
        has_bars=True,
        has_tones=True,
    )


def _pictures(prediction: Prediction) -> Iterator[Picture]:
    picture = prediction.picture
    if picture is None:
        return
    yield Stack(
        title="Allocated memory over the run, by role (after rounding)",
        series=tuple((role.replace("_", " "), tuple(values)) for role, values in picture.by_role.items()),
        marks=tuple(prediction.timeline["step_ends"]),
        mark_label="end of step",
        bands=bands_of(prediction.bands),
    )
    yield Icicle(
        title=f"Memory allocated {moment_of_peak(prediction)}: by role, module and source line (after rounding)",
        levels=("role", "module", "line"),
        leaves=tuple(
            ((role.replace("_", " "), *module.split("."), line), size, f"{blocks} block{'' if blocks == 1 else 's'}")
            for role, module, line, size, blocks in picture.tree
        ),
    )
    largest = sorted(picture.segments, key=lambda segment: -int(segment["size"]))
    shown = largest[:_SEGMENTS_SHOWN]
    more = f"; {len(largest) - len(shown)} smaller segments are not shown" if len(largest) > len(shown) else ""
    yield Map(
        title=f"The allocator's segments {moment_of_peak(prediction)}",
        strips=tuple(
            Strip(
                name=f"{segment['address']:#x}",
                size_bytes=segment["size"],
                blocks=tuple((offset, size, role.replace("_", " ")) for offset, size, role in segment["blocks"]),
            )
            for segment in shown
        ),
        remark=f"{len(largest)} segments, largest first; empty parts are cached memory{more}",
    )


def _settling(prediction: Prediction) -> str:
    if prediction.ended == "oom":
        return ""
    if prediction.growth is not None:
        growth = prediction.growth
        place = f", allocated at {Line(growth.file, growth.line)}" if growth.file and growth.line else ""
        holder = f", held by {growth.holder}" if growth.holder else ""
        return f"; memory grows by {text_of_bytes(growth.bytes_per_step)} per step{place}{holder}"
    if prediction.settled:
        return "; the peak is stable"
    return f"; the peak is not stable yet: {_WHY_UNSETTLED[prediction.ended]}"


_WHY_UNSETTLED = {
    "steps": "run more steps with --steps",
    "time": "the run was stopped too early",
    "ended": "the script ended too early",
}
_MEANING = {
    "known": "the same value as on a real GPU",
    "assumed": "correct if all numbers are finite and the script's own checks pass",
    "alike": "assumed to be equal on all ranks",
    "drawn": "random value from the seed",
    "unknown": "UNKNOWN, replaced by zero",
}


def is_drawn(prediction: Prediction) -> bool:
    """Return whether a tensor size or a branch may depend on values that only a real GPU can compute."""
    return any(read.may_decide and read.certainty in ("drawn", "unknown") for read in prediction.reads)


def _reads(reads: list[HostRead]) -> tuple[str, ...]:
    shown = []
    for read in reads[:_READS_SHOWN]:
        place = str(Line(read.file, read.line)) if read.file and read.line else "a library"
        decides = f", {read.kind}" if read.kind == "shape" else ""
        times = f"{read.count} time{'' if read.count == 1 else 's'}"
        is_idle = read.certainty == "unknown" and not read.may_decide
        meaning = "replaced by zero, affects no size and no branch" if is_idle else _MEANING[read.certainty]
        shown.append(f"{place}: {read.op}{decides}, {times}: {meaning}")
    if len(reads) > _READS_SHOWN:
        shown.append(f"and {len(reads) - _READS_SHOWN} more places")
    return tuple(shown)


def _processes(prediction: Prediction) -> Table:
    runs = [((each.name, str(each.rank)), each) for each in prediction.processes]
    return table_of_peaks("By process", ("process", "rank"), runs)


def _draws(prediction: Prediction) -> Table:
    draws = prediction.draws
    table = table_of_peaks(
        "Peaks by seed of the random values", ("seed",), [((str(draw.seed),), draw) for draw in draws]
    )
    if len(draws) == 1:
        return table
    allocated = _text_of_interval([draw.peak_allocated_bytes for draw in draws])
    reserved = _text_of_interval([draw.peak_reserved_bytes for draw in draws])
    return replace(table, rows=(*table.rows, TableRow(cells=("range of 95 % of runs", allocated, reserved, ""))))


def _text_of_interval(figures: list[int]) -> str:
    low, high = (text_of_bytes(round(end)) for end in interval_of_peaks(figures))
    return low if low == high else f"{low} to {high}"
