"""The script's process as its parent sees it: start it, listen to it, stop it, and leave nothing of it behind.

The process leads a group of its own and carries a token in its environment, so that whatever it starts ends with it:
after a result, an error, Ctrl-C or a hang. If this process is killed, the kernel kills the group: it closes the
lifeline (see `_child_process`). Everything comes through pipes; no temporary file and no thread is made. What the
messages mean for a prediction is not known here.
"""

import codecs
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ullage._child_process import ChildProcess, new_pipe
from ullage.made_up.folder import with_folder
from ullage.prediction.request import STOP_SIGNAL, Request
from ullage.prediction.result import RunResult

Progress = Callable[[str], None]

START_SECONDS: Final = 120.0  # for the interpreter to start, and for torch to be imported
STOP_SECONDS: Final = 10.0  # for a script to let itself be stopped
MEASURE_SECONDS: Final = 120.0  # for the child to put its result together
UNWIND_SECONDS: Final = 3.0  # for the script to unwind after its result
_TAIL_CHARACTERS: Final = 64_000
_TICK_SECONDS: Final = 0.2
_NOT_OURS: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The errors of reading a line that is no message: the script has written into our pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of ours that the child raised instead of a run."""

    type: str
    """The name of its class."""
    text: str


@dataclass(slots=True)
class ChildReport:
    """What the child has said, and how it ended."""

    result: RunResult | None = None
    refused: Refusal | None = None
    broken: str | None = None
    """The traceback of an error of ours."""
    started: bool = False
    hung: bool = False
    """It had to be killed before it said anything final."""
    exit_code: int | None = None
    """The exit code of the process; negative: the signal that ended it."""
    output: str = ""
    """The end of what the script printed."""

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.result is not None or self.refused is not None or self.broken is not None


def run(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> ChildReport:
    """Run the script in a process of its own until it has told its result, has ended, or is not wanted any more."""
    report = ChildReport()
    with with_folder(request.made_up) as made_up, _child(replace(request, made_up=made_up)) as (process, channel):
        _Listener(process, channel, request, report, progress, cancelled).listen()
        report.exit_code = process.kill()
    return report


@contextmanager
def _child(request: Request) -> Iterator[tuple[ChildProcess, int]]:
    """Start the process, and end all that came of it whatever happens."""
    environment = dict(os.environ)
    for stale in ("ULLAGE_EMULATED_CARD", "CUDA_VISIBLE_DEVICES"):
        environment.pop(stale, None)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    channel, channel_end = new_pipe()
    try:
        try:
            process = ChildProcess(
                "ullage.prediction.child",
                [str(channel_end), json.dumps(request.for_child().to_json())],
                inherited=(channel_end,),
                environment=environment,
                with_flags=False,
                output=subprocess.PIPE,
            )
        finally:
            os.close(channel_end)
        with process:
            yield process, channel
    finally:
        os.close(channel)


@dataclass(slots=True)
class _Listener:
    """Take messages and output until there is a result, the process ends, or its time is over."""

    process: ChildProcess
    channel: int
    request: Request
    report: ChildReport
    progress: Progress
    cancelled: Callable[[], bool]
    _limit: float = 0.0
    """The time at which the present state has lasted too long."""
    _asked: bool = False
    """The script was asked to stop."""
    _importing_since: float = 0.0
    _limit_before_import: float = 0.0
    _pending: bytes = b""
    _decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace"))

    def listen(self) -> None:
        """Return when nothing more is to be expected; the process may still run."""
        assert self.process.popen.stdout is not None
        output = self.process.popen.stdout.fileno()
        self._limit = time.monotonic() + START_SECONDS
        self.progress("starting")
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while selector.get_map() and self._is_in_time() and not self.cancelled():
                ready = selector.select(timeout=_TICK_SECONDS)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd == output:
                        self._take_output(data)
                    else:
                        self._take(data)
                # Something that the script left behind may hold the pipes open for longer than it lives itself.
                if not ready and self.process.has_ended():
                    return

    def _is_in_time(self) -> bool:
        if time.monotonic() < self._limit:
            return True
        if self.report.is_final:
            return False
        if self.report.started and not self._asked:
            self._asked = True
            self._limit = time.monotonic() + STOP_SECONDS
            with suppress(ProcessLookupError):
                os.kill(self.process.popen.pid, STOP_SIGNAL)
            return True
        self.report.hung = not self.process.has_ended()
        return False

    def _take_output(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self.report.output = (self.report.output + text)[-_TAIL_CHARACTERS:]
        if self.request.echo:
            with suppress(OSError, ValueError):  # nobody reads it: the script goes on all the same
                sys.stderr.write(text)
                sys.stderr.flush()

    def _take(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            with suppress(*_NOT_OURS):
                self._take_message(json.loads(line))

    def _take_message(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        match message["event"]:
            case "start":
                self.report.started = True
                self._limit = now + self.request.seconds
                self.progress("running the script")
            case "import":
                self._importing_since, self._limit_before_import = now, self._limit
                self._limit = now + START_SECONDS + self.request.seconds
                self.progress("importing torch")
            case "imported":
                if not self._asked:
                    self._limit = self._limit_before_import + now - self._importing_since
                self.progress("running the script")
            case "step":
                step, wanted = message["step"], self.request.steps
                self.progress(f"step {step} of {wanted}" if step <= wanted else f"step {step}, until the peaks settle")
            case "stopping":
                self._asked = True
                self._limit = now + MEASURE_SECONDS
            case "refused":
                self.report.refused = Refusal(type=message["type"], text=message["text"])
            case "broken":
                self.report.broken = message["traceback"]
            case "result":
                self.report.result = RunResult.from_json(message["result"])
        if self.report.is_final:
            self._limit = now + UNWIND_SECONDS
