"""The process in which the script runs: emulate, watch, run, tell the parent.

Started by `prediction.script` as `python -m ullage.prediction.child FD REQUEST`. Messages go to the file descriptor FD,
one JSON object a line: {"event": "import" | "start" | "step" | "result", ...}. The script's own output is untouched.
"""

import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ullage._errors import UllageError
from ullage.emulator import library
from ullage.emulator.emulate import emulate
from ullage.gpus import find_gpu
from ullage.tracing.journal import Journal

_HISTORY_ENTRIES: Final = 400_000
_WARN_READS: Final = 20


class StopScript(BaseException):
    """Unwind the script: enough steps, or enough time. Not an Exception, so that a script does not handle it."""


class Run:
    """One run of a script, from `prepare` to `result`."""

    def __init__(self, request: dict[str, Any], channel: int) -> None:
        self._request = request
        self._channel = channel
        self._journal = Journal()
        self._reserved_at_ends: list[list[int]] = []
        self._oom_snapshot: Any = None
        self._outcome: dict[str, Any] | None = None
        self._started = 0.0
        self._step_times: list[float] = []

    def tell(self, event: str, **details: Any) -> None:
        """Send one message to the parent; a parent that is gone ends this process."""
        data = json.dumps({"event": event, **details}).encode() + b"\n"
        while data:
            data = data[os.write(self._channel, data) :]

    def prepare(self) -> None:
        """Emulate the card, import torch, install the hooks."""
        request = self._request
        emulate(
            find_gpu(request["gpu"], arch=request["arch"]),
            total_memory_bytes=request["total_memory_bytes"],
            context_bytes=request["context_bytes"],
            cudnn_workspace_bytes=request["cudnn_workspace_bytes"],
            count=request["count"],
        )
        self._journal.open()
        self.tell("import")
        began = time.perf_counter()
        import torch

        from ullage.prediction.observer import Observer

        self._observer = Observer(self._journal, self._on_step)
        self._observer.install()
        self._keep_history(torch)
        self._import_seconds = time.perf_counter() - began

    def _keep_history(self, torch: Any) -> None:
        """Record requests with their Python stacks from the moment CUDA is initialised, and keep it so.

        A script that records its own history reads the same one: ours says no less.
        """
        start = torch.cuda.memory._record_memory_history

        def begin() -> None:
            start(enabled="all", context="alloc", stacks="python", max_entries=_HISTORY_ENTRIES)

        torch.cuda._lazy_call(begin)
        torch.cuda.memory._record_memory_history = lambda *arguments, **keywords: None

    def run(self) -> None:
        """Run the script as `python SCRIPT ARGS` would, until it ends, fails, or is stopped."""
        script, arguments = self._request["script"], self._request["arguments"]
        sys.argv = [script, *arguments]
        sys.path[0] = str(Path(script).resolve().parent)
        if self._request["seconds"]:
            signal.signal(signal.SIGALRM, self._on_time)
            signal.setitimer(signal.ITIMER_REAL, self._request["seconds"])
        self._started = time.perf_counter()
        self.tell("start")
        try:
            runpy.run_path(script, run_name="__main__")
            self._finish({"kind": "ended"})
        except StopScript:
            pass
        except SystemExit as error:
            if error.code in (None, 0):
                self._finish({"kind": "ended"})
            else:
                self._finish(self._failure(error))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._finish(self._failure(error))

    # ---- the ends of a run

    def _on_step(self, number: int) -> None:
        import torch

        self._step_times.append(time.perf_counter())
        self._reserved_at_ends.append([torch.cuda.memory_reserved(device) for device in range(self._request["count"])])
        self.tell("step", step=number)
        if number >= self._request["steps"]:
            self._finish({"kind": "steps"})
            raise StopScript

    def _on_time(self, *_: object) -> None:
        self._finish({"kind": "time"})
        raise StopScript

    def _failure(self, error: BaseException) -> dict[str, Any]:
        oom = _oom_in(error)
        line = _users_traceback_line(error.__traceback__)
        text = "".join(traceback.format_exception(error)) if not isinstance(error, SystemExit) else ""
        return {
            "kind": "oom" if oom else "error",
            "type": type(error).__name__,
            "text": str(oom or error),
            "traceback": _without_own_frames(text),
            "exit_code": error.code if isinstance(error, SystemExit) else None,
            **(_users_traceback_line(oom.__traceback__) or line or {} if oom else line or {}),
        }

    def _finish(self, outcome: dict[str, Any]) -> None:
        """Send the result, once: whatever the script does after it is not measured."""
        if self._outcome is not None:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._outcome = outcome
        if outcome["kind"] == "error" and self._observer.oom_indices:
            outcome["kind"] = "oom"  # the script caught the error and gave up
        self._observer.note_everything()
        self._journal.close()
        self._observer.remove()
        self.tell("result", **self._result(outcome))

    def _result(self, outcome: dict[str, Any]) -> dict[str, Any]:
        import torch

        from ullage.prediction import trace

        entries = self._journal.entries()
        device = trace.busiest_device(entries)
        result: dict[str, Any] = {
            "outcome": outcome,
            "torch": torch.__version__,
            "device": device,
            "devices_used": sorted({int(index) for index in entries["device"] if index >= 0}),
            "unwritten": library.unwritten_functions(),
            "reads": self._reads(),
            "import_seconds": self._import_seconds,
            "step_seconds": _differences([self._started, *self._step_times]),
            "lost_entries": self._journal.lost(),
            "architectures": torch.cuda.get_arch_list(),
            "alloc_settings": _effective_settings(torch),
        }
        if device is None:
            return result
        snapshot = torch.cuda.memory._snapshot(device)
        memory = trace.Memory.of(entries, self._observer, device, snapshot["device_traces"][device])
        levels = trace.levels_of(entries, device)
        peak = int(levels.index[int(levels.allocated.argmax())])
        plans = library.cudnn_plans()
        result |= {
            "peak_allocated_bytes": int(levels.allocated.max()),
            "peak_reserved_bytes": int(levels.reserved.max()),
            "reserved_at_peak_bytes": int(levels.reserved[int(levels.allocated.argmax())]),
            "peak": memory.alive_at(peak),
            "role_peaks": memory.role_peaks(),
            "steps": trace.steps_of(
                levels,
                self._observer.step_ends,
                [reserved[device] for reserved in self._reserved_at_ends],
                self._observer.oom_indices,
                len(entries),
            ),
            "timeline": trace.timeline_of(levels, self._observer.step_ends),
            "oom_count": len(self._observer.oom_indices),
            "cudnn_plans": plans.count,
            "cudnn_largest_tensors_bytes": plans.largest_tensors_bytes,
            "driver_peak_used_bytes": library.card_use(device).peak_used_bytes,
        }
        if self._observer.oom_indices:
            result["at_oom"] = memory.alive_at(self._observer.oom_indices[-1])
        if self._request["snapshot"]:
            result["snapshot_error"] = _write_snapshot(torch, Path(self._request["snapshot"]))
        return result

    def _reads(self) -> list[dict[str, Any]]:
        observer = self._observer
        return [
            {
                "file": line.file if line else None,
                "line": line.line if line else None,
                "op": op,
                "count": count,
                "bytes": observer.read_bytes[line, op, decides],
                "decides_shape": decides,
            }
            for (line, op, decides), count in sorted(observer.reads.items(), key=lambda item: (not item[0][2], -item[1]))
        ]


