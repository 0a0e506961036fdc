"""Emulate the GPU, run and measure the script, and send the result to the parent process.

The arguments are CHANNEL LIFELINE REQUEST. The process writes JSON messages to the file descriptor CHANNEL, one per
line: {"event": "start" | "import" | "imported" | "step" | "further" | "stopping" | "result", ...}. The file descriptor
LIFELINE shows when the parent has ended.
"""

import builtins
import faulthandler
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ullage.base.child_process import run_exit_handlers, tie_to_parent
from ullage.base.errors import UllageError, UsageError, ValuesReadError
from ullage.gpu.emulator.emulate import emulate
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.tracing.compiled import hurry_workers
from ullage.gpu.tracing.edited_source import EditedSources
from ullage.gpu.tracing.journal import EntryKind, Journal
from ullage.gpu.tracing.source import callers_line
from ullage.gpu.tracing.torch_import import ImportWatch
from ullage.predicting.made_up.install import install as install_made_up
from ullage.predicting.prediction.child.context import Channel, RunContext
from ullage.predicting.prediction.child.import_choices import (
    check_allocator_settings,
    choose_allocator_settings,
    choose_cards,
)
from ullage.predicting.prediction.child.imports import KeptImports
from ullage.predicting.prediction.command.notebook import run_notebook
from ullage.predicting.prediction.command.words import NOTEBOOK
from ullage.predicting.prediction.data.run_result import Outcome, RunResult
from ullage.predicting.prediction.observation import ending
from ullage.predicting.prediction.ranks import lone_rank
from ullage.predicting.prediction.request import CLOSED_EXIT_CODE, LEAVE_SIGNAL, STOP_SIGNAL, ChildRequest
from ullage.recorded.settings import VARIABLES

if TYPE_CHECKING:
    from ullage.predicting.prediction.child.instruments import Instruments

# The duration of the steps is added to this limit.
_EVALUATION_SECONDS: Final = 10.0


class StopScript(BaseException):
    """Stops the script after enough steps or at the time limit. It is a BaseException, so `except Exception` does not
    catch it.
    """


