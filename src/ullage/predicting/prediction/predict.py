"""Run a script in a process of its own on an emulated card, and make a `Prediction` of what it tells."""

import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import ullage.base.errors
from ullage.base.errors import EmulationError, ScriptError, ScriptKilledError, UllageError, ValuesError, ValuesReadError
from ullage.base.secrets import without_secrets
from ullage.gpu.emulator.profile import profile_of
from ullage.gpu.emulator.torch_build import TESTED, TorchBuild, find_torch, has_code_for
from ullage.gpu.gpus import Gpu, find_gpu
from ullage.gpu.tracing.source import is_users
from ullage.gpu.values.likely_reads import seems_to_read_none
from ullage.predicting.made_up.folder import with_folder
from ullage.predicting.prediction.command.words import clearing
from ullage.predicting.prediction.data.prediction import (
    CudnnUse,
    Guess,
    Oom,
    Outside,
    Placement,
    Prediction,
    ProcessPeaks,
    Verdict,
    judge,
)
from ullage.predicting.prediction.data.run_result import NOTHING_MEASURED, Measured, Outcome, RunResult
from ullage.predicting.prediction.description.epoch import judged_with, with_epoch
from ullage.predicting.prediction.description.phases import unreached
from ullage.predicting.prediction.host.memory import host_use, reason_of_host
from ullage.predicting.prediction.job_needs import needs_of
from ullage.predicting.prediction.job_request import job_request_of
from ullage.predicting.prediction.process.listener import ChildReport, Progress, run, run_command
from ullage.predicting.prediction.ranks.exchange import Exchange
from ullage.predicting.prediction.ranks.lone_post import LARGEST_TEAM
from ullage.predicting.prediction.request import ALL, Request, helper_of
from ullage.predicting.prediction.verdict.outside import outside_of
from ullage.predicting.prediction.verdict.reason import (
    deciding,
    growth_text,
    lacking_bytes,
    limit_that_refused,
    placement_of,
    reason_of_ending,
    reason_of_size,
    reason_of_unknown,
)
from ullage.predicting.prediction.verdict.toolchain import missing_tool
from ullage.predicting.prediction.verdict.workspace import cudnn_of, doubt_of, guesses_of, notes_of, spare_of

__all__ = ["Request", "predict"]

_TAIL_LINES: Final = 15
_PLACES_SHOWN: Final = 3
_NOT_ASKED: Final = (
    "If it comes of what {} ranks gather or reduce: that was taken to be this rank's own, as it runs alone; "
    f"of at most {LARGEST_TEAM} ranks each is asked"
)
_OF_THE_SCRIPT: Final = frozenset(
    ("AttributeError", "FileNotFoundError", "ImportError", "ModuleNotFoundError", "NameError", "SyntaxError")
)
"""The errors that no number of another rank's would cure."""
_known_to_read: Final[set[Path]] = set()
"""The scripts that have read something that may decide in a run without values: another run begins with them."""


