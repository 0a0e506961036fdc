"""Explain in a sentence why a script fits, does not fit, or may not fit."""

from collections.abc import Sequence
from pathlib import Path

from ullage.base.units import text_of_bytes
from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.data.prediction import CudnnUse, Growth, HostRead, Placement, Verdict
from ullage.predicting.prediction.data.run_result import AtOom, Measured, RunResult
from ullage.predicting.prediction.request import Request
from ullage.recorded.settings import LARGE_SEGMENT_BYTES, LARGE_UNIT_BYTES, LARGEST_SMALL_BYTES, SMALL_SEGMENT_BYTES


def growth_text(growth: Growth | None, free: int) -> str:
    """Return a text that says how much memory each training step leaks, and when memory runs out."""
    if growth is None:
        return ""
    each = growth.bytes_per_step
    end = f", so memory runs out after about {free // each:,} more steps" if free > 0 else ""
    return f" after the steps that ran; every step keeps {text_of_bytes(each)} more{end}"


def completed_steps(measured: Measured) -> int:
    """Return the number of training steps that ended in the run."""
    return sum(step.complete for step in measured.steps)


def steps_text(measured: Measured) -> str:
    """Return a text that limits a verdict to the steps that ran, if later steps may need more memory."""
    count = completed_steps(measured)
    if measured.settled or measured.growth is not None or not count:
        return ""
    return " in the first step" if count == 1 else f" in the first {count} steps"


def deciding(reads: Sequence[HostRead], *certainties: str) -> list[str]:
    """Return the source lines where a value may affect a tensor size or a branch."""
    places = [
        f"{read.op} at {Line(read.file, read.line)}" if read.file and read.line else read.op
        for read in reads
        if read.may_decide and read.certainty in certainties
    ]
    return list(dict.fromkeys(places))


def reason_of_unknown(reads: Sequence[HostRead]) -> str:
    """Return a text that says that unknown values may affect a tensor size or a branch."""
    places = deciding(reads, "unknown")
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return (
        f"the result may depend on values that an emulated GPU does not have ({places[0]}{more}); "
        "they were read as zero"
    )


def lacking_bytes(request: Request, at_oom: AtOom | None) -> int:
    """Return how many more bytes the run needed when it ran out of memory.

    If the state of the allocator at that time is unknown, return the total memory of the GPU.
    """
    if at_oom is None:
        return request.total_bytes
    limit = limit_that_refused(at_oom)
    left = at_oom.free_bytes if limit is None else limit - at_oom.levels.reserved_bytes
    return max(1, _driver_bytes(at_oom.levels.requested_bytes) - left)


def limit_that_refused(at_oom: AtOom) -> int | None:
    """Return the script's own memory limit if it caused the out-of-memory error, or None if the GPU was full.

    PyTorch compares this limit with its reserved memory.
    """
    is_on_card = at_oom.free_bytes >= _driver_bytes(at_oom.levels.requested_bytes)
    return at_oom.limit_bytes if is_on_card else None


# See get_allocation_size of DeviceCachingAllocator (c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15).
def _driver_bytes(requested: int) -> int:
    if requested <= LARGEST_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    is_shared = requested < LARGE_SEGMENT_BYTES // 2
    return LARGE_SEGMENT_BYTES if is_shared else -(-requested // LARGE_UNIT_BYTES) * LARGE_UNIT_BYTES


def reason_of_ending(
    request: Request, result: RunResult, placement: Placement | None, *, is_cut_short: bool, spare: int
) -> str | None:
    measured = result.measured
    if result.outcome.kind == "oom":
        if measured is None or measured.at_oom is None:
            return "the script ran out of memory at its first allocation"
        is_enough = lacking_bytes(request, measured.at_oom) <= spare
        guessed = (
            f"; up to {text_of_bytes(spare)} of the memory in use is an estimate, so a real GPU may have enough"
            if is_enough
            else ""
        )
        limit = limit_that_refused(measured.at_oom)
        phase = _phase_text(measured.at_oom, result)
        where = phase + (
            f" at its own limit of {text_of_bytes(limit)} (per_process_memory_fraction)" if limit is not None else ""
        )
        return f"the script ran out of memory{where}: {_oom_text(measured.at_oom, placement)}{guessed}"
    if measured is None:
        what = "allocated nothing on the GPU" if result.imported else "did not import torch"
        others = f"; to measure the processes that it starts, give the command instead: python {request.name}"
        return f"the script's own process {what}{'' if request.is_command else others}"
    if is_cut_short:
        given = f"within {request.limit_seconds:g} s; allow more time with --seconds"
        if not completed_steps(measured):
            return f"no optimizer step ended {given}"
        return (
            "most optimizers create their states at the end of the first step, so the second step needs more memory, "
            f"and only one step ended {given}"
        )
    return None


def _phase_text(at_oom: AtOom, result: RunResult) -> str:
    if at_oom.phase is None:
        return ""
    outcome = result.outcome
    line = f", at line {outcome.line} of {Path(outcome.file).name}" if outcome.file and outcome.line else ""
    return f" in {at_oom.phase}{line}"


def _oom_text(at_oom: AtOom, placement: Placement | None) -> str:
    levels, limit = at_oom.levels, limit_that_refused(at_oom)
    free = at_oom.free_bytes if limit is None else limit - levels.reserved_bytes
    cached = levels.reserved_bytes - levels.allocated_bytes
    fragmented = "; try --alloc-conf expandable_segments:True" if cached + free > levels.requested_bytes else ""
    if placement is not None and placement.fits_somewhere:
        fragmented += "; with segments at other addresses it would not run out, and the driver decides where they are"
    needed = _driver_bytes(levels.requested_bytes)
    whole = f" ({text_of_bytes(needed)} from the driver)" if needed > free >= levels.requested_bytes else ""
    there = "free" if limit is None else "left of the limit"
    return (
        f"it requested {text_of_bytes(levels.requested_bytes)}{whole}, with {text_of_bytes(max(free, 0))} {there} and "
        f"{text_of_bytes(cached)} cached in pieces{fragmented}"
    )


def placement_of(request: Request, measured: Measured) -> Placement | None:
    elsewhere = measured.elsewhere
    if elsewhere is None:
        return None
    reserved = measured.peak_reserved_bytes
    return Placement(
        driver=request.options["placement"],
        ties=elsewhere.ties,
        below_bytes=reserved - elsewhere.low_bytes,
        above_bytes=elsewhere.high_bytes - reserved,
        fits_somewhere=elsewhere.fits_somewhere,
        is_certain=elsewhere.is_certain,
    )


def reason_of_size(
    verdict: Verdict, low: int, high: int, total: int, cudnn: CudnnUse, placement: Placement | None
) -> str:
    match verdict:
        case Verdict.FITS:
            is_estimated = "table" in cudnn.problems or "unknown" in cudnn.problems
            condition = ", if the estimates of cuDNN's workspaces are right" if is_estimated else ""
            return f"at most {text_of_bytes(high)} of {text_of_bytes(total)} would be used{condition}"
        case Verdict.DOES_NOT_FIT:
            return f"at least {text_of_bytes(low)} would be used, and the GPU has {text_of_bytes(total)}"
        case Verdict.UNKNOWN:
            places = (
                ", and on where the driver puts segments"
                if placement and (placement.below_bytes or placement.above_bytes)
                else ""
            )
            return (
                f"{text_of_bytes(low)} to {text_of_bytes(high)} of {text_of_bytes(total)} would be used: the result "
                f"depends on the CUDA context and on workspaces that only a real GPU knows{places}"
            )
