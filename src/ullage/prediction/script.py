"""Run a script in a process of its own on an emulated card, and make a `Prediction` of what it tells."""

import re
import signal
import time
from collections.abc import Callable
from typing import Any, Final

import ullage._errors
from ullage._errors import EmulationError, ScriptError, UllageError
from ullage._units import text_of_bytes
from ullage.emulator.profile import profile_of
from ullage.emulator.torch_build import TESTED, TorchBuild, find_torch, has_code_for
from ullage.gpus import Gpu, find_gpu
from ullage.ownership.role import Role
from ullage.prediction.prediction import CudnnUse, Growth, LineUse, Oom, Picture, Prediction, Read, Step, Verdict, judge
from ullage.prediction.process import Progress, Told, run
from ullage.prediction.request import Request
from ullage.prediction.workspace import cudnn_of, doubt_of, guesses_of, notes_of, spare_of
from ullage.tracing.source import is_users

__all__ = ["Request", "predict"]

_TAIL_LINES: Final = 15


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
    gpu = find_gpu(request.gpu, arch=request.arch)
    request.check(gpu)
    torch = find_torch()
    began = time.perf_counter()
    told = run(request, progress or (lambda text: None), cancelled)
    if cancelled():
        raise ScriptError(f"the run of {request.script.name} was cancelled")
    if told.refused is not None:
        error: type[UllageError] = getattr(ullage._errors, told.refused["type"])
        raise error(told.refused["text"])
    if told.broken is not None:
        raise EmulationError(
            f"ullage itself failed while it measured {request.script.name}; please report this:\n{told.broken}"
        )
    if told.result is None:
        raise ScriptError(_death_text(request, told))
    if not has_code_for(gpu.compute_capability, told.result.get("architectures", [])):
        raise EmulationError(_code_text(gpu, told.result))
    if told.result["outcome"]["kind"] == "error":
        raise ScriptError(_error_text(request, told.result["outcome"], told))
    return _prediction(request, gpu, torch, told.result, time.perf_counter() - began)


# ---- runs that cannot be judged


def _code_text(gpu: Gpu, result: dict[str, Any]) -> str:
    has = ", ".join(result["architectures"])
    return (
        f"torch {result['torch']} has no code for {gpu.architecture}, so a real {gpu.short_name} would refuse its "
        f"first kernel (this build has {has}); install a torch that still supports the card"
    )


# ---- scripts that failed


