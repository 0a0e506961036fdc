"""The script's process as its parent sees it: start it, listen to it, stop it, and leave nothing of it behind.

The process leads a group of its own and carries a token in its environment, so that whatever it starts ends with it:
after a result, an error, Ctrl-C or a hang. If this process is killed, the kernel kills the group: it closes the
lifeline (see `channel`). Everything comes through pipes; no temporary file and no thread is made. It does not know what
the messages mean for a prediction.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ullage import _lifeline
from ullage.prediction.request import STOP_SIGNAL, Request

Progress = Callable[[str], None]

START_SECONDS: Final = 120.0  # for the interpreter to start, and for torch to be imported
STOP_SECONDS: Final = 10.0  # for a script to let itself be stopped
MEASURE_SECONDS: Final = 120.0  # for the child to put its result together
UNWIND_SECONDS: Final = 3.0  # for the script to unwind after its result
_TAIL_CHARACTERS: Final = 64_000
_TICK_SECONDS: Final = 0.2


@dataclass(slots=True)
class Told:
    """What the child has said, and how it ended."""

    result: dict[str, Any] | None = None
    refused: dict[str, Any] | None = None
    broken: str | None = None
    """The traceback of an error of ours."""
    started: bool = False
    hung: bool = False
    """It had to be killed before it said anything final."""
    exit_code: int | None = None
    """Of the process; negative: the signal that ended it."""
    output: str = ""
    """The end of what the script printed."""

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.result is not None or self.refused is not None or self.broken is not None


def run(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> Told:
    """Run the script in a process of its own until it has told its result, has ended, or is not wanted any more."""
    told = Told()
    with _child(request) as (process, channel):
        _Listener(process, channel, request, told, progress, cancelled).listen()
        _lifeline.kill_group(process)
        told.exit_code = process.wait()
    return told


@contextmanager
def _child(request: Request) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start the process, and end all that came of it whatever happens."""
    environment = dict(os.environ)
    for stale in ("ULLAGE_EMULATED_CARD", "CUDA_VISIBLE_DEVICES"):
        environment.pop(stale, None)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    token = _lifeline.mark(environment)
    channel, channel_end = os.pipe()
    lifeline_end, lifeline = os.pipe()
    process = None
    try:
        process = subprocess.Popen(
            [*_command(), str(channel_end), str(lifeline_end), json.dumps(request.message())],
            pass_fds=(channel_end, lifeline_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        os.close(channel_end)
        channel_end = -1
        yield process, channel
    finally:
        if process is not None:
            _lifeline.kill_group(process)
            process.wait()
            _lifeline.kill_strays(token)
            if process.stdout is not None:
                process.stdout.close()
        for end in (channel, channel_end, lifeline, lifeline_end):
            if end >= 0:
                os.close(end)


def _command() -> list[str]:
    # Only the user's own environment says where packages are, so the folder of this one comes last. The current
    # folder, which -c puts first, is not on the path of `python SCRIPT`, and could hide the standard library.
    root = str(Path(__file__).resolve().parents[2])
    code = (
        "import sys; sys.flags.safe_path or sys.path.pop(0); "
        f"{root!r} in sys.path or sys.path.append({root!r}); from ullage.prediction.child import main; main()"
    )
    return [sys.executable, "-c", code]


@dataclass(slots=True)
class _Listener:
    """Take messages and output until there is a result, the process ends, or its time is over."""

    process: subprocess.Popen[bytes]
    channel: int
    request: Request
    told: Told
    progress: Progress
    cancelled: Callable[[], bool]
    _limit: float = 0.0
    """When the present state has lasted too long."""
    _asked: bool = False
    """The script was asked to stop."""
    _importing_since: float = 0.0
    _limit_before_import: float = 0.0
    _pending: bytes = b""
    _decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace"))

    def listen(self) -> None:
        """Return when nothing more is to be expected; the process may still run."""
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
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
                if not ready and _lifeline.has_ended(self.process):
                    return

    def _is_in_time(self) -> bool:
        if time.monotonic() < self._limit:
            return True
        if self.told.is_final:
            return False
        if self.told.started and not self._asked:
            self._asked = True
            self._limit = time.monotonic() + STOP_SECONDS
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, STOP_SIGNAL)
            return True
        self.told.hung = not _lifeline.has_ended(self.process)
        return False

    def _take_output(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self.told.output = (self.told.output + text)[-_TAIL_CHARACTERS:]
        if self.request.echo:
            with suppress(OSError, ValueError):  # nobody reads it: the script goes on all the same
                sys.stderr.write(text)
                sys.stderr.flush()

    def _take(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # the script wrote into our pipe
                self._take_message(json.loads(line))

    def _take_message(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        match message["event"]:
            case "start":
                self.told.started = True
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
                self.told.refused = message
            case "broken":
                self.told.broken = message["traceback"]
            case "result":
                self.told.result = message
        if self.told.is_final:
            self._limit = now + UNWIND_SECONDS
