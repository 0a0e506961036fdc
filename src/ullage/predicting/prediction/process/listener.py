"""Receive messages from the processes of a script or a command, until there is a result or the time is over."""

import codecs
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ullage.base.child_process import ChildProcess, is_running
from ullage.predicting.prediction.child.whereabouts import words_for
from ullage.predicting.prediction.data.run_result import ExitReport, RunResult
from ullage.predicting.prediction.host.memory import WorkersUse
from ullage.predicting.prediction.host.watch import HostWatch
from ullage.predicting.prediction.process.unreached import UnreachedProcesses
from ullage.predicting.prediction.ranks.processes import peer_of, starters_of
from ullage.predicting.prediction.request import LEAVE_SIGNAL, STOP_SIGNAL, Request

Progress = Callable[[str], None]

START_SECONDS: Final = 120.0  # for the interpreter to start and import torch
STOP_SECONDS: Final = 10.0  # for a script to react to the request to stop
MEASURE_SECONDS: Final = 120.0  # for the child process to compute its result
UNWIND_SECONDS: Final = 3.0  # for the script to exit after its result
LEAVE_SECONDS: Final = 4.0  # for processes whose result is no longer needed to clean up
_TAIL_CHARACTERS: Final = 64_000
_TICK_SECONDS: Final = 0.2
_DISMISS_SECONDS: Final = 0.01
_FURTHER: Final = {"eval": "until it evaluates", "save": "until it saves", "end": "until it ends"}
# The script itself can write such lines into the pipe.
_NOT_OURS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of ullage in the child process, before the script could run."""

    type: str
    """The class name of the error."""
    text: str


@dataclass(slots=True)
class ChildReport:
    """The messages of a child process, and the way in which the process ended."""

    result: RunResult | None = None
    refused: Refusal | None = None
    broken: str | None = None
    """The traceback of an error inside ullage in the child process."""
    started: bool = False
    hung: bool = False
    """Whether ullage killed the child process because it did not answer."""
    exit_code: int | None = None
    """The exit code of the child process. A negative number is a signal: -9 means signal 9."""
    output: str = ""
    """The end of the script's output."""
    name: str = ""
    """The name of the process's program, if a predicted command started the process."""
    rank: int = 0
    unreached: str = ""
    """A sentence about a process that did not emulate the GPU, or an empty text."""
    workers: WorkersUse = field(default_factory=WorkersUse)
    """The host memory of the processes that the script started, such as DataLoader workers."""

    @property
    def is_final(self) -> bool:
        """Whether the child process has sent its last message."""
        return self.result is not None or self.refused is not None or self.broken is not None


@dataclass(slots=True)
class _Voice:
    descriptor: int
    report: ChildReport
    process: int
    """The ID of the process that sends the messages."""
    owner: socket.socket | None = None
    """The socket that connects ullage to a process of the user's command. None if ullage runs a script directly."""
    pending: list[bytes] = field(default_factory=list)
    """The parts of a message whose end has not arrived yet."""
    exiting: ExitReport | None = None
    """The report that the process sent before its exit. The process sends its exit status in a later message."""
    watch: HostWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = HostWatch(self.process)

    def look_at_workers(self, *, now: bool = False) -> None:
        """Measure the host memory of the processes that the script started."""
        if not self.report.is_final:
            self.watch.look(now=now)
            self.report.workers = self.watch.use