class Run:
    """A predicted run of a script, from its start to its result."""

    def __init__(self, context: RunContext) -> None:
        self._context, self._request, self._channel = context, context.request, context.channel
        self._seen: Instruments | None = None
        self._is_over = False
        self._has_gone_on = False
        self._started = time.perf_counter()
        self._import_began = self._import_seconds = 0.0
        self._exit = os._exit
        self._imports = KeptImports()

    def run(self) -> None:
        """Run the script as `python SCRIPT ARGS` would, until it ends, fails or is stopped."""
        try:
            edited = self._prepare()
            self._channel.send("start")
            execute(self._request, edited)
            self._finish(self._end())
        except StopScript:
            pass
        except SystemExit as error:
            if error.code is None or (isinstance(error.code, int) and not error.code):
                self._finish(self._end())
            else:
                if not isinstance(error.code, int) and sys.stderr is not None:
                    print(error.code, file=sys.stderr, flush=True)
                self._finish_failed(error)
        except BaseException as error:
            self._finish_failed(error)

    # ---- before the script, and when it imports torch

    def _prepare(self) -> EditedSources:
        request = self._request
        self._imports.keep()
        if request.options["world_size"]:
            lone_rank.announce(request.options["rank"], request.options["world_size"])
        self._watch()
        install_made_up(request.made_up, self._context.notes.append)
        edited = EditedSources(request.edited)
        edited.install()
        ImportWatch("torch", before=self._before_import, after=self.torch_is_there).install()
        return edited

    def _watch(self) -> None:
        if self._request.eager:  # the newer and the older name of the same variable
            os.environ |= {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}
        self._environment = {name: os.environ.get(name) for name in VARIABLES}
        self._context.journal.open()
        self._context.meter.open()
        os.register_at_fork(after_in_child=self._leave)
        os._exit = self._exit_at_once
        self._on_signals()

    def _on_signals(self) -> None:
        signal.signal(STOP_SIGNAL, self._on_time)
        signal.signal(LEAVE_SIGNAL, self._on_leave)

    def _before_import(self) -> None:
        context = self._context
        self._imports.restore()
        self._channel.send("import")
        context.meter.look()
        self._import_began = time.perf_counter()
        choose_allocator_settings(self._request.options["alloc_conf"], self._environment, context.notes.append)
        choose_cards(context.emulation, context.torch, context.notes.append)

    def torch_is_there(self, torch: Any) -> None:
        """Install the tools that measure the script after it imports torch."""
        meter = self._context.meter
        meter.look()
        with meter.own_part():
            from ullage.predicting.prediction.child.instruments import Instruments

            self._seen = Instruments(self._context, self, torch)
            try:
                check_allocator_settings(self._request.options["alloc_conf"], torch)
            except UsageError as error:
                self._is_over = True
                refuse(self._channel, error)
                self._stop()
            self._import_seconds = time.perf_counter() - self._import_began
            torch.cuda._lazy_call(meter.look)
        self._imports.keep()
        self._channel.send("imported")

    def _leave(self) -> None:
        self._is_over = True
        self._channel.close()
        self._context.journal.close()
        os._exit = self._exit
        if self._seen is not None:
            self._seen.leave()

    # ---- while the script runs

    def on_step(self, number: int) -> None:
        """Record the end of a training step, and stop the script after enough steps."""
        seen = self._seen
        assert seen is not None
        seen.steps.note_step()
        self._context.meter.look()
        self._channel.send("step", step=number)
        seen.whereabouts.note_step()
        seen.look_after_values(number)
        if self._is_over:
            return
        if seen.epoch is not None:
            seen.epoch.watch.step_ended()
            if seen.epoch.watch.wants_more(number):
                return
        if not self._is_over and seen.steps.is_reached(number) and not self._goes_on(seen):
            self._finish(Outcome(kind="steps"))
            self._stop()

    # The evaluation may take about as long as all steps together.
    def _goes_on(self, seen: "Instruments") -> bool:
        if self._has_gone_on or not seen.steps.evaluation_follows():
            return False
        self._has_gone_on = True
        so_far = time.perf_counter() - self._started - self._import_seconds
        self._channel.send("further", seconds=so_far + _EVALUATION_SECONDS)
        return True

    def on_recount(self) -> None:
        """Discard the training steps that were counted so far."""
        if self._seen is not None:
            self._seen.steps.forget()

    def on_read(self) -> None:
        """End this run because the script reads tensor values. The parent process then starts a run that tracks
        values.
        """
        if self._is_over:
            return
        self._is_over = True
        refuse(self._channel, ValuesReadError("values are read"))
        os.kill(
            os.getpid(), LEAVE_SIGNAL
        )  # an error that is raised while PyTorch converts a tensor to a number would not reach the script

    def on_others_end(self) -> None:
        """Stop the script after enough steps because another rank has finished."""
        if not self._is_over and self._seen is not None and len(self._seen.steps) >= self._request.steps:
            self._finish(Outcome(kind="steps"))
            self._stop()

    def on_epoch_end(self) -> NoReturn:
        """Stop the script because the prediction for the epoch is complete."""
        self._finish(Outcome(kind="steps"))
        raise StopScript

    def _on_time(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over:
            self._finish(Outcome(kind="steps" if self._has_gone_on else "time"))
            self._stop()

    def _on_leave(self, number: int, frame: FrameType | None) -> None:
        signal.signal(LEAVE_SIGNAL, signal.SIG_IGN)
        self._is_over = True
        self._stop()

    # Replaces os._exit, which would end the process without a result.
    def _exit_at_once(self, status: int) -> NoReturn:
        self._finish(ending.end_outcome(self._gave_up(), status, callers_line()))
        self._exit(status)

    # ---- the end of the run

    def _stop(self) -> NoReturn:
        raise StopScript

    def _end(self) -> Outcome:
        return ending.end_outcome(self._gave_up())

    # Only if the script ended no step and allocated nothing after the error.
    def _gave_up(self) -> ending.SeenOom | None:
        if self._seen is None or not self._seen.observer.ooms:
            return None
        last, ends = self._seen.observer.ooms[-1], self._seen.observer.step_ends
        went_on = bool((self._context.journal.entries()[last.index + 1 :]["kind"] == EntryKind.ALLOC).any())
        return None if went_on or (ends and ends[-1] > last.index) else last

    def _finish_failed(self, error: BaseException) -> None:
        self._imports.restore()
        self._finish(ending.error_outcome(error, self._gave_up()))

    # Memory that the script allocates after this call is not measured.
    def _finish(self, outcome: Outcome) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._imports.restore()
        seen = self._seen
        if seen is not None:
            seen.whereabouts.end()
        self._context.meter.look()  # measured first, because making the result takes memory
        if seen is not None and seen.values.messages is not None:
            seen.values.messages.end()
        if outcome.kind == "time":
            self._channel.send("stopping")
        try:
            if seen is not None and seen.epoch is not None:
                seen.epoch.foresee()
            self._channel.send("stopping")
            message = self._message(self._result(outcome))
        except Exception:
            self._channel.send("broken", traceback=traceback.format_exc())
        else:
            self._channel.send(**message)

    def _message(self, result: RunResult) -> dict[str, Any]:
        return {"event": "result", "result": result.to_json()}

    def _result(self, outcome: Outcome) -> RunResult:
        context = self._context
        if self._seen is not None:
            from ullage.predicting.prediction.child.measure import measure

            began = self._started + self._import_seconds
            return measure(context, self._seen, outcome, began=began, import_seconds=self._import_seconds)
        return RunResult(
            outcome=outcome,
            torch=context.torch.version,
            imported=False,
            import_seconds=self._import_seconds,
            step_seconds=[],
            notes=context.notes,
            world_size=self._request.options["world_size"],
            rank=self._request.options["rank"],
            host=context.meter.figures(),
            snapshot_error="the script did not import torch" if self._request.snapshot else None,
        )


def refuse(channel: Channel, error: UllageError) -> None:
    """Send an error of ullage to the parent process instead of a result."""
    channel.send("refused", text=str(error), type=type(error).__name__)


def _context_of(request: ChildRequest, channel: Channel) -> RunContext:
    journal = Journal()
    torch = find_torch()
    emulation = emulate(
        request.gpu,
        total_memory_bytes=request.total_memory_bytes,
        context_bytes=request.context_bytes,
        cudnn_workspace_bytes=request.cudnn_workspace_bytes,
        placement=request.options["placement"],
        count=request.options["count"],
        values="off" if request.begins_without_values else request.values.mode,
        values_seed=request.values.seed,
        routing=request.values.routing,
    )
    return RunContext(request=request, channel=channel, journal=journal, emulation=emulation, torch=torch)


def main() -> None:
    """Run the prediction request in sys.argv, and send its result to the parent process."""
    tie_to_parent()
    if sys.stderr is not None:
        faulthandler.enable()
    process = os.getpid()
    exit_process = os._exit

    def end() -> None:
        hurry_workers()
        run_exit_handlers()
        exit_process(0 if channel.is_open else CLOSED_EXIT_CODE)

    def end_in_the_middle(*_: object) -> None:
        if os.getpid() == process:
            end()
        signal.signal(
            signal.SIGTERM, signal.SIG_DFL
        )  # a process that the script forked ends by the signal as it would without ullage
        os.kill(os.getpid(), signal.SIGTERM)

    request = ChildRequest.from_json(json.loads(sys.argv[3]))
    channel = Channel(int(sys.argv[2]))
    if request.helps:
        signal.signal(
            signal.SIGTERM, end_in_the_middle
        )  # sent when no rank waits for the messages of this one any more
    try:
        run = Run(_context_of(request, channel))
    except UllageError as error:
        refuse(channel, error)
    except Exception:
        channel.send("broken", traceback=traceback.format_exc())
    else:
        run.run()
    if os.getpid() == process:  # not in a process that the script forked
        end()


def execute(request: ChildRequest, edited: EditedSources) -> None:
    """Run the script as the main module of this process, as `python SCRIPT ARGS` would."""
    script = request.script
    sys.argv = [request.name, *request.arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(script).resolve().parent))
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", script)
    vars(module).update(__file__=script, __builtins__=builtins, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = (
        module  # stays there: pickled classes, spawned processes and exit handlers look up the main module
    )
    if script.endswith(NOTEBOOK):
        run_notebook(Path(script), module)
    else:
        source: str | bytes | None = edited.text_of(script)
        if source is None:
            with io.open_code(script) as stream:
                source = stream.read()
        exec(compile(source, script, "exec", dont_inherit=True), vars(module))
    # A script that trains in other threads has not ended when its last line has been executed.
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter itself does next
