"""Run a script in a process of its own on an emulated card, and make a `Prediction` of what it tells.

The process leads a group of its own, so that whatever it starts ends with it: after a result, an error, Ctrl-C or a
hang. Results come through a pipe; no temporary file is made.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ullage._errors import ScriptError, TorchMissingError, UllageError, UsageError
from ullage._units import MIB, text_of_bytes
from ullage.emulator.profile import profile_of, workspace_bound_bytes
from ullage.emulator.library import CudnnPlans
from ullage.emulator.torch_build import TESTED, TorchBuild, find_torch
from ullage.gpus import Gpu, find_gpu
from ullage.prediction.prediction import LineUse, Oom, Prediction, Read, Step, Verdict, judge

Progress = Callable[[str], None]

_EXIT_SECONDS: Final = 10.0  # for the script to unwind after its result
_GRACE_SECONDS: Final = 30.0  # beyond --seconds, for a script that does not let itself be stopped
_OUTPUT_LINES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run, on which card, and for how long."""

    script: Path
    arguments: tuple[str, ...] = ()
    gpu: str
    arch: str | None = None
    count: int = 1
    steps: int = 3
    seconds: float = 300.0
    alloc_conf: str | None = None
    total_memory_bytes: int | None = None
    context_bytes: int | None = None
    cudnn_workspace_bytes: int | None = None
    snapshot: Path | None = None
    echo: bool = False
    """Pass the script's output on to standard error."""


@dataclass(slots=True)
class _Told:
    """What the child has said so far."""

    result: dict[str, Any] | None = None
    refused: dict[str, Any] | None = None
    started: bool = False
    output: deque[str] = field(default_factory=lambda: deque(maxlen=_OUTPUT_LINES))


def predict(request: Request, *, progress: Progress | None = None) -> Prediction:
    """Run the request's script on its card and say whether it fits.

    Args:
        request: what to run.
        progress: called with a short text whenever the run gets further.

    Raises:
        ScriptError: the script failed for another reason than memory, or could not be stopped.
        TorchMissingError: there is no torch built for CUDA.
        UnknownGpuError, UsageError: the request cannot be carried out.
    """
    gpu = find_gpu(request.gpu, arch=request.arch)
    _check(request, gpu)
    torch = find_torch()
    began = time.perf_counter()
    told = _run(request, progress or (lambda text: None))
    if told.refused is not None:
        raise _refusal(told.refused)
    assert told.result is not None
    return _prediction(request, gpu, torch, told, time.perf_counter() - began)


def _check(request: Request, gpu: Gpu) -> None:
    if not request.script.is_file():
        what = "is a folder" if request.script.is_dir() else "does not exist"
        raise UsageError(f"the script {request.script} {what}; expected a Python file")
    if request.steps < 1:
        raise UsageError(f"--steps {request.steps} leaves nothing to measure; expected 1 or more")
    if request.seconds <= 0:
        raise UsageError(f"--seconds {request.seconds:g} leaves no time; expected more than 0")
    if request.snapshot is not None and not request.snapshot.absolute().parent.is_dir():
        raise UsageError(f"the folder of --snapshot {request.snapshot} does not exist; make it first")
    total = request.total_memory_bytes or gpu.total_memory_bytes
    if request.context_bytes is not None and request.context_bytes >= total:
        raise UsageError(
            f"a context of {text_of_bytes(request.context_bytes)} leaves no room on a card of {text_of_bytes(total)}"
        )


def _refusal(refused: dict[str, Any]) -> UllageError:
    error: UllageError = TorchMissingError(refused["text"]) if refused["exit_code"] == 4 else UsageError(refused["text"])
    return error


# ---- running


def _run(request: Request, progress: Progress) -> _Told:
    told = _Told()
    with _child(request) as (process, channel):
        reader = threading.Thread(target=_drain, args=(process, told, request.echo), daemon=True)
        reader.start()
        _listen(process, channel, request, told, progress)
        try:
            process.wait(_EXIT_SECONDS if told.result or told.refused else 1.0)
        except subprocess.TimeoutExpired:
            pass
    reader.join(2.0)
    if told.result is None and told.refused is None:
        raise ScriptError(_death_text(process, request, told))
    return told


