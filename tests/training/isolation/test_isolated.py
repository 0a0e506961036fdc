"""A function in a process of its own: what travels, what comes back, and that nothing is left, however it ends.

The functions are nested, so that they travel as a notebook's would: by value.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest

import ullage
from tests.shared.fresh import answer
from tests.shared.inside import inside
from ullage.training.isolation.driver_check import DriverCheck

MARK = "ULLAGE_TESTS_MARK"


def marked(token: str) -> list[psutil.Process]:
    """The living processes, this one aside, that have a token in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            is_alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if is_alive and process.environ().get(MARK) == token:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def gone(token: str, *, seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while marked(token) and time.monotonic() < until:
        time.sleep(0.02)
    return not marked(token)


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark for the processes of a test: none of them, no shared memory, no file and no descriptor may be left."""
    token = tmp_path.name
    monkeypatch.setenv(MARK, token)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    shared, descriptors = set(os.listdir("/dev/shm")), set(os.listdir("/proc/self/fd"))
    yield token
    assert marked(token) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    new = set(os.listdir("/dev/shm")) - shared
    assert [name for name in new if name.startswith(("ullage", "psm_", "torch_"))] == []
    assert set(os.listdir("/proc/self/fd")) == descriptors


def daemon() -> None:
    """Leave a process behind, in a session of its own."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)


# ---- what travels


def test_the_function_runs_in_another_process_with_its_arguments(quiet: str) -> None:
    """Closures travel; folder, search path, arguments and environment are this process's; afterwards it is gone."""
    offset = 5

    def add(a: int, *, b: int) -> tuple[Any, ...]:
        daemon()
        return a + b + offset, os.getpid(), os.getcwd(), sys.path, sys.argv, os.environ[MARK]

    total, pid, *surroundings = ullage.isolated(add, 1, b=2)
    assert total == 8
    assert pid != os.getpid()
    assert not psutil.pid_exists(pid)
    assert surroundings == [os.getcwd(), sys.path, sys.argv, quiet]


def test_arrays_come_back_as_ordinary_memory(quiet: str) -> None:
    """Large and small, in either order of memory, one twice; each can be written to and goes without the others."""

    def make(given: np.ndarray[Any, Any]) -> dict[str, Any]:
        large = np.arange(1 << 18, dtype=np.float64)
        return {"large": large, "again": large, "small": np.ones(3), "turned": given.T * 2, "none": np.empty(0)}

    given = np.arange(6e4).reshape(200, 300)
    result = ullage.isolated(make, given)
    assert result["large"] is result["again"]
    assert (result["large"] == np.arange(1 << 18)).all()
    assert (result["turned"] == given.T * 2).all()
    assert result["none"].shape == (0,)
    result["large"][0] = result["small"][0] = 7


def test_classes_of_a_script_are_the_same_ones_on_both_sides() -> None:
    """Also for plain pickle in there, which looks for them by name in `__main__`; a script needs no guard."""
    told = answer(
        """
        import pickle
        import ullage
        class Config:
            def __init__(self, width): self.width = width
        class Refused(Exception):
            def __init__(self, code, why):
                super().__init__(f"{code}: {why}")
                self.code = code
        def main(config):
            again = pickle.loads(pickle.dumps(config))
            assert type(again) is Config
            return Config(again.width + 1)
        def refuse(): raise Refused(3, "no")
        result = ullage.isolated(main, Config(1))
        try:
            ullage.isolated(refuse)
        except Refused as error:
            tell([type(result) is Config, result.width, error.code, str(error)])
        """
    )
    assert told == [True, 2, 3, "3: no"]


def test_files_that_the_function_opens_in_the_place_of_ours_stay_its_own(quiet: str, tmp_path: Path) -> None:
    """It may close every descriptor: what takes their numbers then gets nothing of our answer."""
    names = [str(tmp_path / f"file{number}") for number in range(30)]

    def work() -> int:
        os.closerange(3, 4096)
        files = [open(name, "w+") for name in names]  # noqa: SIM115  # open until the end
        for file in files:
            file.write("its own")
            file.flush()
        globals()["kept"] = files
        return 7

    with pytest.raises(ullage.IsolationError, match="it closed the file descriptor through which its result is sent"):
        ullage.isolated(work)
    assert {Path(name).read_text() for name in names} == {"its own"}


SPAWNS = """
import multiprocessing, ullage
class Config:
    width = 3
def width_of(config): return config.width
def work():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(width_of, (Config(),))
"""

UNGUARDED = """
import multiprocessing, ullage
def work():
    worker = multiprocessing.get_context("spawn").Process(target=print)
    worker.start()
    worker.join()
ullage.isolated(work)
"""


def test_workers_in_there_find_what_the_script_defines(quiet: str, tmp_path: Path) -> None:
    """As they would in the script's own process, and a script without a guard is refused, not started without end."""
    script = tmp_path / "script.py"
    script.write_text(SPAWNS + "if __name__ == '__main__': print(ullage.isolated(work))")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=900)
    assert (done.stdout, done.stderr) == ("3\n", "")
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=900)
    assert "UsageError: ullage.isolated was called while a worker process imports" in done.stderr


