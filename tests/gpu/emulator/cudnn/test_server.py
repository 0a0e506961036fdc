"""What the planner answers, and to what: any request gets a line, or the end of the line."""

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.emulator.cudnn.test_tree import QUESTION
from ullage.gpu.emulator.cudnn.planner import Planner, Setup, serve

Send = Callable[[bytes], None]


def setup_of(*, library: str = "", why_not: str = "cuDNN is not installed", cache: str = "") -> Setup:
    """What a planner without cuDNN is started with."""
    return Setup(
        library=library,
        why_not=why_not,
        version=91900,
        before=(),
        symbols=(),
        without_compiler="",
        capability=86,
        device_json="{}",
        cache=cache,
    )


@pytest.fixture
def line() -> Iterator[socket.socket]:
    """A planner's line, as its client has it; the planner has to end with it."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(Planner(setup_of()), theirs, os.getpid()), daemon=True)
    thread.start()
    with ours, theirs:
        ours.settimeout(900)
        yield ours
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(900)
        assert not thread.is_alive()


def ask(line: socket.socket, request: bytes) -> str:
    """Send a request, and read its reply."""
    line.sendall(struct.pack("<I", len(request)) + request)
    (size,) = struct.unpack("<I", line.recv(4, socket.MSG_WAITALL))
    return line.recv(size, socket.MSG_WAITALL).decode()


def test_bad_requests_are_answered(line: socket.socket) -> None:
    """Nothing, another encoding and unknown words get a reason, and the next request is answered all the same."""
    for request in (
        b"",
        b"\n",
        b"\xff\xfe\n\xff",
        b"dance\n" + QUESTION.encode(),
        b"plan x\n17\n",
        b"heuristics\n17 1:1\n",
    ):
        assert ask(line, request).startswith("unknown ")
    assert ask(line, b"heuristics\n" + QUESTION.encode()) == "unknown cuDNN is not installed\n"


def test_a_request_may_come_in_pieces(line: socket.socket) -> None:
    """A request is its length and its bytes, however they arrive."""
    request = b"heuristics\n" + QUESTION.encode()
    for byte in struct.pack("<I", len(request)) + request[:40]:
        line.sendall(bytes([byte]))
    line.sendall(request[40:])
    (size,) = struct.unpack("<I", line.recv(4, socket.MSG_WAITALL))
    assert line.recv(size, socket.MSG_WAITALL).startswith(b"unknown cuDNN is not installed")


@pytest.mark.parametrize("sent", [struct.pack("<I", 2**32 - 1), struct.pack("<I", (8 << 20) + 1) + b"x", b"ab"])
def test_what_is_no_request_ends_the_planner(sent: bytes) -> None:
    """A length beyond what any question has is not waited for, and neither is the rest of half a request."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(Planner(setup_of()), theirs, os.getpid()), daemon=True)
    thread.start()
    ours.sendall(sent)
    if len(sent) < 4:
        ours.close()
    thread.join(900)
    assert not thread.is_alive()
    ours.close()
    theirs.close()


def test_the_planner_notices_that_its_client_is_gone() -> None:
    """A client that nobody has reaped is gone too, and a line that somebody else holds open does not count."""
    client = subprocess.Popen(["true"])
    os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(Planner(setup_of()), theirs, client.pid), daemon=True)
    with ours, theirs:
        thread.start()
        thread.join(900)
        assert not thread.is_alive()
    client.wait()


@given(
    st.one_of(
        st.text(),
        st.tuples(st.sampled_from(["heuristics\n", "plan 0\n", "plan -1\n", "config\n", "estimate\n"]), st.text()).map(
            "".join
        ),
    )
)
def test_any_request_is_answered_in_a_line(request: str) -> None:
    """Without cuDNN every answer is one line with a reason."""
    answer = Planner(setup_of()).answer(request)
    assert answer.startswith("unknown ")
    assert answer.endswith("\n")
    assert answer.count("\n") == 1


def test_a_library_that_cannot_be_loaded_is_the_reason(tmp_path: Path) -> None:
    """A file that is no library, or not cuDNN, is told in the loader's own words; nothing is kept."""
    broken = tmp_path / "libcudnn.so.9"
    broken.write_text("not a library")
    for path in (str(broken), "libc.so.6"):
        planner = Planner(setup_of(library=path, why_not="", cache=str(tmp_path / "answers")))
        for _ in range(2):
            answer = planner.answer(f"heuristics\n{QUESTION}")
            assert answer.startswith("unknown cuDNN cannot be used: ")
    assert not (tmp_path / "answers").exists()


def test_what_is_started_is_what_was_said() -> None:
    """A setup comes through the command line whole."""
    setup = setup_of(library="/a b/ü", why_not="")
    assert Setup.of_json(setup.to_json()) == setup
