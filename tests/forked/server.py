"""A Python that has torch in memory, on the emulated libraries, out of which processes of tests are forked.

Torch is imported once, and then taken out of `sys.modules` again: a process that is forked imports it when its own code
does, and finds it in memory. No card is described and CUDA is not initialised before, so that every fork begins with a
card and an allocator of its own. A fork is made by a thread: below what it runs there is no frame of ours.

In a command (`python -m ullage predict`), the script's process is a fork of the command's, in place of a Python that
`ullage.base.child_process` would start: it has the group, the descriptors and the environment that it would have there.
"""

import _thread
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn

from tests.forked.client import folders_of, read_once
from ullage.base import child_process as _child_process
from ullage.base.child_process import run_exit_handlers
from ullage.gpu.emulator import library
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.gpus import all_gpus

_CHILD: Final = "from ullage.predicting.prediction.child.run import main; main()"
_EARLY: Final = (
    "numpy.ma",
    "typer._adapters",
    "ullage.cli.app",
    "ullage.cli.show",
    "ullage.api.predict",
    "ullage.predicting.prediction.description.describe",
    "ullage.predicting.prediction.child.run",
    "ullage.predicting.prediction.observation.observer",
    "ullage.predicting.prediction.child.measure",
    "ullage.training.ownership.owners",
    "ullage.gpu.values.start",
    "ullage.training.guard.guard",
)
"""Modules that are in memory at the beginning of every fork."""
_own_folders = folders_of(os.environ.get("PYTHONPATH", ""))
_path = [folder for folder in sys.path[1:] if folder not in _own_folders]
"""Where this interpreter looks for modules, but for what it was started with and PYTHONPATH."""
_streams: Final = range(3)


class _TorchInMemory:
    """Finds torch as any other would, and loads what was imported before the fork."""

    def __init__(self) -> None:
        self._modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "torch"}
        self._spec = self._modules["torch"].__spec__
        self._loader = self._modules["torch"].__loader__

    def install(self) -> None:
        """Take torch out of what is imported."""
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where torch is, with a loader of its own; nothing of another torch that comes first in `sys.path`."""
        spec = PathFinder.find_spec(name) if name == "torch" else None
        if spec is None or spec.origin != self._spec.origin:
            return None
        spec.loader = _Loader(self)  # type: ignore[assignment]
        return spec

    def restore(self) -> None:
        """Have all of torch imported again."""
        torch = self._modules["torch"]
        torch.__spec__, torch.__loader__ = self._spec, self._loader
        sys.modules.update(self._modules)
        sys.meta_path.remove(self)  # type: ignore[arg-type]


class _Loader:
    """Gives the module that is in memory; callers may put another `exec_module` into it."""

    def __init__(self, found: _TorchInMemory) -> None:
        self._found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._found._modules["torch"]

    def exec_module(self, module: ModuleType) -> None:
        self._found.restore()


def _is_below_all(function: Any) -> Any:
    """Have a function's frames look like those of `python -c`: who looks for a user's line finds none below it."""
    function.__code__ = function.__code__.replace(co_filename="<string>", co_name="<module>")
    return function


def _fork(become: Callable[[], None]) -> int:
    """Fork in a thread of its own, where `become` runs; returns the number of the fork to this process."""
    found: list[int | BaseException] = []
    done = threading.Event()
    _thread.start_new_thread(_begin, (become, found, done))
    done.wait()
    [number] = found
    if isinstance(number, BaseException):
        raise number
    return number


@_is_below_all
def _begin(become: Callable[[], None], found: list[int | BaseException], done: threading.Event) -> None:
    try:
        number = os.fork()
    except BaseException as error:  # for whoever has asked
        found.append(error)
    else:
        if number == 0:
            _run_and_end(become)
        found.append(number)
    done.set()


@_is_below_all
def _run_and_end(become: Callable[[], None]) -> NoReturn:
    """Run what a fork is for, and end it as an interpreter ends."""
    status = 1
    try:
        become()
        status = 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            status = error.code or 0
        else:
            print(error.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    run_exit_handlers()
    os._exit(status & 0xFF)


def _be(words: Sequence[str], folder: str | None, environment: dict[str, str], streams: Sequence[int]) -> None:
    """Make a fork what a Python with these words on its command line is at its beginning."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    if folder is not None:
        os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = (_stream(number) for number in _streams)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    is_file = words[0] not in ("-c", "-m")
    sys.argv = list(words) if is_file else list(words[:1]) + list(words[2:])
    first = "" if words[0] == "-c" else os.path.dirname(os.path.realpath(words[0])) if is_file else os.getcwd()
    sys.path[:] = [first, *folders_of(environment.get("PYTHONPATH", "")), *_path]
    sys.modules["__main__"] = ModuleType("__main__")


