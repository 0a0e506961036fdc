"""The process with an emulated GPU that runs marked tests.

It is a pytest session with the options of the session that started it. It collects each test again, runs it in a fork,
and sends the reports back. Its arguments are three file descriptors: REQUESTS ANSWERS LIFELINE.
"""

import gc
import importlib
import mmap
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest
from _pytest.main import wrap_session

from ullage.base.child_process import file_behind, tie_to_parent
from ullage.base.errors import UllageError
from ullage.gpu.emulator import emulate
from ullage.integrations.pytest.plugin import INSIDE
from ullage.integrations.pytest.process import receive, send

# pytest plugins that write files when a session ends
_WRITERS: Final = ("lfplugin", "nfplugin", "stepwiseplugin")
_CLOSED: Final = 2
_COMPILER: Final = "torch._dynamo"


def main() -> None:
    """Run the tests that the parent process requests, until it closes the connection.

    The process then exits without Python's cleanup of modules.
    """
    tie_to_parent()
    requests, answers = (int(number) for number in sys.argv[2:4])
    for number in (requests, answers):
        os.set_inheritable(number, False)  # noqa: FBT003
    source, target = os.fdopen(requests, "rb"), os.fdopen(answers, "wb", buffering=0)
    try:
        _serve(source, target)
    except (EOFError, BrokenPipeError):  # the session has ended
        pass
    except UllageError as error:
        send(target, ("refused", str(error)))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _serve(source: BinaryIO, target: BinaryIO) -> None:
    start = receive(source)
    sys.path[:], sys.argv[:] = start["path"], start["argv"]
    os.chdir(start["folder"])
    emulate(start["gpu"], values=start["values"])
    import torch  # noqa: F401  # once, for all tests

    import ullage.integrations.pytest.measurement  # noqa: F401

    config = pytest.Config.fromdictargs(start["options"], start["args"])
    config.stash[INSIDE] = True
    wrap_session(config, lambda config, session: _TestServer(config, session, source, target).run())


class _TestServer:
    def __init__(self, config: pytest.Config, session: pytest.Session, source: BinaryIO, target: BinaryIO) -> None:
        self._session = session
        self._config = config
        self._source = source
        self._target = target
        self._file = file_behind(target.fileno())
        self._items: dict[str, dict[str, pytest.Item]] = {}
        self._errors: dict[str, str] = {}
        self._threads = _threads()
        self._now = ""
        # A byte that the forked processes share. Nonzero: one of them has imported PyTorch's compiler, as every
        # optimizer does.
        self._compiler_wanted = mmap.mmap(-1, 1)
        # A byte that the forked processes share. 1: the last one ended normally and not by `os._exit`. `_CLOSED`: the
        # test closed the file descriptor of its result.
        self._has_told = mmap.mmap(-1, 1)
        for name in _WRITERS:
            if config.pluginmanager.has_plugin(name):
                config.pluginmanager.unregister(name=name)
        config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # otherwise each fork would create it again
        config.pluginmanager.register(self)

    def run(self) -> int:
        is_reusable = True
        while is_reusable:
            try:
                request = receive(self._source)
            except EOFError:
                break
            item = self._item_of(**request)
            if item is not None:
                is_reusable = self._can_be_copied()
                if is_reusable:
                    self._run_copy(item)
                else:
                    self._run_here(item)
            self._send("done", is_reusable)
        return 0

    def _item_of(self, nodeid: str, path: str) -> pytest.Item | None:
        if path not in self._items:
            self._now = path
            found = self._session.perform_collect([path])
            self._items[path] = {item.nodeid: item for item in found}
        item = self._items[path].get(nodeid)
        if item is None:
            why = self._errors.get(
                path, "pytest collected it before; expected the same tests to be collected in every process"
            )
            self._send("refused", f"{nodeid} was not found in the process with the emulated GPU: {why}")
        return item

    # A forked process has no other threads and cannot use CUDA that its parent initialized.
    def _can_be_copied(self) -> bool:
        import torch

        return not torch.cuda.is_initialized() and _threads() <= self._threads

    def _run_copy(self, item: pytest.Item) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if self._compiler_wanted[0]:  # done once here, and not in every forked process
            importlib.import_module(_COMPILER)
        gc.collect()
        self._has_told[0] = False
        child = os.fork()
        if child == 0:
            try:
                gc.freeze()
                self._run_here(item)
                self._compiler_wanted[0] = _COMPILER in sys.modules
                self._has_told[0] = True
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code or not self._has_told[0]:
            ending = f"exit code {code}" if code >= 0 else f"signal {-code}"
            self._send("refused", f"the process of {item.nodeid} ended with {ending}")
        elif self._has_told[0] == _CLOSED:
            self._send("refused", f"{item.nodeid} closed the file descriptors that its result is sent through")

    def _run_here(self, item: pytest.Item) -> None:
        try:
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        except (
            BaseException
        ) as error:  # an error such as pytest.exit, which is meant for the session that sent the request
            self._send("refused", f"{item.nodeid} ended with {type(error).__name__}: {error}")

    def _send(self, kind: str, value: Any) -> None:
        if (
            file_behind(self._target.fileno()) != self._file
        ):  # the test closed the descriptor, and may have reused its number for another file
            self._has_told[0] = _CLOSED
            os._exit(0)
        send(self._target, (kind, value))

    # ---- hooks of pytest

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._errors[self._now] = str(report.longreprtext if report.failed else report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        try:
            self._send("report", data)
        except ValueError:  # data that a plugin has added
            data["user_properties"] = [(str(name), str(value)) for name, value in report.user_properties]
            self._send("report", data)

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        category = warning_message.category
        value = {
            "category": (category.__module__, category.__qualname__),
            "text": str(warning_message.message),
            "file": warning_message.filename,
            "line": warning_message.lineno,
            "when": when,
            "nodeid": nodeid,
            "location": location,
        }
        if when == "runtest":  # the requesting session itself reports warnings of the collection
            self._send("warning", value)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