def _oom_in(error: BaseException | None) -> BaseException | None:
    """Find PyTorch's out-of-memory error in an exception or in what caused it."""
    import torch

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, torch.cuda.OutOfMemoryError) or "CUDA error: out of memory" in str(error):
            return error
        error = error.__cause__ or error.__context__
    return None


def _users_traceback_line(trace: TracebackType | None) -> dict[str, Any] | None:
    from ullage.tracing.source import is_users

    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            found = {"file": code.co_filename, "line": trace.tb_lineno, "function": code.co_name}
        trace = trace.tb_next
    return found


def _without_own_frames(text: str) -> str:
    """Leave this file's and runpy's frames out of a traceback: the user did not write them."""
    kept, skip = [], False
    for line in text.splitlines():
        if line.startswith("  File "):
            skip = f'"{__file__}"' in line or "<frozen runpy>" in line or "/runpy.py" in line or "observer.py" in line
        elif not line.startswith("    "):
            skip = False
        if not skip:
            kept.append(line)
    return "\n".join(kept)


def _write_snapshot(torch: Any, path: Path) -> str | None:
    """Write PyTorch's snapshot whole or not at all; returns why not."""
    import pickle

    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as stream:
            pickle.dump(torch.cuda.memory._snapshot(), stream)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        return f"{error.strerror or error}"
    return None


def _effective_settings(torch: Any) -> dict[str, Any]:
    settings = torch.cuda.memory._snapshot().get("allocator_settings", {}) if torch.cuda.is_initialized() else {}
    return {key: value for key, value in settings.items() if isinstance(value, int | float | str | bool)}


def _differences(times: list[float]) -> list[float]:
    return [round(after - before, 4) for before, after in zip(times, times[1:], strict=False)]


def main() -> None:
    """Run the request in argv and send its result."""
    run = Run(json.loads(sys.argv[2]), int(sys.argv[1]))
    try:
        run.prepare()
    except UllageError as error:
        run.tell("refused", text=str(error), exit_code=error.exit_code)
        return
    run.run()


if __name__ == "__main__":
    main()