# ---- how it ends


def test_an_error_keeps_type_and_text_and_brings_its_traceback(quiet: str) -> None:
    def fail() -> None:
        int("not a number")

    with pytest.raises(ValueError, match=r"^invalid literal for int\(\) with base 10: 'not a number'") as caught:
        ullage.isolated(fail)
    (note,) = caught.value.__notes__
    assert "in fail\n    int(" in note
    assert "isolated_child.py" not in note


def test_an_error_that_cannot_travel_comes_as_its_text(quiet: str) -> None:
    def fail() -> None:
        error = ValueError("broken")
        error.generator = (i for i in ())  # type: ignore[attr-defined]
        raise error

    with pytest.raises(
        ullage.IsolationError, match=r"fail ran .* error that cannot be pickled .*generator(?s:.)*: broken"
    ):
        ullage.isolated(fail)


def exit_at_once() -> None:
    os._exit(3)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def be_killed() -> None:
    daemon()
    os.kill(os.getpid(), signal.SIGKILL)


def return_a_generator() -> Any:
    return (i for i in ())


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (exit_at_once, r"exit_at_once did not return: its process ended with exit code 3"),
        (crash, r"crash did not return: its process was ended by SIGSEGV; its stack trace is on standard error"),
        (
            be_killed,
            r"be_killed did not return: .* SIGKILL; unless somebody sent this signal, the host ran out of memory",
        ),
        (return_a_generator, r"return_a_generator ran .* its result \(of type generator\) cannot be sent back"),
    ],
)
def test_an_end_without_a_result_is_one_clear_error(fn: Callable[[], Any], text: str, quiet: str) -> None:
    """And a process that it left behind is gone with it."""
    with pytest.raises(ullage.IsolationError, match=text):
        ullage.isolated(fn)


def test_a_segmentation_fault_shows_where(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ullage.IsolationError):
        ullage.isolated(crash)
    assert "in crash" in capfd.readouterr().err


def test_what_is_too_slow_is_ended(quiet: str) -> None:
    """With all that it started; a thread that outlives the function counts, and the message says so."""

    def sleep() -> None:
        daemon()
        time.sleep(60)

    def leave_a_thread() -> None:
        threading.Thread(target=time.sleep, args=(60,)).start()

    with pytest.raises(ullage.IsolationError, match=r"sleep was ended after timeout_seconds=0.5: it or what it called"):
        ullage.isolated(sleep, timeout_seconds=0.5)
    for seconds in (2.5, 10, 40):  # on a busy machine the process may not have come to the function before
        with pytest.raises(ullage.IsolationError) as ended:
            ullage.isolated(leave_a_thread, timeout_seconds=seconds)
        if "it had returned, but threads or exit handlers" in str(ended.value):
            break
    assert "it had returned, but threads or exit handlers" in str(ended.value)


def test_a_call_that_cannot_be_is_refused_by_name(quiet: str) -> None:
    def use(*parts: Any, **named: Any) -> None: ...

    with pytest.raises(
        ullage.UsageError, match=r"argument 1 of \S*use \(of type generator\) cannot be sent to another"
    ):
        ullage.isolated(use, 1, (i for i in ()))
    with pytest.raises(
        ullage.UsageError, match=r"argument 'guard' of \S*use \(of type lock\) cannot be sent to another"
    ):
        ullage.isolated(use, guard=threading.Lock())
    with pytest.raises(ullage.UsageError, match="was called with a int; expected a function"):
        ullage.isolated(3)  # type: ignore[arg-type]
    with pytest.raises(ullage.UsageError, match="timeout_seconds=0 is not allowed"):
        ullage.isolated(use, timeout_seconds=0)
    with pytest.raises(ullage.UsageError, match="timeout_seconds='3' is not allowed; expected more than 0"):
        ullage.isolated(use, timeout_seconds="3")  # type: ignore[arg-type]


# ---- while it runs


PROGRESS = """
import os, subprocess, sys, time, ullage
def work():
    code = "import time; time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=-3, stderr=-3)
    try:
        print("began")
        time.sleep(60)
    finally:
        print("cleaned up")
print("before")
ullage.isolated(work)
"""


