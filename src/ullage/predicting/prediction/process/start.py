"""Start the process of a script or a command, receive its messages, and end all processes that it started.

The process has its own process group and a token in its environment, which its child processes inherit. If ullage
itself is killed, the kernel kills the process group.
"""

import json
import os
import secrets
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from ullage.base.child_process import ChildProcess, hand_over, new_pipe
from ullage.base.foreign_files import open_regular
from ullage.gpu.emulator.emulate import emulate_in
from ullage.predicting.prediction.command.words import command_of
from ullage.predicting.prediction.process.listener import ChildReport, Listener, Progress
from ullage.predicting.prediction.process.terminal import open_empty_terminal
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE, environment_of
from ullage.predicting.prediction.request import Attachment, Request

_HELPER_SECONDS: Final = 1.0  # for a rank whose messages are no longer needed to run its exit handlers
_OUR_INPUT: Final = Path("/dev/fd/0")
_ASKING_FOR_INPUT: Final = frozenset(("-", "/dev/stdin"))
_input_lock: Final = Lock()
# A prediction may need several runs, but a pipe can be read only once.
_input_piped: list[bytes] = []


def run(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> ChildReport:
    """Run the script in a new process. Return after its result, after its end, or after a cancellation."""
    report = ChildReport()
    channel, channel_end = new_pipe()
    try:
        try:
            arguments = [str(channel_end), json.dumps(request.for_child().to_json())]
            process = _started(
                "ullage.predicting.prediction.child.run",
                arguments,
                request.arguments,
                _environment(request),
                channel_end,
            )
        finally:
            os.close(channel_end)
        with process:
            listener = Listener(process, request, progress, cancelled)
            listener.hear(channel, report, process.popen.pid)
            listener.listen()
            report.hung = listener.hung and not report.is_final
            if request.helps and cancelled():
                process.ask_to_end(_HELPER_SECONDS)
            report.exit_code = process.kill()
            report.output, report.unreached = listener.output, listener.unreached.text
    finally:
        os.close(channel)
    return report


def run_command(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> list[ChildReport]:
    """Run a command, and receive messages from each of its processes that uses the GPU.

    Returns:
        The report of each process, the one with the highest memory use first. If no process reported anything, the list
        has one empty report.
    """
    launch = request.launch
    environment = _environment(request)
    for name in environment_of(0, 1):  # set by a launcher that started ullage itself
        environment.pop(name, None)
    # The launcher may be inside a shell script, so the number of its processes is not known.
    own = 1 if request.options["world_size"] else request.options["rank"] % CARDS_OF_A_NODE + 1
    child = request.with_options(count=max(request.options["count"], launch.cards, own)).for_child()
    environment.setdefault(
        "PET_STANDALONE", "1"
    )  # torchrun (2.6 to 2.15) then takes a free port, because another run may use the default port
    if request.options["world_size"]:
        environment |= environment_of(request.options["rank"], request.options["world_size"])
    gpu = request.gpu
    emulate_in(
        environment,
        gpu,
        total_memory_bytes=request.total_memory_bytes,
        context_bytes=child.context_bytes,
        cudnn_workspace_bytes=request.cudnn_workspace_bytes,
        placement=request.options["placement"],
        count=child.options["count"],
        values=request.values,
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as door:
        address = f"ullage-{secrets.token_hex(16)}"
        door.bind("\0" + address)  # an abstract socket: no file, and it vanishes with this process
        door.listen()
        attachment = Attachment(address=address, request=child, processes=request.processes, nodes=launch.nodes)
        attachment.put_into(environment)
        with _started(
            "ullage.predicting.prediction.command.launch", command_of(launch.words), launch.words, environment
        ) as process:
            listener = Listener(process, request, progress, cancelled, door)
            listener.started(time.monotonic())
            listener.listen()
            exit_code = process.kill()
    reports = sorted(listener.reports, key=_fullness, reverse=True) or [ChildReport(hung=listener.hung)]
    for report in reports:
        report.exit_code, report.output, report.started = exit_code, listener.output, True
        report.unreached = listener.unreached.text
    return reports


# Equal reports stay in the order in which the processes ended, because a launcher fails after the process it started.
def _fullness(report: ChildReport) -> tuple[bool, bool, int, int]:
    result = report.result
    measured = result.measured if result is not None and result.measured is not None else None
    used = (measured.peak_reserved_bytes, measured.peak_allocated_bytes) if measured is not None else (0, 0)
    return result is not None and result.outcome.kind == "oom", report.is_final, *used


def _started(
    module: str, arguments: Sequence[str], words: Sequence[str], environment: dict[str, str], *inherited: int
) -> ChildProcess:
    with ExitStack() as closing:
        given, *kept = _standard_input(words, closing)
        return ChildProcess(
            module,
            arguments,
            inherited=(*inherited, *kept),
            environment=environment,
            with_flags=False,
            output=subprocess.PIPE,
            standard_input=given,
        )


def _environment(request: Request) -> dict[str, str]:
    environment = os.environ | request.environment
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    for stale in ("ULLAGE_EMULATED_CARD", "ULLAGE_EMULATED_USE", "ULLAGE_PREDICTION"):
        if stale in environment:  # of a prediction that started this one
            environment[stale] = ""  # the library of `_child/handover.c` would restore a missing variable
    hand_over(environment)
    environment.setdefault("PYTHONUNBUFFERED", "1")
    return environment


# The descriptors that the script inherits for its standard input, the input itself first. `closing` closes them here.
def _standard_input(words: Sequence[str], closing: ExitStack) -> list[int]:
    with suppress(OSError):
        kind = os.fstat(0).st_mode
        if os.isatty(0):
            return [_closed_by(closing, descriptor) for descriptor in open_empty_terminal(0)]
        if stat.S_ISREG(kind):
            file = closing.enter_context(open_regular(_OUR_INPUT))
            file.seek(os.lseek(0, 0, os.SEEK_CUR))
            return [file.fileno()]
        if (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)) and not _ASKING_FOR_INPUT.isdisjoint(words):
            again = closing.enter_context(os.fdopen(os.memfd_create("ullage-input", os.MFD_CLOEXEC), "w+b"))
            again.write(_all_of_the_pipe())
            again.seek(0)
            return [again.fileno()]
    return [_closed_by(closing, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))]


def _closed_by(closing: ExitStack, descriptor: int) -> int:
    closing.callback(os.close, descriptor)
    return descriptor


def _all_of_the_pipe() -> bytes:
    with _input_lock:
        if not _input_piped:
            with open_regular(_OUR_INPUT) as pipe:
                _input_piped.append(pipe.read())
        return _input_piped[0]