def _stream(number: int) -> io.TextIOWrapper:
    """Return a standard stream as Python makes it."""
    if number == 0:
        return open(0, encoding="utf-8", closefd=False)
    errors = "backslashreplace" if number == 2 else "strict"
    if os.environ.get("PYTHONUNBUFFERED"):
        return io.TextIOWrapper(
            io.FileIO(number, "w", closefd=False), encoding="utf-8", errors=errors, write_through=True
        )
    return open(number, "w", encoding="utf-8", errors=errors, closefd=False, buffering=1 if number == 2 else -1)


@_is_below_all
def _run_words(words: Sequence[str]) -> None:
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] != "-c":
        with open(words[0], "rb") as file:
            code = compile(file.read(), words[0], "exec")
        vars(sys.modules["__main__"])["__file__"] = words[0]
        exec(code, vars(sys.modules["__main__"]))
    else:
        exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))


def _close_from(first: int, but: Sequence[int] = ()) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= first and int(name) not in but:
            with suppress(OSError):
                os.close(int(name))


class _ForkOfScript:
    """A script's process as a fork: what `ullage.base.child_process` asks of a `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], *, pass_fds: Sequence[int], env: dict[str, str], stdin: int) -> None:
        self._request = words, env
        self._passed = pass_fds
        self._given = stdin
        reading, self._writing = os.pipe()
        self.pid = _fork(self._become)
        self.stdout = io.FileIO(reading)
        os.close(self._writing)
        self.returncode: int | None = None

    @_is_below_all
    def _become(self) -> None:
        words, environment = self._request
        os.setsid()
        given = os.open(os.devnull, os.O_RDONLY) if self._given == subprocess.DEVNULL else self._given
        _be(words, None, environment, (given, self._writing, self._writing))
        _close_from(3, self._passed)
        for descriptor in self._passed:
            os.set_inheritable(descriptor, True)  # noqa: FBT003
        _child_process.subprocess = subprocess  # what it starts itself is started as anywhere
        _run_words(words)

    def wait(self) -> int:
        """Wait for its end, and return its exit code as `subprocess` has it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _start(command: Sequence[str], **options: Any) -> Any:
    """Stand in for `subprocess.Popen` in `ullage.base.child_process`."""
    environment = options["env"]
    is_script = len(command) > 2 and command[1] == "-c" and command[2].endswith(_CHILD)
    same_path = environment.get("PYTHONPATH") == os.environ.get("PYTHONPATH")
    if not (is_script and same_path and read_once(environment) == read_once(os.environ)):
        return subprocess.Popen(command, **options)
    return _ForkOfScript(command[1:], pass_fds=options["pass_fds"], env=environment, stdin=options["stdin"])


class _ForkOfTest:
    """A process that a test has asked for, until it has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, len(_streams))
        self._request = json.loads(message)
        self._descriptors = descriptors
        self._number = _fork(self._become)
        for descriptor in descriptors:
            os.close(descriptor)
        self.descriptor = os.pidfd_open(self._number)
        self._tell(self._number)

    @_is_below_all
    def _become(self) -> None:
        words = self._request["words"]
        _be(words, self._request["folder"], self._request["environment"], self._descriptors)
        _close_from(3)
        _run_words(words)

    def has_ended(self) -> None:
        """Tell the test how."""
        _, status = os.waitpid(self._number, 0)
        os.close(self.descriptor)
        self._tell(status)
        self._connection.close()

    def _tell(self, number: int) -> None:
        with suppress(OSError):  # the test has gone
            self._connection.send(str(number).encode())


def main() -> None:
    """Import torch, and serve until the process that started this one is gone."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    lifeline = int(sys.argv[2])
    library.load(find_torch().cuda[0])
    for name in ("torch", *_EARLY):
        importlib.import_module(name)
    _TorchInMemory().install()
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    _child_process.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": _start})
    all_gpus()
    gc.collect()
    gc.freeze()  # who looks at every object writes to the memory of each, and a fork would have to copy it all
    running: dict[int, _ForkOfTest] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        selector.register(lifeline, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == lifeline:
                    return
                if key.fd == listening.fileno():
                    fork = _ForkOfTest(listening.accept()[0])
                    running[fork.descriptor] = fork
                    selector.register(fork.descriptor, selectors.EVENT_READ)
                else:
                    selector.unregister(key.fd)
                    running.pop(key.fd).has_ended()