@contextmanager
def started(token: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script that prints from inside, in a group of its own as a terminal would, until it has printed."""
    environment = os.environ | {MARK: token}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRESS],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            # Through a pipe, and in the order in which it was printed.
            assert [process.stdout.readline(), process.stdout.readline()] == ["before\n", "began\n"]
            yield process
        finally:
            process.kill()
            for left in marked(token):
                left.kill()


def test_ctrl_c_ends_it_all(quiet: str) -> None:
    """Output was seen while it ran; the function's own `finally` runs, and KeyboardInterrupt comes out here."""
    with started(quiet) as process:
        os.killpg(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=900)
        assert gone(quiet, seconds=0)
    assert out == "cleaned up\n"
    assert error.endswith("KeyboardInterrupt\n")
    assert error.count("Traceback") == 1


def test_it_does_not_outlive_this_process(quiet: str) -> None:
    """Not even one that was killed and could do nothing; what left the group is the one thing that can stay."""
    with started(quiet) as process:
        process.kill()
        process.communicate(timeout=900)  # its output is at its end: the function's process has it no more
        assert {left.cmdline()[-1] for left in marked(quiet)} <= {"import time; time.sleep(60)"}
    assert gone(quiet)


def test_one_in_another_leaves_nothing_either(quiet: str) -> None:
    def outer() -> int:
        def inner() -> int:
            daemon()
            return os.getpid()

        return ullage.isolated(inner)

    assert not psutil.pid_exists(ullage.isolated(outer))


def test_a_process_that_the_function_forks_does_not_answer(quiet: str) -> None:
    def fork() -> str:
        child = os.fork()
        if child == 0:
            return "the fork's"
        os.waitpid(child, 0)
        return "the function's"

    assert ullage.isolated(fork) == "the function's"


# ---- tensors and memory


@inside
def test_the_card_is_as_before() -> None:
    """The process has a card like this one's; what it used shows in between by the driver's count, and is gone.

    No CUDA is started here, and what was on the card arrives on the CPU.
    """
    import torch

    context_bytes = json.loads(os.environ["ULLAGE_EMULATED_CARD"])["context_bytes"]

    def work(x: torch.Tensor) -> Any:
        on_card = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError as error:
            return torch.cuda.get_device_name(), x * 2, on_card, error
        raise AssertionError

    proofs: list[DriverCheck] = []
    x = torch.arange(1 << 16)
    name, doubled, on_card, error = ullage.isolated(work, x, report=proofs.append)
    assert name == "Tesla T4"
    assert torch.equal(doubled, x * 2)
    assert (on_card.device.type, on_card.nbytes) == ("cpu", 64 << 20)
    assert isinstance(error, torch.OutOfMemoryError)
    assert not torch.cuda.is_initialized()
    (proof,) = proofs
    (card,) = proof.cards
    assert proof.came_back
    assert not psutil.pid_exists(proof.process)
    assert card.before_bytes == card.after_bytes == context_bytes
    assert card.within_bytes == 2 * context_bytes + (64 << 20)
    assert str(proof) == (
        "GPU 0 (Tesla T4): 141.0 MiB used before, 346.0 MiB when the function ended, 141.0 MiB after; "
        "the emulated GPU's count"
    )


@inside
def test_what_stays_in_use_is_no_proof() -> None:
    """A count that is higher afterwards says so (here because this process takes memory of its own meanwhile)."""
    import torch

    held = []
    proofs: list[DriverCheck] = []

    class TakesMemoryOnItsWay:
        def __reduce__(self) -> Any:
            held.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
            return str, ("four",)

    with mock.patch(
        "ullage.training.isolation.driver_check._RETURN_SECONDS", 0.0
    ):  # nothing comes back, however long it waits
        assert ullage.isolated(len, TakesMemoryOnItsWay(), report=proofs.append) == 4
    (card,) = proofs[0].cards
    assert card.after_bytes == card.before_bytes + (32 << 20)
    assert not proofs[0].came_back


def test_a_proof_says_where_nothing_was_counted(quiet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the driver's library has no count, and none is made up."""
    proofs: list[DriverCheck] = []
    monkeypatch.setattr("ctypes.CDLL", _no_library)
    assert ullage.isolated(len, "four", report=proofs.append) == 4
    assert (proofs[0].cards, proofs[0].came_back) == ((), False)
    assert str(proofs[0]).startswith("not measured: libnvidia-ml.so.1 cannot be loaded")


def _no_library(name: str) -> None:
    raise OSError(name)
