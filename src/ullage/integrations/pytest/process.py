"""The processes that run marked tests. There is one for each emulated GPU, and it forks for every test.

A GPU must be emulated before torch is imported, and pytest's own process may have imported torch already. So a new
process collects the tests again. Each test runs in a fork, so that memory that it leaves on the GPU does not affect the
next test.
"""

import marshal
import os
import struct
import subprocess
import sys
import warnings
from contextlib import nullcontext, suppress
from typing import Any, BinaryIO, Final

import pytest

from ullage.base.child_process import ChildProcess, new_pipe
from ullage.base.errors import UllageError, UsageError, quoted
from ullage.gpu.emulator.emulate import CARD_VARIABLE
from ullage.gpu.gpus import Gpu, find_gpu

_ENDING_SECONDS: Final = 10.0
_HEADER: Final = struct.Struct("<Q")
_NOT_THERE: Final[dict[str, Any]] = {
    # Options that select and order tests, or write files, apply only to this process.
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "xmlpath": None,
    "maxfail": 0,
    "collectonly": False,
    "usepdb": False,
    "trace": False,
    "dist": "no",
    "numprocesses": None,
    "maxprocesses": None,
    "tx": [],
    "looponfail": False,
    "cacheshow": None,
    "gpu_memory_gpu": None,
    "plugins": None,
    "basetemp": None,
    "file_or_dir": [],
    "cov_source": None,
    "no_cov": True,
}


def send(stream: BinaryIO, message: Any) -> None:
    """Send a message to the other process."""
    data = marshal.dumps(message)
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Return the next message from the other process.

    Raises:
        EOFError: the other process has closed the connection.
    """
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    return marshal.loads(stream.read(_HEADER.unpack(header)[0]))


class Processes:
    """The processes with emulated GPUs that this pytest session has started.

    There is one process for each combination of GPU and `values` (see `ullage.emulate`).
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._by_card: dict[tuple[Gpu, str], _Process] = {}
        self._started = 0

    def run(self, item: pytest.Item, gpu: str, values: str) -> list[pytest.TestReport]:
        """Run a test on an emulated GPU and return its reports.

        Raises:
            UllageError: the test could not be completed.
        """
        try:
            card = (find_gpu(gpu), values)
        except UsageError as error:
            raise UsageError(f"gpu={quoted(gpu)}: {error}") from None
        process = self._by_card.get(card)
        if process is None:
            self._started += 1
            process = self._by_card[card] = _Process(self._config, gpu, values, self._started)
        refusal, is_reusable, is_busy = None, False, True
        try:
            reports, refusal, is_reusable = process.run(item)
            is_busy = False
        finally:
            if not is_reusable:
                self._by_card.pop(card).stop(is_busy=is_busy)
        if refusal is not None:
            raise UsageError(refusal)
        return reports

    def stop(self) -> None:
        """End all processes and their descendants."""
        while self._by_card:
            self._by_card.popitem()[1].stop()


class _Process:
    def __init__(self, config: pytest.Config, gpu: str, values: str, number: int) -> None:
        self._config = config
        self._gpu = gpu
        request_end, request = new_pipe()
        answer, answer_end = new_pipe()
        inherited = (request_end, answer_end)
        environment = {name: value for name, value in os.environ.items() if name != CARD_VARIABLE}
        # A fork does not copy the threads of numeric libraries, so these get one thread.
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        manager: Any = config.pluginmanager.getplugin("capturemanager")
        with (
            manager.global_and_fixture_disabled() if manager else nullcontext()
        ):  # its standard error is the terminal, which shows why the process ends
            self._process = ChildProcess(
                "ullage.integrations.pytest.child",
                [str(number) for number in inherited],
                inherited=inherited,
                environment=environment,
                with_flags=True,
            )
        for end in inherited:
            os.close(end)
        self._requests = os.fdopen(request, "wb")
        self._answers = os.fdopen(answer, "rb")
        session = _session_of(config, number)
        send(self._requests, {"gpu": gpu, "values": values, "path": sys.path, "argv": sys.argv, **session})

    def run(self, item: pytest.Item) -> tuple[list[pytest.TestReport], str | None, bool]:
        reports: list[pytest.TestReport] = []
        refusal = None
        try:
            send(self._requests, {"nodeid": item.nodeid, "path": str(item.path)})
            while True:
                kind, value = receive(self._answers)
                if kind == "report":
                    hook = self._config.hook
                    reports.append(hook.pytest_report_from_serializable(config=self._config, data=value))
                elif kind == "warning":
                    _warn(self._config, **value)
                elif kind == "refused":
                    refusal = value
                elif kind == "done":
                    return reports, refusal, value
        except (EOFError, BrokenPipeError):
            if refusal is not None:
                return reports, refusal, False
            raise UllageError(
                f"the process with an emulated {self._gpu} ended while it ran {item.nodeid} "
                f"({_ending(self._process.popen.wait())}); its output is on standard error"
            ) from None

    def stop(self, *, is_busy: bool = False) -> None:
        for stream in (self._requests, self._answers):
            with suppress(OSError):
                stream.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.popen.wait(0 if is_busy else _ENDING_SECONDS)
        self._process.end()


def _session_of(config: pytest.Config, number: int) -> dict[str, Any]:
    options = {name: value for name, value in vars(config.option).items() if _is_plain(value) and name != "file_or_dir"}
    changes = {name: value for name, value in _NOT_THERE.items() if name in options}
    plugins = [name for name in config.option.plugins if name != "terminal"]
    folder = config._tmp_path_factory.getbasetemp() / f"gpu-memory-{number}"  # type: ignore[attr-defined]  # private
    return {
        "options": options | changes | {"plugins": [*plugins, "no:terminal", "no:pytest_cov"], "basetemp": str(folder)},
        "args": [f"--rootdir={config.rootpath}", *(["-c", str(config.inipath)] if config.inipath else [])],
        "folder": str(config.invocation_params.dir),
    }


def _is_plain(value: Any) -> bool:
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True


def _warn(config: pytest.Config, *, category: tuple[str, str], text: str, file: str, line: int, **rest: Any) -> None:
    kind = getattr(sys.modules.get(category[0]), category[1], UserWarning)
    message = warnings.WarningMessage(text, kind, file, line)
    config.hook.pytest_warning_recorded.call_historic(kwargs={"warning_message": message, **rest})


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