def _death_text(request: Request, told: Told) -> str:
    """Say how a process ended that told no result."""
    name, code = request.script.name, told.exit_code or 0
    said = _said(told)
    if told.hung and not told.started:
        return f"the process for {name} did not start within two minutes{said}"
    if told.hung:
        return (
            f"{name} did not end after {request.seconds:g} s and could not be stopped: it is busy outside of Python "
            f"or handles every error; give it longer with --seconds, or find where it hangs{said}"
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


def _crash_place(output: str) -> str:
    """The user's line in what Python's faulthandler wrote, innermost first."""
    for file, line in re.findall(r'^  File "(.+)", line (\d+) in ', output, re.MULTILINE):
        if is_users(file):
            return f" at line {line} of {file}"
    return ""


def _error_text(request: Request, outcome: dict[str, Any], told: Told) -> str:
    place = f" at line {outcome['line']} of {outcome['file']}" if outcome.get("line") else ""
    if outcome["exit_code"] is not None:
        return f"{request.script.name} exited with code {outcome['exit_code']}{place}{_said(told)}"
    text = f": {outcome['text']}" if outcome["text"] else ""
    notes = "".join(f"\n({note})" for note in told.result["notes"]) if told.result else ""
    return f"{request.script.name} raised {outcome['type']}{place}{text}\n{outcome['traceback']}{notes}"


def _said(told: Told) -> str:
    # Of the faulthandler's words only the first line is the user's business; the place is told apart.
    text = told.output.partition("\nThread 0x")[0].partition("\nCurrent thread 0x")[0]
    tail = "\n".join(text.rstrip().splitlines()[-_TAIL_LINES:])
    return f"; it said:\n{tail}" if tail else ""


# ---- what it means


def _prediction(request: Request, gpu: Gpu, torch: TorchBuild, result: dict[str, Any], seconds: float) -> Prediction:
    outcome = result["outcome"]
    profile = profile_of(gpu.name)
    context = profile.context_bytes if request.context_bytes is None else request.context_bytes
    low_context = profile.context_low_bytes if request.context_bytes is None else context
    high_context = profile.context_high_bytes if request.context_bytes is None else context
    cudnn, guesses = cudnn_of(result), guesses_of(result)
    below, above = doubt_of(cudnn, guesses)
    reserved = result.get("peak_reserved_bytes", 0)
    allocated = result.get("peak_allocated_bytes", 0)
    total = request.total_bytes(gpu)
    low = reserved + low_context - below
    high = reserved + high_context + above
    ran_out = outcome["kind"] == "oom"
    steps = [Step(**step) for step in result.get("steps", [])]
    complete = [step for step in steps if step.complete]
    used = result["device"] is not None
    lacking, spare = _lacking_bytes(request, gpu, result) if ran_out else None, spare_of(result)
    verdict = judge(low_bytes=low, high_bytes=high, total_bytes=total, lacking_bytes=lacking, spare_bytes=spare)
    timed_out = outcome["kind"] == "time" and not complete
    if verdict is Verdict.FITS and (timed_out or not used):
        verdict = Verdict.UNKNOWN
    return Prediction(
        verdict=verdict,
        reason=_reason_of_ending(request, gpu, result, timed_out=timed_out, spare=spare)
        or _reason_of_size(verdict, low, high, total, cudnn)
        + _growth_text(result, total - high)
        + _understatement(result),
        script=str(request.script),
        arguments=list(request.arguments),
        gpu=gpu.driver_name,
        torch=result["torch"],
        world_size=request.world_size,
        rank=request.rank,
        ranks=[],
        total_memory_bytes=total,
        context_bytes=context,
        context_source="given" if request.context_bytes is not None else profile.source,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        cached_bytes=result.get("reserved_at_peak_bytes", 0) - allocated,
        headroom_bytes=total - reserved - context,
        cudnn=cudnn,
        guesses=guesses,
        interval_bytes=(low, high),
        settled=result.get("settled", False),
        growth=Growth(**result["growth"]) if "growth" in result else None,
        peak_step=next((step.step for step in steps if step.peak_allocated_bytes == allocated), None),
        steps=steps,
        roles=result["peak"]["roles"] if used else dict.fromkeys(Role, 0),
        role_peaks=result.get("role_peaks", {}),
        lines=[LineUse(**line) for line in result["peak"]["lines"]] if used else [],
        timeline=result.get("timeline", {}),
        reads=[Read(**read) for read in result["reads"]],
        oom=_oom(outcome, result) if ran_out else None,
        oom_count=result.get("oom_count", 0),
        notes=_notes(request, torch, result, cudnn),
        unwritten=result["unwritten"],
        compiled_graphs=result.get("compiled_graphs", 0),
        eager=None,
        optimizers_changed=result["optimizers_changed"],
        picture=Picture(**result["picture"]) if "picture" in result else None,
        snapshot_error=result.get("snapshot_error"),
        ended=outcome["kind"],
        seconds={
            "total": round(seconds, 3),
            "import": round(result["import_seconds"], 3),
            **{f"step_{number + 1}": value for number, value in enumerate(result["step_seconds"])},
        },
    )


def _growth_text(result: dict[str, Any], free: int) -> str:
    """What every step keeps, and how long that can go on."""
    if "growth" not in result:
        return ""
    each = result["growth"]["bytes_per_step"]
    end = f", so memory runs out after about {free // each:,} more" if free > 0 else ""
    return f" by then; every step keeps {text_of_bytes(each)} more{end}"


def _understatement(result: dict[str, Any]) -> str:
    ops = sorted({read["op"] for read in result["reads"] if read["decides_shape"]})
    return f"; more than that in truth, because values decide shapes here ({', '.join(ops)})" if ops else ""


def _free_bytes(request: Request, gpu: Gpu, alive: dict[str, Any]) -> int:
    """What the driver had left when memory ran out."""
    return request.total_bytes(gpu) - int(alive["reserved_bytes"]) - request.emulated_context_bytes(gpu)


def _lacking_bytes(request: Request, gpu: Gpu, result: dict[str, Any]) -> int:
    """What was missing when memory ran out: what was asked for beyond what was free; all where nothing was recorded."""
    alive = result.get("at_oom")
    if alive is None:
        return request.total_bytes(gpu)
    return int(alive["requested_bytes"]) - _free_bytes(request, gpu, alive)


def _reason_of_ending(request: Request, gpu: Gpu, result: dict[str, Any], *, timed_out: bool, spare: int) -> str | None:
    if result["outcome"]["kind"] == "oom":
        alive = result.get("at_oom")
        if alive is None:
            return "the script ran out of memory at its first allocation"
        free = _free_bytes(request, gpu, alive)
        cached = alive["reserved_bytes"] - alive["allocated_bytes"]
        fragmented = "; try --alloc-conf expandable_segments:True" if cached + free > alive["requested_bytes"] else ""
        is_enough = _lacking_bytes(request, gpu, result) <= spare
        guessed = (
            f"; up to {text_of_bytes(spare)} of that and of what was in use is guessed, and decides"
            if is_enough
            else ""
        )
        return (
            f"the script ran out of memory: it asked for {text_of_bytes(alive['requested_bytes'])}, with "
            f"{text_of_bytes(max(free, 0))} free and {text_of_bytes(cached)} cached in pieces{fragmented}{guessed}"
        )
    if result["device"] is None:
        what = "allocated nothing on the GPU" if result["imported"] else "did not import torch"
        return f"the script's own process {what} (the processes that it starts are not measured)"
    if timed_out:
        return "no optimizer step ended in the given time"
    return None


def _reason_of_size(verdict: Verdict, low: int, high: int, total: int, cudnn: CudnnUse) -> str:
    match verdict:
        case Verdict.FITS:
            is_estimated = "table" in cudnn.problems or "unknown" in cudnn.problems
            condition = ", if cuDNN's workspaces are as estimated" if is_estimated else ""
            return f"at most {text_of_bytes(high)} of {text_of_bytes(total)} would be used{condition}"
        case Verdict.DOES_NOT_FIT:
            return f"at least {text_of_bytes(low)} would be used, and the card has {text_of_bytes(total)}"
        case Verdict.UNKNOWN:
            return (
                f"between {text_of_bytes(low)} and {text_of_bytes(high)} would be used of {text_of_bytes(total)}: "
                "the CUDA context and workspaces that only a real card knows decide"
            )


def _oom(outcome: dict[str, Any], result: dict[str, Any]) -> Oom:
    levels = {"requested_bytes": 0, "allocated_bytes": 0, "reserved_bytes": 0}
    alive = levels | {"roles": {}, "lines": []} | result.get("at_oom", {})
    return Oom(
        text=outcome["text"],
        file=outcome.get("file"),
        line=outcome.get("line"),
        **{name: alive[name] for name in levels},
        roles=alive["roles"],
        lines=[LineUse(**line) for line in alive["lines"]],
    )


def _notes(request: Request, torch: TorchBuild, result: dict[str, Any], cudnn: CudnnUse) -> list[str]:
    notes = list(result["notes"])
    deciding = sorted({read["op"] for read in result["reads"] if read["decides_shape"]})
    if deciding:
        notes.append(
            f"shapes depend on values that an emulated card does not have ({', '.join(deciding)}): they read as empty "
            "or zero, so memory is understated after them"
        )
    notes += notes_of(cudnn, torch)
    if result["unwritten"]:
        notes.append("CUDA functions answered 'not supported': " + ", ".join(sorted(result["unwritten"])))
    if request.world_size:
        notes.append(
            "NCCL's own buffers lie outside of PyTorch's allocator and are not counted; what a collective used is let "
            "go by a thread that looks a few times a second, so a peak may differ by a bucket from run to run"
        )
    if result.get("oom_count") and result["outcome"]["kind"] != "oom":
        notes.append(f"memory ran out {_times(result['oom_count'])}, and the script went on")
    if result["outcome"]["kind"] == "ended" and result["device"] is not None and not result["step_seconds"]:
        notes.append("no optimizer took a step: the whole run counts as one")
    if result["outcome"]["kind"] == "time":
        notes.append(f"stopped after {request.seconds:g} s; give it longer with --seconds")
    if not torch.is_tested:
        notes.append(f"torch {torch.version} is outside the tested range {TESTED[0]} to {TESTED[1]}")
    if result.get("history_is_partial"):
        notes.append(
            "PyTorch's memory history was too short for the whole run: the oldest blocks count as not rounded, without "
            "their lines; run fewer steps"
        )
    if result["lost_entries"]:
        notes.append(f"{result['lost_entries']} events were not recorded: the host ran out of memory")
    return notes


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
