"""Create a prediction from a request and the reports of the run's processes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ullage.base.secrets import without_secrets
from ullage.gpu.emulator.profile import profile_of
from ullage.gpu.emulator.torch_build import TESTED, TorchBuild
from ullage.predicting.prediction.data.prediction import CudnnUse, Oom, Prediction, ProcessPeaks, Verdict
from ullage.predicting.prediction.data.run_result import Measured, Outcome, RunResult
from ullage.predicting.prediction.host.memory import host_use, reason_of_host
from ullage.predicting.prediction.job_request import JobNeeds, job_request_of
from ullage.predicting.prediction.phases.name import PhaseName
from ullage.predicting.prediction.process.listener import ChildReport
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.verdict import workspace
from ullage.predicting.prediction.verdict.judgement import expected_use_of, judgement_of, with_epoch
from ullage.predicting.prediction.verdict.reason import limit_that_refused

_PHASE_OF_UNTIL: Final = {"eval": PhaseName.EVALUATION, "save": PhaseName.SAVING}


def assemble(request: Request, torch: TorchBuild, reports: Sequence[ChildReport], seconds: float) -> Prediction:
    """Create a prediction from the reports. Its figures are from the first report, which must have a result.

    Args:
        request: the request.
        torch: the installed torch.
        reports: the report of the script's process, or the reports of a command's processes, fullest first.
        seconds: the total time in seconds.
    """
    told = reports[0]
    assert told.result is not None
    prediction = _prediction_of(request, torch, told.result, seconds)
    host = host_use(
        told.result.host, told.workers, world_size=prediction.world_size, given_bytes=request.host_memory_bytes
    )
    if host is not None and host.decides:
        also = f"; {prediction.reason}" if prediction.verdict is Verdict.DOES_NOT_FIT else ""
        prediction = replace(prediction, verdict=Verdict.DOES_NOT_FIT, reason=reason_of_host(host) + also)
    prediction = replace(prediction, host=host)
    if request.options["request"] is not None:
        asked = job_request_of(request.options["request"], _needs_of(request, prediction))
        prediction = replace(prediction, job_request=asked)
    return replace(prediction, processes=_processes(request, torch, reports)) if reports[1:] else prediction


def _prediction_of(request: Request, torch: TorchBuild, result: RunResult, seconds: float) -> Prediction:
    result = with_epoch(result)
    measured = result.measured or Measured()
    use = expected_use_of(request, result, measured)
    verdict, reason = judgement_of(request, result, measured, use)
    allocated, reserved = measured.peak_allocated_bytes, measured.peak_reserved_bytes
    step_seconds = {f"step_{number}": value for number, value in enumerate(result.step_seconds, 1)}
    return Prediction(
        verdict=verdict,
        reason=reason,
        script=str(request.script),
        arguments=list(without_secrets(request.arguments)),
        gpu=request.gpu.driver_name,
        torch=result.torch,
        world_size=result.world_size,
        rank=result.rank,
        total_memory_bytes=use.total_bytes,
        context_bytes=use.context_bytes,
        context_interval_bytes=use.context_interval_bytes,
        context_source="given" if request.context_bytes is not None else profile_of(request.gpu).source,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        cached_bytes=measured.reserved_at_peak_bytes - allocated,
        headroom_bytes=use.total_bytes - reserved - use.outside.peak_bytes - use.context_bytes,
        cudnn=use.cudnn,
        guesses=use.guesses,
        placement=use.placement,
        outside=use.outside,
        interval_bytes=(use.low_bytes, use.high_bytes),
        settled=measured.settled,
        growth=measured.growth,
        peak_step=next((step.step for step in measured.steps if step.peak_allocated_bytes == allocated), None),
        steps=measured.steps,
        roles=measured.peak.roles,
        role_peaks=measured.role_peaks,
        lines=measured.peak.lines,
        library_lines=measured.peak.library_lines,
        timeline=measured.timeline,
        reads=result.reads,
        values=result.values,
        oom=_oom(result.outcome, measured) if result.outcome.kind == "oom" else None,
        oom_count=result.oom_count,
        notes=notes_of(request, torch, result, use.cudnn),
        unwritten=result.unwritten,
        compiled_graphs=result.compiled_graphs,
        changes_made=result.changes_made,
        training=result.training,
        changes_refused=result.changes_refused,
        picture=measured.picture,
        snapshot_error=result.snapshot_error,
        ended=result.outcome.kind,
        seconds={"total": round(seconds, 3), "import": round(result.import_seconds, 3), **step_seconds},
        phases=measured.phases,
        bands=measured.bands,
        epoch=result.epoch,
        avoidable=measured.avoidable,
        sent_bytes_per_step=result.sent_bytes_per_step,
        recomputed_share=result.recomputed_share,
    )


def _oom(outcome: Outcome, measured: Measured) -> Oom:
    at = measured.at_oom
    return Oom(
        text=outcome.text,
        file=outcome.file,
        line=outcome.line,
        requested_bytes=at.levels.requested_bytes if at else 0,
        allocated_bytes=at.levels.allocated_bytes if at else 0,
        reserved_bytes=at.levels.reserved_bytes if at else 0,
        roles=at.alive.roles if at else {},
        lines=at.alive.lines if at else [],
        library_lines=at.alive.library_lines if at else [],
        limit_bytes=limit_that_refused(at) if at else None,
    )


def _needs_of(request: Request, prediction: Prediction) -> JobNeeds:
    host = prediction.host
    ranks = host.ranks_of_a_node if host is not None else 1
    return JobNeeds(
        script=request.name,
        gpu=prediction.gpu,
        card_bytes=prediction.total_memory_bytes,
        used_bytes=prediction.interval_bytes[1],
        fits=prediction.verdict is Verdict.FITS,
        nodes=math.ceil((prediction.world_size or 1) / ranks),
        gpus=max(request.options["count"], ranks),
        ranks=ranks,
        workers=host.workers if host is not None else 0,
        host_bytes=None if host is None else host.total_bytes,
        shared_memory_bytes=host.shared_memory_bytes * ranks if host is not None else 0,
    )


def _processes(request: Request, torch: TorchBuild, reports: Sequence[ChildReport]) -> list[ProcessPeaks]:
    found = [
        ProcessPeaks.of(_prediction_of(request, torch, told.result, 0.0), name=told.name, rank=told.rank)
        for told in reports
        if told.result is not None and told.result.measured is not None
    ]
    return sorted(found, key=lambda each: (each.rank, each.name))


def notes_of(request: Request, torch: TorchBuild, result: RunResult, cudnn: CudnnUse) -> list[str]:
    """Return the notes for the report of a prediction."""
    notes = list(result.notes)
    if result.values.failures:
        notes.append(
            "ullage could not compute on the host: "
            + "; ".join(f"{name} ({why})" for name, why in result.values.failures.items())
        )
    if result.values.faults:
        notes.append(
            "an error inside ullage made tensor values unknown; please report it: "
            + "; ".join(f"{name} ({why})" for name, why in result.values.faults.items())
        )
    notes += workspace.notes_of(cudnn, torch)
    notes += result.epoch.notes if result.epoch is not None else []
    if result.unwritten:
        notes.append("CUDA functions that returned 'not supported': " + ", ".join(sorted(result.unwritten)))
    if result.world_size:
        notes.append(
            "a PyTorch thread that runs a few times a second releases the memory of collectives, so a peak may differ "
            "by one gradient bucket between runs"
        )
    if result.oom_count and result.outcome.kind != "oom":
        times = "once" if result.oom_count == 1 else f"{result.oom_count} times"
        notes.append(f"the script ran out of memory {times} and continued")
    if result.outcome.kind == "ended" and result.measured is not None and not result.step_seconds:
        notes.append("no optimizer made a step: the whole run counts as one step")
    notes += _unreached(request.options["until"], result)
    if result.outcome.kind == "time":
        notes.append(f"stopped after {request.limit_seconds:g} s; allow more time with --seconds")
    if not torch.is_tested:
        notes.append(f"torch {torch.version} is outside the tested range {TESTED[0]} to {TESTED[1]}")
    if result.measured is not None and result.measured.history_is_partial:
        notes.append(
            "PyTorch's memory history was too short for the whole run, so the oldest blocks have no source lines and "
            "no rounding; run fewer steps"
        )
    if result.lost_entries:
        notes.append(f"{result.lost_entries} allocation events were not recorded because the host ran out of memory")
    return notes


def _unreached(until: str | None, result: RunResult) -> list[str]:
    wanted = _PHASE_OF_UNTIL.get(until or "")
    phases = result.measured.phases if result.measured else []
    if wanted is None or any(phase.name == wanted and phase.first_step for phase in phases):
        return []
    if result.outcome.kind == "time":
        return [f"the script did not reach {wanted} in the given time"]
    return [f"the script ended before it reached {wanted}"] if result.outcome.kind == "ended" else []
