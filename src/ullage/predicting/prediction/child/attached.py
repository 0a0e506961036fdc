"""Measure a process that the predicted command starts, and send the result to the parent process.

`_child/hooks/sitecustomize.py` calls `attach` when a Python process starts with `ULLAGE_PREDICTION` in its environment.
The measurement begins when the process imports torch. A process that does not use the GPU, such as a launcher, sends no
result.
"""

import atexit
import gc
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any, Final, NoReturn

from ullage.base.child_process import run_exit_handlers
from ullage.gpu.emulator.emulate import inherited
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.tracing.compiled import hurry_workers
from ullage.gpu.tracing.edited_source import EditedSources
from ullage.gpu.tracing.journal import Journal
from ullage.gpu.tracing.torch_import import ImportWatch
from ullage.predicting.made_up.install import install as install_made_up
from ullage.predicting.prediction.child.context import Channel, RunContext
from ullage.predicting.prediction.child.run import Run
from ullage.predicting.prediction.data.run_result import ExitReport, Outcome, RunResult
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE, announce
from ullage.predicting.prediction.request import ALONE, REAL, Attachment

_WORLD: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_HANDLERS_SECONDS: Final = 3.0  # for the exit handlers of other packages, which may block for ever


def attach() -> None:
    """Measure the memory of this process after it imports torch."""
    attachment = Attachment.inherited()
    runs: list[AttachedRun] = []
    notes: list[str] = []
    install_made_up(attachment.request.made_up, notes.append)
    EditedSources(attachment.request.edited).install()

    def before() -> None:
        attached = _as_its_rank(attachment)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect("\0" + attached.address)
        except OSError:  # the parent has its result and has closed the socket
            os._exit(0)
        context = RunContext(
            request=attached.request,
            channel=Channel(connection.detach()),
            journal=Journal(),
            emulation=inherited(),
            torch=find_torch(),
            notes=notes,
        )
        runs.append(AttachedRun(context))
        runs[0].begin()

    def after(torch: ModuleType) -> None:
        if runs:
            runs[0].torch_is_there(torch)

    ImportWatch("torch", before=before, after=after).install()


# Launchers set the rank in environment variables: torchrun (torch 2.6 to 2.15), accelerate, deepspeed, and most others.
def _as_its_rank(attachment: Attachment) -> Attachment:
    request = attachment.request
    rank, world_size, local, local_world = (_number(os.environ.get(name)) for name in _WORLD)
    if rank is None or world_size is None or attachment.processes == REAL or request.options["world_size"] is not None:
        return attachment
    local_world = local_world or min(world_size, CARDS_OF_A_NODE)
    world_size *= attachment.nodes
    if world_size == 1:
        return attachment
    if attachment.processes == ALONE:
        wanted = request.options["rank"] if request.options["rank"] < world_size else 0
        if (local if local is not None else rank) != wanted % local_world:
            os._exit(0)
        rank = wanted
    master = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in os.environ}
    announce(rank, world_size)
    node = {"LOCAL_RANK": str(rank % local_world), "LOCAL_WORLD_SIZE": str(local_world)}
    os.environ |= master | node | {"GROUP_RANK": str(rank // local_world), "GROUP_WORLD_SIZE": str(attachment.nodes)}
    return replace(attachment, request=request.with_options(rank=rank, world_size=world_size))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 9 else None


class AttachedRun(Run):
    """The measured run of a process that the predicted command started."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self._rank = _number(os.environ.get("RANK")) or 0
        self._is_exiting = False

    def begin(self) -> None:
        """Start to measure the memory of this process, right before it imports torch."""
        self._channel.send("hello", name=self._name(), rank=self._rank)
        self._watch()
        atexit.register(self._at_exit)
        self._channel.tell_exit_status(self._context.journal)
        self._channel.send("start")
        self._before_import()

    @staticmethod
    def _name() -> str:
        words = getattr(sys, "argv", None) or [""]
        return os.path.basename(words[0]) if words[0] not in ("", "-", "-c", "-m") else f"python {words[0]}".strip()

    # When this process has ended, `tracing/journal/exit_status.c` sends the exit status.
    def _at_exit(self) -> None:
        self._is_exiting = True
        # The error that the interpreter printed as unhandled, or that an interactive console printed.
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self._finish_failed(error)
        else:
            self._finish(self._end())

    def _finish(self, outcome: Outcome) -> None:
        if not self._is_over and outcome.kind != "error" and not self._is_exiting and not self._has_allocated():
            self._is_over = True
            self._channel.close()
        super()._finish(outcome)

    def _message(self, result: RunResult) -> dict[str, Any]:
        if not self._is_exiting:
            return super()._message(result)
        report = ExitReport(result=result, outcome_of_success=self._end(), did_nothing=not self._has_allocated())
        return {"event": "exiting", "report": report.to_json()}

    def _result(self, outcome: Outcome) -> RunResult:
        world_size = _number(os.environ.get("WORLD_SIZE")) or 1
        return replace(super()._result(outcome), rank=self._rank, world_size=world_size if world_size > 1 else None)

    def _has_allocated(self) -> bool:
        if self._seen is not None and self._seen.observer.ooms:
            return True
        torch: Any = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return False
        return any(torch.cuda.max_memory_reserved(device) for device in range(torch.cuda.device_count()))

    # A process that did not use the GPU may be a launcher, which must wait for the processes that it started.
    def _on_time(self, number: int, frame: FrameType | None) -> None:
        if self._has_allocated():
            super()._on_time(number, frame)

    def _stop(self) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        end_in_the_middle(lambda: self._exit(0))
        raise AssertionError  # not reached

    def _on_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            super()._on_signals()


def end_in_the_middle(end: Callable[[], None]) -> None:
    """Shut down workers, run exit handlers, and call `end`. Skip the clean-up if it takes too long.

    An exception would be treated as a failure by the launcher's code below the script. The process therefore ends
    without unwinding its stack.
    """

    def end_late() -> None:
        time.sleep(_HANDLERS_SECONDS)
        end()

    threading.Thread(target=end_late, daemon=True).start()
    with suppress(Exception):
        _shut_loaders()
    hurry_workers()
    run_exit_handlers()
    end()


# A killed DataLoader worker would leave a temporary folder of multiprocessing behind.
def _shut_loaders() -> None:
    loaders = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(loaders, "_MultiProcessingDataLoaderIter", None)
    if kind is None or not multiprocessing.active_children():
        return
    for each in gc.get_objects():
        if issubclass(type(each), kind):
            each._shutdown_workers()