@contextmanager
def _child(request: Request) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the process, and end its whole group whatever happens."""
    read_end, write_end = os.pipe()
    environment = dict(os.environ)
    for stale in ("ULLAGE_EMULATED_CARD", "CUDA_VISIBLE_DEVICES"):
        environment.pop(stale, None)
    if request.alloc_conf is not None:
        environment.pop("PYTORCH_ALLOC_CONF", None)
        environment["PYTORCH_CUDA_ALLOC_CONF"] = request.alloc_conf
    environment.setdefault("PYTHONUNBUFFERED", "1")
    # Only the user's own environment says where packages are; the folder of this one may be elsewhere.
    package_root = str(Path(__file__).resolve().parents[2])
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path.append({package_root!r}); from ullage.prediction.child import main; main()",
        str(write_end),
        json.dumps(_message(request)),
    ]
    process = None
    try:
        process = subprocess.Popen(
            command,
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        os.close(write_end)
        write_end = -1
        yield process, read_end
    finally:
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def _message(request: Request) -> dict[str, Any]:
    return {
        "script": str(request.script.absolute()),
        "arguments": list(request.arguments),
        "gpu": request.gpu,
        "arch": request.arch,
        "count": request.count,
        "steps": request.steps,
        "seconds": request.seconds,
        "total_memory_bytes": request.total_memory_bytes,
        "context_bytes": request.context_bytes,
        "cudnn_workspace_bytes": request.cudnn_workspace_bytes,
        "snapshot": str(request.snapshot.absolute()) if request.snapshot else None,
    }


def _listen(process: subprocess.Popen[bytes], channel: int, request: Request, told: _Told, progress: Progress) -> None:
    """Take messages until there is a result, the process ends, or its time is over."""
    deadline = time.monotonic() + request.seconds + _GRACE_SECONDS
    pending = b""
    progress("starting")
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if not selector.select(timeout=0.2):
                if process.poll() is not None and not selector.select(timeout=0):
                    return
                continue
            data = os.read(channel, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if _take(json.loads(line), request, told, progress):
                    return


def _take(message: dict[str, Any], request: Request, told: _Told, progress: Progress) -> bool:
    """Take one message; True when it was the last."""
    match message["event"]:
        case "import":
            progress("importing torch")
        case "start":
            told.started = True
            progress("running the script")
        case "step":
            progress(f"step {message['step']} of {request.steps}")
        case "refused":
            told.refused = message
        case "result":
            told.result = message
    return told.result is not None or told.refused is not None


def _drain(process: subprocess.Popen[bytes], told: _Told, echo: bool) -> None:  # noqa: FBT001  a thread's argument
    assert process.stdout is not None
    for raw in process.stdout:
        text = raw.decode(errors="replace")
        told.output.append(text)
        if echo:
            sys.stderr.write(text)
            sys.stderr.flush()


def _death_text(process: subprocess.Popen[bytes], request: Request, told: _Told) -> str:
    tail = "".join(list(told.output)[-15:]).rstrip()
    shown = f"\n{tail}" if tail else ""
    code = process.returncode
    if code == -signal.SIGKILL and told.started:
        return f"{request.script.name} did not stop within {request.seconds:g} s; give it longer with --seconds{shown}"
    what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{request.script.name} ended with {what} before it could be measured{shown}"


# ---- what it means


def _prediction(request: Request, gpu: Gpu, torch: TorchBuild, told: _Told, seconds: float) -> Prediction:
    result = told.result
    assert result is not None
    outcome = result["outcome"]
    if outcome["kind"] == "error":
        raise ScriptError(_error_text(request, outcome, told))
    profile = profile_of(gpu.name)
    context = profile.context_bytes if request.context_bytes is None else request.context_bytes
    low_context = profile.context_low_bytes if request.context_bytes is None else context
    high_context = profile.context_high_bytes if request.context_bytes is None else context
    plans = CudnnPlans(
        count=result.get("cudnn_plans", 0), largest_tensors_bytes=result.get("cudnn_largest_tensors_bytes", 0)
    )
    workspaces = workspace_bound_bytes(plans) if request.cudnn_workspace_bytes is None else 0
    reserved = result.get("peak_reserved_bytes", 0)
    allocated = result.get("peak_allocated_bytes", 0)
    total = request.total_memory_bytes or gpu.total_memory_bytes
    low, high = reserved + low_context, reserved + high_context + workspaces
    ran_out = outcome["kind"] == "oom"
    steps = [Step(**step) for step in result.get("steps", [])]
    complete = [step for step in steps if step.complete]
    used = result["device"] is not None
    verdict = judge(ran_out=ran_out, low_bytes=low, high_bytes=high, total_bytes=total) if used else Verdict.UNKNOWN
    if outcome["kind"] == "time" and not complete and verdict is Verdict.FITS:
        verdict = Verdict.UNKNOWN
    return Prediction(
        verdict=verdict,
        reason=_reason(verdict, used=used, ran_out=ran_out, ended=outcome["kind"], complete=bool(complete), low=low, high=high, total=total),
        script=str(request.script),
        arguments=list(request.arguments),
        gpu=gpu.driver_name,
        torch=result["torch"],
        total_memory_bytes=total,
        context_bytes=context,
        context_source="given" if request.context_bytes is not None else profile.source,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        cached_bytes=result.get("reserved_at_peak_bytes", 0) - allocated,
        headroom_bytes=total - reserved - context,
        interval_bytes=(low, high),
        settled=_settled(complete),
        peak_step=next((step.step for step in steps if step.peak_allocated_bytes == allocated), None),
        steps=steps,
        roles=result["peak"]["roles"] if used else {},
        role_peaks=result.get("role_peaks", {}),
        lines=[LineUse(**line) for line in result["peak"]["lines"]] if used else [],
        timeline=result.get("timeline", {}),
        reads=[Read(**read) for read in result["reads"]],
        oom=_oom(outcome, result) if ran_out else None,
        oom_count=result.get("oom_count", 0),
        notes=_notes(request, torch, result, workspaces),
        unwritten=result["unwritten"],
        snapshot_error=result.get("snapshot_error"),
        ended=outcome["kind"],
        seconds={
            "total": round(seconds, 3),
            "import": round(result["import_seconds"], 3),
            **{f"step_{number + 1}": value for number, value in enumerate(result["step_seconds"])},
        },
    )


def _settled(complete: list[Step]) -> bool:
    """Whether the last step reserved no more than the one before, and allocated no more than 0.1 % more."""
    if len(complete) < 2:
        return False
    before, last = complete[-2:]
    return (
        last.peak_reserved_bytes <= before.peak_reserved_bytes
        and last.peak_allocated_bytes <= before.peak_allocated_bytes * 1.001
    )


def _reason(verdict: Verdict, *, used: bool, ran_out: bool, ended: str, complete: bool, low: int, high: int, total: int) -> str:
    if not used:
        return "the script allocated nothing on the GPU"
    if ran_out:
        return "the script ran out of memory"
    if ended == "time" and not complete:
        return "no optimizer step ended in the given time"
    if verdict is Verdict.UNKNOWN:
        return (
            f"between {text_of_bytes(low)} and {text_of_bytes(high)} would be used of {text_of_bytes(total)}: "
            "the CUDA context and the workspaces of cuDNN decide"
        )
    return f"at most {text_of_bytes(high)} of {text_of_bytes(total)} would be used" if verdict is Verdict.FITS else (
        f"at least {text_of_bytes(low)} would be used, and the card has {text_of_bytes(total)}"
    )


def _oom(outcome: dict[str, Any], result: dict[str, Any]) -> Oom:
    alive = result.get("at_oom") or {"roles": {}, "lines": []}
    return Oom(
        text=outcome["text"],
        file=outcome.get("file"),
        line=outcome.get("line"),
        roles=alive["roles"],
        lines=[LineUse(**line) for line in alive["lines"]],
    )


def _notes(request: Request, torch: TorchBuild, result: dict[str, Any], workspaces: int) -> list[str]:
    notes = []
    deciding = sorted({read["op"] for read in result["reads"] if read["decides_shape"]})
    if deciding:
        notes.append(
            f"shapes depend on values that an emulated card does not have ({', '.join(deciding)}): they read as empty "
            "or zero, so memory is understated after them"
        )
    if workspaces:
        notes.append(
            f"cuDNN ran {result['cudnn_plans']} plans; a real card may give them workspaces of up to about "
            f"{workspaces / MIB:.0f} MiB, which the interval includes"
        )
    if result["unwritten"]:
        notes.append("CUDA functions answered 'not supported': " + ", ".join(sorted(result["unwritten"])))
    if result.get("oom_count") and result["outcome"]["kind"] != "oom":
        notes.append(f"memory ran out {result['oom_count']} times, and the script went on")
    if result["outcome"]["kind"] == "ended" and not result.get("steps", [{}])[0].get("complete", False):
        notes.append("no optimizer took a step: the whole run counts as one")
    if result["outcome"]["kind"] == "time":
        notes.append(f"stopped after {request.seconds:g} s; give it longer with --seconds")
    if not torch.is_tested:
        notes.append(f"torch {torch.version} is outside the tested range {TESTED[0]} to {TESTED[1]}")
    if result["lost_entries"]:
        notes.append(f"{result['lost_entries']} events were not recorded: the host ran out of memory")
    return notes


def _error_text(request: Request, outcome: dict[str, Any], told: _Told) -> str:
    if outcome["exit_code"] is not None:
        tail = "".join(list(told.output)[-15:]).rstrip()
        return f"{request.script.name} exited with code {outcome['exit_code']}" + (f"; it said:\n{tail}" if tail else "")
    place = f" at line {outcome['line']} of {outcome['file']}" if outcome.get("line") else ""
    return f"{request.script.name} raised {outcome['type']}{place}: {outcome['text']}\n{outcome['traceback']}"
