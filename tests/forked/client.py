"""Run a Python of a test as a fork of a process that has torch in memory already: seconds less for each of them.

To import torch takes longer than a prediction of most scripts of the tests, and two thousand of them would import it.
`run` stands for `subprocess.run(..., capture_output=True, text=True)`; where a fork would not be the same, or with
ULLAGE_SLOW, it starts a Python as anybody does. What tests look at that belongs to a process of its own (what it leaves
behind, the environment that others read, the host's memory that it has resident) is run with `is_forked=False`.
"""

import atexit
import json
import os
import pickle
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, TypeVar

ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDERS: Final = (str(Path(__file__).parent.parent / "compiler_later"), os.environ.get("PYTHONPATH", ""))
COMPILER_LATER: Final = {"PYTHONPATH": os.pathsep.join(filter(None, _FOLDERS))}
"""Variables with which a process imports torch's compiler when it is used (tests/compiler_later)."""
USUAL: Final = {} if "ULLAGE_SLOW" in os.environ else COMPILER_LATER
"""Variables of most processes of the tests."""
_AT_START: Final = {**os.environ, **COMPILER_LATER}
"""The variables that the server is started with, whatever a test sets later."""
Result = TypeVar("Result")
_READ_ONCE: Final = ("PYTHON", "OMP_", "MKL_", "LD_", "TORCH", "KMP_", "MALLOC_")
"""The beginnings of variables that Python, torch or the C library read before a fork could be given others."""
_READ_LATER: Final = ("TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME", "PYTHONUNBUFFERED", "PYTHONPATH")
"""Those among them that are read when they are used; of the last two, a fork makes its streams and its path."""


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 900,
    stdin: IO[Any] | int = subprocess.DEVNULL,
    is_forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command of this Python to its end, and return what it has printed; it has no input but what is given.

    Args:
        command: the words.
        cwd: its folder; None: where the test is.
        env: its variables; None: the test's own, with the usual ones.
        timeout: after how many seconds it is given up.
        stdin: what it reads: a file, or a descriptor.
        is_forked: whether it may be a fork.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds.
    """
    environment = dict(os.environ | _usual() if env is None else env)
    if not (is_forked and _can_be_forked(command, environment)):
        return subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            timeout=timeout,
            stdin=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
    words = [str(word) for word in command]
    request = {"words": words[1:], "folder": str(cwd or Path.cwd()), "environment": environment}
    with open(os.devnull, "rb") as nothing:
        given = nothing.fileno() if stdin == subprocess.DEVNULL else stdin if isinstance(stdin, int) else stdin.fileno()
        return _ask(words, request, given, timeout)


def call(function: Callable[..., Result], *arguments: Any, **keywords: Any) -> Result:
    """Call a function that predicts in a process that may be forked, and return what it returns, or raise its error.

    Function, arguments and result are pickled.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "call"
        file.write_bytes(pickle.dumps((function, arguments, keywords)))
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.forked.client import answer; answer()"
        done = run([sys.executable, "-c", code, str(file)])
        assert done.returncode == 0, done.stderr
        result, error = pickle.loads(file.read_bytes())
    sys.stderr.write(done.stderr)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def _usual() -> dict[str, str]:
    """Return the usual variables, with the folders that a test has put on PYTHONPATH since."""
    now = os.environ.get("PYTHONPATH", "")
    if not USUAL or now == _FOLDERS[1]:
        return USUAL
    return {"PYTHONPATH": os.pathsep.join([_FOLDERS[0], now])}


def answer() -> None:
    """Make the call of the file that the command line names, and write there what came of it."""
    file = Path(sys.argv[1])
    function, arguments, keywords = pickle.loads(file.read_bytes())
    result, error = None, None
    try:
        result = function(*arguments, **keywords)
    except Exception as raised:
        error = raised
    file.write_bytes(pickle.dumps((result, error)))


def _can_be_forked(command: Sequence[str | Path], environment: Mapping[str, str]) -> bool:
    begins_plainly = str(command[1]).endswith(".py") or command[1] in ("-c", "-m")
    if "ULLAGE_SLOW" in os.environ or command[0] != sys.executable or not begins_plainly:
        return False
    if any("backend:" in environment.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        return False  # torch reads it when it is loaded
    return read_once(environment) == read_once(_AT_START) and _may_be_added(environment.get("PYTHONPATH", ""))


def folders_of(path: str) -> list[str]:
    """Return the folders of a PYTHONPATH as a Python has them when it has begun."""
    return list(dict.fromkeys(os.path.abspath(folder) for folder in path.split(os.pathsep) if folder))


def _may_be_added(path: str) -> bool:
    """Tell whether a PYTHONPATH begins like the server's, and what comes then hides nothing that is installed."""
    if path == _AT_START["PYTHONPATH"]:
        return True
    if not all(map(os.path.isabs, path.split(os.pathsep))):
        return False
    before = folders_of(_AT_START["PYTHONPATH"])
    folders = folders_of(path)
    return folders[: len(before)] == before and not any(_hides(folder) for folder in folders[len(before) :])


def _hides(folder: str) -> bool:
    """Tell whether a folder has a module that is imported already, or that Python imports when it begins."""
    with suppress(OSError):
        names = {name.partition(".")[0] for name in os.listdir(folder)}
        return not names.isdisjoint(_installed())
    return False


@cache
def _installed() -> frozenset[str]:
    folder = sysconfig.get_path("purelib")
    names = {name.partition(".")[0] for name in os.listdir(folder)}
    return frozenset((*names, *sys.stdlib_module_names, "sitecustomize", "usercustomize", "tests")) - {"__pycache__"}


def read_once(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are read once, when a process begins."""
    found = {name: value for name, value in environment.items() if name.startswith(_READ_ONCE)}
    return {name: value for name, value in found.items() if name not in _READ_LATER}


def _ask(
    command: Sequence[str], request: dict[str, Any], given: int, timeout: float
) -> subprocess.CompletedProcess[str]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect("\0" + _server())
        outputs = [os.pipe() for _ in range(2)]
        ends = [given, *(writing for _, writing in outputs)]
        socket.send_fds(connection, [json.dumps(request).encode(errors="surrogateescape")], ends)
        for _, writing in outputs:
            os.close(writing)
        process = int(connection.recv(1 << 10))
        try:
            texts = _read([reading for reading, _ in outputs], timeout)
            if texts is None:
                raise subprocess.TimeoutExpired(list(command), timeout)
            status = int(connection.recv(1 << 10))
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            raise
        finally:
            for reading, _ in outputs:
                os.close(reading)
    return subprocess.CompletedProcess(list(command), os.waitstatus_to_exitcode(status), *texts)


def _read(descriptors: Sequence[int], timeout: float) -> list[str] | None:
    """Read descriptors to their ends; None where that takes too long."""
    until = time.monotonic() + timeout
    found = {descriptor: bytearray() for descriptor in descriptors}
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                found[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
    return [text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in found.values()]


@cache
def _server() -> str:
    """Start this process's server, and return its address."""
    address = f"ullage-tests-{secrets.token_hex(8)}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("\0" + address)
    listening.listen()
    reading, writing = os.pipe()
    environment = {
        name: value for name, value in _AT_START.items() if not name.startswith(("ULLAGE_", "PYTORCH_", "CUDA_"))
    }
    with listening:
        server = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from tests.forked.server import main; main()",
                *map(str, (listening.fileno(), reading)),
            ],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=(listening.fileno(), reading),
        )
    os.close(reading)

    def end() -> None:
        os.close(writing)  # it ends where it has nobody to serve
        server.wait()

    atexit.register(end)
    return address