@dataclass(slots=True)
class Listener:
    """Receive messages and output of a script until its result, its end or its time limit."""

    process: ChildProcess
    request: Request
    progress: Progress
    cancelled: Callable[[], bool]
    door: socket.socket | None = None
    """The socket for the processes of a command, or None if ullage runs a script."""
    hung: bool = False
    """Whether ullage killed the script's process because it did not answer."""
    output: str = ""
    """The end of the output of the script or command."""
    reports: list[ChildReport] = field(default_factory=list)
    """The reports of all processes that have sent their last message, in the order of these messages."""
    unreached: UnreachedProcesses = field(default_factory=UnreachedProcesses)
    """The processes of the script or command that do not emulate the GPU."""
    _voices: dict[int, _Voice] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _limit: float = 0.0
    _asked: bool = False
    _has_started: bool = False
    # The IDs of the processes that are importing torch.
    _importing: set[int] = field(default_factory=set)
    _importing_since: float = 0.0
    _limit_before_import: float = 0.0
    # From the ID of each process to the time at which it began to wait for another rank.
    _waiting_since: dict[int, float] = field(default_factory=dict)
    # The ranks that a progress message has already named.
    _asked_ranks: set[int] = field(default_factory=set)
    _done: str = "no step yet"
    _decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace"))

    def hear(self, descriptor: int, report: ChildReport, process: int, owner: socket.socket | None = None) -> None:
        """Start to receive messages from a process through a file descriptor, and store their content in `report`."""
        self._voices[descriptor] = _Voice(descriptor, report, process, owner)
        self._selector.register(descriptor, selectors.EVENT_READ)

    def started(self, now: float) -> None:
        """Start the time limit of the run."""
        self._has_started = True
        self._limit = now + self.request.limit_seconds

    def listen(self) -> None:
        """Receive messages until no more are expected. The process may continue to run."""
        assert self.process.popen.stdout is not None
        output = self.process.popen.stdout.fileno()
        self._limit = self._limit or time.monotonic() + START_SECONDS
        self.progress("starting")
        with self._selector as selector:
            selector.register(output, selectors.EVENT_READ)
            if self.door is not None:
                selector.register(self.door, selectors.EVENT_READ)
            try:
                while selector.get_map() and self._is_in_time() and not self.cancelled():
                    ready = selector.select(timeout=_TICK_SECONDS)
                    for voice in self._voices.values():
                        voice.look_at_workers()
                    self.unreached.look(self.process.popen.pid)
                    for key, _ in ready:
                        self._take_from(key.fd, output)
                    # Processes that the script left behind may hold the pipes open for longer than the script itself.
                    if not ready and self.process.has_ended():
                        return
                if self.cancelled() and not self.request.helps:
                    self.dismiss()
                elif not selector.get_map():
                    self._await_end()
            except BaseException:
                self.dismiss()
                raise
            finally:
                for voice in self._voices.values():
                    self._settle(voice, None)
                    if voice.owner is not None:
                        voice.owner.close()

    # The process has closed all pipes. If it ends by itself, its exit code shows why there is not a result.
    def _await_end(self) -> None:
        until = time.monotonic() + UNWIND_SECONDS
        while not self.process.has_ended() and time.monotonic() < until:
            time.sleep(_DISMISS_SECONDS)

    def dismiss(self) -> None:
        """Ask the script's processes to end, because their results are no longer needed."""
        processes = {voice.process for voice in self._voices.values()}
        launchers = processes & {starter for process in processes for starter in starters_of(process)}
        until = time.monotonic() + LEAVE_SECONDS
        for some in (processes - launchers, launchers):  # A launcher that ends first would kill its processes.
            for process in some:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, LEAVE_SIGNAL)
            while any(map(is_running, some)) and time.monotonic() < until:
                time.sleep(_DISMISS_SECONDS)

    def _take_from(self, descriptor: int, output: int) -> None:
        if self.door is not None and descriptor == self.door.fileno():
            self._let_in()
            return
        try:
            data = os.read(descriptor, 1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(descriptor)
            voice = self._voices.get(descriptor)
            if voice is not None:
                self._waiting_since.pop(voice.process, None)
                self._end_import(voice, time.monotonic())
            if voice is not None and voice.owner is not None:
                self._settle(voice, None)
                if not voice.report.is_final:
                    voice.owner.close()  # the process did not use the GPU
                    del self._voices[descriptor]
        elif descriptor == output:
            self._take_output(data)
        else:
            self._take(self._voices[descriptor], data)

    # A process of another user may connect too.
    def _let_in(self) -> None:
        assert self.door is not None
        connection, _ = self.door.accept()
        process, user = peer_of(connection)
        if user != os.geteuid():
            connection.close()
            return
        self.hear(connection.fileno(), ChildReport(), process, connection)

    def _is_in_time(self) -> bool:
        if time.monotonic() < self._limit or self._waiting_since:
            return True
        told = [voice.report.is_final for voice in self._voices.values()]
        if self.door is None and all(told):
            return False
        if self._has_started and not self._asked:
            self._asked = True
            self._limit = time.monotonic() + STOP_SECONDS
            for voice in self._voices.values():
                self._ask_to_stop(voice)
            return any(not each for each in told) or not told
        self.hung = not any(told) and not self.process.has_ended()
        return False

    def _end_import(self, voice: _Voice, now: float) -> None:
        if voice.process not in self._importing:
            return
        self._importing.remove(voice.process)
        if not self._importing and not self._asked:
            self._limit = self._limit_before_import + now - self._importing_since

    # Before a process has started its run, the signal would kill it.
    @staticmethod
    def _ask_to_stop(voice: _Voice) -> None:
        if voice.report.started and not voice.report.is_final:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(voice.process, STOP_SIGNAL)

    def _take_output(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self.output = (self.output + text)[-_TAIL_CHARACTERS:]
        if self.request.options["output"]:
            with suppress(OSError, ValueError):  # If nobody reads stderr, the script continues anyway.
                sys.stderr.write(text)
                sys.stderr.flush()

    def _take(self, voice: _Voice, data: bytes) -> None:
        voice.pending.append(data)
        if b"\n" not in data:
            return
        *lines, rest = b"".join(voice.pending).split(b"\n")
        voice.pending = [rest]
        for line in lines:
            with suppress(*_NOT_OURS):
                self._take_message(voice, json.loads(line))

    def _take_message(self, voice: _Voice, message: dict[str, Any]) -> None:
        now = time.monotonic()
        report = voice.report
        match message["event"]:
            case "hello":
                report.name, report.rank = str(message["name"]), int(message["rank"])
            case "start":
                report.started = True
                if not self._has_started:
                    self.started(now)
                if self._asked:
                    self._ask_to_stop(voice)
                self.progress("running the script")
            case "import":
                self._begin_import(voice, now)
            case "imported":
                self._end_import(voice, now)
                self.progress("running the script")
            case "waits":
                self._waiting_since[voice.process] = now
                source = message["source"]
                if source is not None and source not in self._asked_ranks:
                    self._asked_ranks.add(source)
                    self.progress(f"running rank {source} until it sends what this rank waits for")
            case "goes on":
                self._limit += now - self._waiting_since.pop(voice.process, now)
            case "step":
                voice.look_at_workers(now=message["step"] <= self.request.steps)
                step, wanted = message["step"], self.request.steps
                self._done = f"step {step} of {wanted}" if step <= wanted else f"step {step}{self._why_further()}"
                self.progress(self._done)
            case "at":
                if where := words_for(message["stack"], message["reads"], str(self.request.script.absolute())):
                    self.progress(f"{self._done}, now {where}")
            case "further":
                if self.door is None:
                    self._limit = min(self._limit, now + message["seconds"])
                self.progress("evaluating")
            case "epoch":
                self.progress(message["text"])
            case "stopping":
                voice.look_at_workers(now=True)
                if self.door is None:
                    self._asked = True
                self._limit = max(now + MEASURE_SECONDS, self._limit if self.door is not None else 0)
            case "refused":
                report.refused = Refusal(type=message["type"], text=message["text"])
            case "broken":
                report.broken = message["traceback"]
            case "result":
                report.result = RunResult.from_json(message["result"])
            case "exiting":
                voice.exiting = ExitReport.from_json(message["report"])
            case "exit":
                self._settle(voice, int(message["status"]))
                return
        if report.is_final and not any(each is report for each in self.reports):  # even if further messages follow
            self.reports.append(report)
            if self.door is None:
                self._limit = now + UNWIND_SECONDS

    def _settle(self, voice: _Voice, status: int | None) -> None:
        if voice.exiting is not None:
            voice.report.result = voice.exiting.result_with(status)
            voice.exiting = None
            if voice.report.is_final:
                self.reports.append(voice.report)

    def _why_further(self) -> str:
        return (
            ""
            if self.request.options["batches"]
            else f", {_FURTHER.get(self.request.options['until'] or '', 'until the peaks settle')}"
        )

    # The time during which at least one process imports torch is excluded from the time limit.
    def _begin_import(self, voice: _Voice, now: float) -> None:
        if not self._importing and not self._asked:
            self._importing_since, self._limit_before_import = now, self._limit
            self._limit = now + START_SECONDS + self.request.limit_seconds
        self._importing.add(voice.process)
        self.progress("importing torch")
