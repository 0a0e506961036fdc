"""The process that plans: it is nobody's business but its client's."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil

from tests.gpu.emulator.cudnn.planners import is_emptied, planner_of, planners_of
from tests.shared.fresh import answer
from tests.shared.inside import inside


def convolve(width: int = 8) -> None:
    """Ask a question that no other width asks."""
    import torch

    torch.nn.functional.conv2d(torch.empty(1, 3, width, width, device="cuda"), torch.empty(4, 3, 3, 3, device="cuda"))


@inside
def test_nothing_starts_before_the_first_convolution() -> None:
    """Where no convolution runs, there is no process; the first one starts it, the second takes the same."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).cuda()
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    assert planners_of(os.getpid()) == []
    convolve()
    planner = planner_of()
    convolve(9)
    assert planner_of() == planner


@inside
def test_the_planner_is_no_child() -> None:
    """The user's children are the user's: none is added, and `os.wait()` meets only those that the user has started."""
    child = os.fork()
    if child == 0:
        time.sleep(0.5)
        os._exit(7)
    convolve()
    assert [process.pid for process in psutil.Process().children(recursive=True)] == [child]
    assert psutil.Process(planner_of()).ppid() != os.getpid()
    assert os.wait() == (child, 7 << 8)
    try:
        os.wait()
    except ChildProcessError:
        return
    raise AssertionError("there was a second child")


def _client(*, forks: bool = False) -> tuple[int, int]:
    """Start a process that has convolved and waits; return it and its fork, or 0."""
    ours, theirs = socket.socketpair()
    client = os.fork()
    if client == 0:
        try:
            convolve()
            fork = os.fork() if forks else 0
            if fork or not forks:
                theirs.sendall(fork.to_bytes(4, "little"))
            time.sleep(20)
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        return client, int.from_bytes(ours.recv(4), "little")


@inside
def test_the_planner_ends_with_its_client() -> None:
    """A client that is killed leaves no planner behind, although nobody could tell it to end."""
    client, _ = _client()
    planner = planner_of(client)
    os.kill(client, signal.SIGKILL)
    assert is_emptied(planner)
    os.waitpid(client, 0)


@inside
def test_the_planner_does_not_wait_for_forks_of_its_client() -> None:
    """What a client has forked holds its socket too; the planner ends with the client all the same, reaped or not."""
    client, fork = _client(forks=True)
    planner = planner_of(client)
    os.kill(client, signal.SIGKILL)
    try:
        assert is_emptied(planner)
        assert psutil.pid_exists(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        os.waitpid(client, 0)


@inside
def test_every_process_has_a_planner_of_its_own() -> None:
    """Two processes never share a socket, on which each would read the other's answers."""
    clients = [_client()[0] for _ in range(2)]
    assert planner_of(clients[0]) != planner_of(clients[1])
    for client in clients:
        os.kill(client, signal.SIGKILL)
        os.waitpid(client, 0)


@inside
def test_a_planner_that_dies_over_a_question_is_told_and_replaced() -> None:
    """The convolution runs all the same, the reason is told, and the next question finds a new process."""
    from ullage.gpu.emulator import library

    convolve()
    planner = planner_of()
    os.kill(planner, signal.SIGSTOP)  # the question is sent and waits
    killer = threading.Timer(0.3, os.kill, (planner, signal.SIGKILL))
    killer.start()
    convolve(9)
    killer.join()
    assert [reason for reason in library.cudnn_plans().reasons if "ended, or took more than two minutes" in reason]
    convolve(10)
    assert planner_of() != planner


@inside
def test_a_planner_that_keeps_dying_is_left_in_peace() -> None:
    """Three times over questions to cuDNN, and three times over estimates; then none is started, and that is told."""
    from ullage.gpu.emulator import library

    for width in range(8, 20):
        convolve(width)
        for planner in planners_of(os.getpid()):
            os.kill(planner, signal.SIGKILL)
            assert is_emptied(planner)
    convolve(20)
    convolve(21)
    assert planners_of(os.getpid()) == []
    assert [reason for reason in library.cudnn_plans().reasons if "ended three times" in reason]


@inside
def test_ctrl_c_is_not_for_the_planner() -> None:
    """Who presses Ctrl-C interrupts a script, and the planner goes on answering it."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, lambda *_: None)
    convolve()
    planner = planner_of()
    assert os.getsid(planner) == planner
    os.killpg(0, signal.SIGINT)
    time.sleep(0.2)
    convolve(9)
    assert planner_of() == planner


@inside
def test_no_file_is_handed_on() -> None:
    """The socket reaches no process that the user starts, and no file of the user's reaches the planner."""
    ends = os.pipe()
    for end in ends:
        os.set_inheritable(end, True)  # noqa: FBT003
    list_files = "import os; print(sorted(int(name) for name in os.listdir('/proc/self/fd')))"
    listed = [
        subprocess.run([sys.executable, "-c", list_files], close_fds=False, capture_output=True, text=True).stdout
    ]
    convolve()
    listed.append(
        subprocess.run([sys.executable, "-c", list_files], close_fds=False, capture_output=True, text=True).stdout
    )
    assert listed[0] == listed[1]
    folder = f"/proc/{planner_of()}/fd"
    files = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
    assert not [file for file in files if file.startswith("pipe:")]
    assert len([file for file in files if file.startswith("socket:")]) == 1


def test_a_given_workspace_is_not_asked_for() -> None:
    """Who says what every workspace is starts no process, and every plan has it."""
    sources, planners, largest = answer("""
        import os
        import ullage
        ullage.emulate("T4", cudnn_workspace_bytes=1 << 20)
        import torch
        from tests.gpu.emulator.cudnn.planners import planners_of
        from tests.gpu.emulator.cudnn.test_process import convolve
        from ullage.gpu.emulator import library
        convolve()
        found = library.cudnn_plans().by_source
        tell([list(found), planners_of(os.getpid()), found["given"].largest_workspace_bytes])
    """)
    assert (sources, planners, largest) == (["given"], [], 1 << 20)