def predict(
    request: Request, *, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Prediction:
    """Run the request's script on its card and say whether it fits.

    Args:
        request: what to run.
        progress: called with a short text whenever the run gets further.
        cancelled: asked some times a second; once it says True, the run is ended and a ScriptError raised.

    Raises:
        ScriptError: the script failed for another reason than memory, or could not be stopped.
        TorchMissingError: there is no torch built for CUDA.
        EmulationError: the card cannot be emulated here.
        UnknownGpuError, UsageError: the request cannot be carried out.
    """
    tell = progress or (lambda text: None)
    if _may_begin_without_values(request):
        try:
            return _predict(replace(request, begins_without_values=True), tell, cancelled)
        except ValuesReadError:
            _known_to_read.add(request.script)
            tell("once more, with values, which are read")
    return _predict(request, tell, cancelled)


def _may_begin_without_values(request: Request) -> bool:
    """Tell whether values need not be followed from the start: they slow every operation down.

    It is so where the script looks as if it read none, and nothing is lost if it is begun anew because it does.
    """
    is_plain = not (request.is_command or request.world_size or request.batches or request.diagnose or request.edited)
    return (
        is_plain
        and request.values.mode == "auto"
        and not request.echo
        and request.script.suffix == ".py"
        and request.script not in _known_to_read
        and seems_to_read_none(request.script)
    )


def _predict(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> Prediction:
    gpu = find_gpu(request.gpu, arch=request.arch)
    request.check(gpu)
    torch = find_torch()
    began = time.perf_counter()
    with with_folder(request.made_up) as made_up:
        reports = _run(replace(request, made_up=made_up), progress, cancelled)
    told = reports[0]
    if cancelled():
        raise ScriptError(f"the run of {request.name} was cancelled")
    result = _result_of(request, gpu, told)
    failed_again = None
    if result.missed_values and request.values.mode == "auto":
        progress("once more, as values are read after all")
        followed = replace(request, values=replace(request.values, mode="on"), begins_without_values=False)
        try:
            return _predict(followed, progress, cancelled)
        except ScriptError as error:  # as where it makes a folder that is there by now: the first run counts
            if cancelled():
                raise
            failed_again = _again_text(request, error)
    if result.outcome.kind == "error":
        if _lacks_others(request, result):
            progress("once more, with what the other ranks have")
            with suppress(ScriptError):  # as where it makes a folder that is there by now: the first error counts
                return _predict(replace(request, asks_all=True), progress, cancelled)
        text = _error_text(request, result.outcome, told)
        if result.largest_not_asked > LARGEST_TEAM and result.outcome.type not in _OF_THE_SCRIPT:
            text = f"{text}\n{_NOT_ASKED.format(result.largest_not_asked)}"
        places = deciding(result.reads, "drawn", "unknown")
        if places and not result.outcome.is_of_system:
            raise ValuesError(
                f"{text}\nThis came after values were read that an emulated card does not have "
                f"({', '.join(places[:_PLACES_SHOWN])}): it is likely the emulation's, not your script's; "
                "--values-seed draws others, --values all computes everything on the host"
            )
        raise ScriptError(text)
    seconds = time.perf_counter() - began
    prediction = _with_host(request, told, _prediction(request, gpu, torch, result, seconds))
    if failed_again:
        prediction = replace(prediction, notes=[*prediction.notes, failed_again])
    return replace(prediction, processes=_processes(request, gpu, torch, reports)) if reports[1:] else prediction


def _lacks_others(request: Request, result: RunResult) -> bool:
    """Tell whether a rank may have failed as its own numbers stood for those of others, which can be asked."""
    may_ask = request.has_lone_ranks and not request.asks_all and not result.outcome.is_of_system
    return may_ask and result.outcome.type not in _OF_THE_SCRIPT and 1 < result.largest_not_asked <= LARGEST_TEAM


def _again_text(request: Request, error: ScriptError) -> str:
    text = str(error).partition("\n")[0]
    return (
        f"values were read after steps that had read none; run once more for them in the same folder, {request.name} "
        f"failed: {text}; --values on follows values in the first run"
    )


def _run(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> list[ChildReport]:
    """Run what is asked for; of ranks that run alone, those too that others wait for."""
    runs = run_command if request.is_command else _run_script
    if not request.has_lone_ranks:
        return runs(request, progress, cancelled)
    with nullcontext(request.exchange) if request.exchange is not None else Exchange() as exchange:
        asked = replace(request, exchange=exchange)

        def help_with(rank: int, is_over: Callable[[], bool]) -> str | None:
            told = runs(helper_of(asked, rank), lambda text: None, is_over)[0]
            failed = told.result is not None and told.result.outcome.kind in ("error", "oom")
            return f"{told.result.outcome.type}: {told.result.outcome.text}" if failed and told.result else None

        with exchange.measures(asked.variant, asked.rank, help_with, are_all=asked.processes == ALL):
            return runs(asked, progress, cancelled)


def _run_script(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> list[ChildReport]:
    return [run(request, progress, cancelled)]


def _result_of(request: Request, gpu: Gpu, told: ChildReport) -> RunResult:
    """Return the result of a process that has told one.

    Raises:
        UllageError: it has told none, or what it ran on is not what it should be.
    """
    if told.refused is not None:
        # Errors of other modules than that one, such as of a setting or a file, are plain errors here.
        error: type[UllageError] = getattr(ullage.base.errors, told.refused.type, UllageError)
        raise error(told.refused.text)
    if told.broken is not None:
        raise EmulationError(
            f"ullage itself failed while it measured {request.name}; please report this:\n{told.broken}"
        )
    if told.result is None:
        kind = ScriptKilledError if told.exit_code == -signal.SIGKILL and not told.hung else ScriptError
        raise kind(_death_text(request, told))
    if not has_code_for(gpu.compute_capability, told.result.architectures):
        raise EmulationError(_code_text(gpu, told.result))
    return told.result


def _processes(request: Request, gpu: Gpu, torch: TorchBuild, reports: Sequence[ChildReport]) -> list[ProcessPeaks]:
    """Return the peaks of all processes of a command, in the order of their ranks."""
    found = []
    for told in reports:
        if told.result is None or told.result.measured is None:
            continue
        each = _prediction(request, gpu, torch, told.result, 0.0)
        found.append(
            ProcessPeaks(
                name=told.name,
                rank=told.rank,
                verdict=each.verdict,
                peak_allocated_bytes=each.peak_allocated_bytes,
                peak_reserved_bytes=each.peak_reserved_bytes,
            )
        )
    return sorted(found, key=lambda each: (each.rank, each.name))


# ---- runs that cannot be judged


def _code_text(gpu: Gpu, result: RunResult) -> str:
    has = ", ".join(result.architectures)
    return (
        f"torch {result.torch} has no code for {gpu.architecture}, so a real {gpu.short_name} would refuse its "
        f"first kernel (this build has {has}); install a torch that still supports the card"
    )


# ---- scripts that failed


def _death_text(request: Request, told: ChildReport) -> str:
    """Say how a process ended that told no result."""
    name, code = request.name, told.exit_code or 0
    said = _said(told)
    if request.is_command:
        return _command_text(request, told)
    if told.hung and not told.started:
        return f"the process for {name} did not start within two minutes{said}"
    if told.hung:
        return (
            f"{name} did not end after {request.limit_seconds:g} s and could not be stopped: it is busy outside of "
            f"Python or handles every error; give it longer with --seconds, or find where it hangs{said}"
        )
    if code == -signal.SIGKILL:
        return (
            f"{name} was killed, or closed what ullage listens to; if this machine ran out of memory, give it more: "
            f"tensors on the CPU are real{said}"
        )
    if code < 0:
        known = {int(number): number.name for number in signal.Signals}
        return f"{name} ended by signal {known.get(-code, -code)}{_crash_place(told.output)}{said}"
    return (
        f"{name} ended with exit code {code} and without a result: it left Python, or became another program, which is "
        f"not measured{said}"
    )


def _command_text(request: Request, told: ChildReport) -> str:
    """Say how a command ended in which no process did anything on the card."""
    name, code, said = request.name, told.exit_code or 0, _said(told)
    if told.hung:
        return f"{name} did not end after {request.limit_seconds:g} s; give it longer with --seconds{said}"
    if left_out := clearing([str(request.script), *request.arguments]):
        return (
            f"{name} ended, and nothing of it was measured: {left_out} leaves out the variables of the environment "
            f"that ullage measures with; expected the command without that option{said}"
        )
    if code:
        how = (
            f"ended by {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"ended with exit code {code}"
        )
        return f"{name} {how}, and no process of it did anything on the card{said}"
    return (
        f"{name} ended, and no process of it did anything on the card: nothing that it started with this Python "
        f"trained{said}"
    )


def _crash_place(output: str) -> str:
    """The user's line in what Python's faulthandler wrote, innermost first."""
    for file, line in re.findall(r'^  File "(.+)", line (\d+) in ', output, re.MULTILINE):
        if is_users(file):
            return f" at line {line} of {file}"
    return ""


def _error_text(request: Request, outcome: Outcome, told: ChildReport) -> str:
    place = f" at line {outcome.line} of {outcome.file}" if outcome.line else ""
    if outcome.exit_code is not None:
        return f"{request.name} exited with code {outcome.exit_code}{place}{_said(told)}"
    if missing := missing_tool(outcome.text):
        return f"{request.name} cannot go on{place}: {missing}"
    said = outcome.text.strip()
    text = f": {said}" if said else ""
    notes = "".join(f"\n({note})" for note in told.result.notes) if told.result else ""
    hint = f"\n({outcome.hint})" if outcome.hint else ""
    printed = f"\nWhat was printed last{_said(told).removeprefix('; it said')}" if outcome.is_of_child else ""
    return f"{request.name} raised {outcome.type}{place}{text}\n{outcome.traceback}{notes}{hint}{printed}"


def _said(told: ChildReport) -> str:
    # Of the faulthandler's words only the first line is the user's business; the place is told apart.
    text = told.output.partition("\nThread 0x")[0].partition("\nCurrent thread 0x")[0]
    tail = "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])
    return f"; it said:\n{tail}" if tail else ""


# ---- what it means


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """What would be used of the card, in bytes: the interval that decides, and what it is made of."""

    total_bytes: int
    context_bytes: int
    context_interval_bytes: tuple[int, int]
    low_bytes: int
    high_bytes: int
    cudnn: CudnnUse
    guesses: list[Guess]
    outside: Outside
    placement: Placement | None


def _use(request: Request, gpu: Gpu, result: RunResult, measured: Measured) -> _Use:
    profile = profile_of(gpu)
    context = profile.context_bytes if request.context_bytes is None else request.context_bytes
    low_context = profile.context_low_bytes if request.context_bytes is None else context
    high_context = profile.context_high_bytes if request.context_bytes is None else context
    cudnn, guesses = cudnn_of(measured), guesses_of(measured)
    below, above = doubt_of(cudnn, guesses)
    reserved = measured.peak_reserved_bytes
    outside = outside_of(result.outside, reserved_bytes=reserved, context_bytes=request.emulated_context_bytes(gpu))
    placement = placement_of(request, measured)
    return _Use(
        total_bytes=request.total_bytes(gpu),
        context_bytes=context,
        context_interval_bytes=(low_context, high_context),
        low_bytes=reserved + outside.peak_bytes + low_context - below - (placement.below_bytes if placement else 0),
        high_bytes=reserved + outside.peak_bytes + high_context + above + (placement.above_bytes if placement else 0),
        cudnn=cudnn,
        guesses=guesses,
        outside=outside,
        placement=placement,
    )


def _judgement(request: Request, gpu: Gpu, result: RunResult, measured: Measured, use: _Use) -> tuple[Verdict, str]:
    """Decide, and say why."""
    ran_out = result.outcome.kind == "oom"
    lacking, spare = lacking_bytes(request, gpu, measured.at_oom) if ran_out else None, spare_of(measured)
    verdict = judge(
        low_bytes=use.low_bytes,
        high_bytes=use.high_bytes,
        total_bytes=use.total_bytes,
        lacking_bytes=lacking,
        spare_bytes=spare,
    )
    if ran_out and use.placement is not None and use.placement.fits_somewhere:
        verdict = Verdict.UNKNOWN
    timed_out = result.outcome.kind == "time" and not any(step.complete for step in measured.steps)
    if verdict is Verdict.FITS and (timed_out or result.measured is None):
        verdict = Verdict.UNKNOWN
    reason = reason_of_ending(request, gpu, result, use.placement, timed_out=timed_out, spare=spare)
    if reason is None:
        size = reason_of_size(verdict, use.low_bytes, use.high_bytes, use.total_bytes, use.cudnn, use.placement)
        growth = growth_text(measured.growth, use.total_bytes - use.high_bytes)
        reason = size + growth
    if deciding(result.reads, "unknown"):
        return Verdict.UNKNOWN, reason_of_unknown(result.reads)
    return verdict, reason


def _judgement_with_epoch(
    request: Request, gpu: Gpu, result: RunResult, measured: Measured, use: _Use
) -> tuple[Verdict, str]:
    """Decide, and say why: of the whole epoch, where one was gone through."""
    verdict, reason = _judgement(request, gpu, result, measured, use)
    if result.epoch is None:
        return verdict, reason
    least = measured.peak_allocated_bytes + use.context_interval_bytes[0]
    is_beyond = least > use.total_bytes or result.outcome.kind == "oom"
    return judged_with(result.epoch, verdict, reason, is_beyond=is_beyond)


def _prediction(request: Request, gpu: Gpu, torch: TorchBuild, result: RunResult, seconds: float) -> Prediction:
    result = with_epoch(result)
    measured = result.measured or NOTHING_MEASURED
    use = _use(request, gpu, result, measured)
    verdict, reason = _judgement_with_epoch(request, gpu, result, measured, use)
    allocated, reserved = measured.peak_allocated_bytes, measured.peak_reserved_bytes
    return Prediction(
        verdict=verdict,
        reason=reason,
        script=str(request.script),
        arguments=list(without_secrets(request.arguments)),
        gpu=gpu.driver_name,
        torch=result.torch,
        world_size=result.world_size,
        rank=result.rank,
        total_memory_bytes=use.total_bytes,
        context_bytes=use.context_bytes,
        context_interval_bytes=use.context_interval_bytes,
        context_source="given" if request.context_bytes is not None else profile_of(gpu).source,
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
        notes=_notes(request, torch, result, use.cudnn),
        unwritten=result.unwritten,
        compiled_graphs=result.compiled_graphs,
        changes_made=result.changes_made,
        training=result.training,
        changes_refused=result.changes_refused,
        picture=measured.picture,
        snapshot_error=result.snapshot_error,
        ended=result.outcome.kind,
        seconds=_seconds(result, seconds),
        phases=measured.phases,
        bands=measured.bands,
        epoch=result.epoch,
        avoidable=measured.avoidable,
        sent_bytes_per_step=result.sent_bytes_per_step,
        recomputed_share=result.recomputed_share,
    )


def _with_host(request: Request, told: ChildReport, prediction: Prediction) -> Prediction:
    """Add what the host gives, which decides where its limit was given."""
    figures = told.result.host if told.result else None
    host = host_use(figures, told.workers, world_size=prediction.world_size, given_bytes=request.host_memory_bytes)
    if host is not None and host.decides:
        also = f"; {prediction.reason}" if prediction.verdict is Verdict.DOES_NOT_FIT else ""
        prediction = replace(prediction, verdict=Verdict.DOES_NOT_FIT, reason=reason_of_host(host) + also)
    prediction = replace(prediction, host=host)
    if request.job_request is not None:
        prediction = replace(prediction, job_request=job_request_of(request.job_request, needs_of(request, prediction)))
    return prediction


def _seconds(result: RunResult, total: float) -> dict[str, float]:
    steps = {f"step_{number + 1}": value for number, value in enumerate(result.step_seconds)}
    return {"total": round(total, 3), "import": round(result.import_seconds, 3), **steps}


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


def _notes(request: Request, torch: TorchBuild, result: RunResult, cudnn: CudnnUse) -> list[str]:
    notes = list(result.notes)
    if result.values.failures:
        notes.append(
            "the host could not compute " + "; ".join(f"{name} ({why})" for name, why in result.values.failures.items())
        )
    notes += notes_of(cudnn, torch)
    notes += result.epoch.notes if result.epoch is not None else []
    if result.unwritten:
        notes.append("CUDA functions answered 'not supported': " + ", ".join(sorted(result.unwritten)))
    if result.world_size:
        notes.append(
            "what a collective used is let go by a thread of PyTorch's that looks a few times a second, so a peak may "
            "differ by a bucket from run to run"
        )
    if result.oom_count and result.outcome.kind != "oom":
        notes.append(f"memory ran out {_times(result.oom_count)}, and the script went on")
    if result.outcome.kind == "ended" and result.measured is not None and not result.step_seconds:
        notes.append("no optimizer took a step: the whole run counts as one")
    notes += unreached(request.until, result)
    if result.outcome.kind == "time":
        notes.append(f"stopped after {request.limit_seconds:g} s; give it longer with --seconds")
    if not torch.is_tested:
        notes.append(f"torch {torch.version} is outside the tested range {TESTED[0]} to {TESTED[1]}")
    if result.measured is not None and result.measured.history_is_partial:
        notes.append(
            "PyTorch's memory history was too short for the whole run: the oldest blocks count as not rounded, without "
            "their lines; run fewer steps"
        )
    if result.lost_entries:
        notes.append(f"{result.lost_entries} events were not recorded: the host ran out of memory")
    return notes


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
