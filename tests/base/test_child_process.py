"""How a child process is tied to its parent's life: to the process, not to the thread that started it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil

_CHILD = """
import subprocess, sys, time
from ullage.base.child_process import die_with_parent
die_with_parent(int(sys.argv[1]))
print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
time.sleep(1000)
"""


def test_a_child_and_its_group_live_as_long_as_the_parent_and_not_as_the_thread_that_started_it() -> None:
    """Linux sends a "parent death signal" when the starting thread ends; only the lifeline's end ends the group."""
    lifeline_end, lifeline = os.pipe()
    started: list[subprocess.Popen[str]] = []
    started_others: list[int] = []
    number: list[int] = []

    def start() -> None:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(lifeline_end)],
            pass_fds=[lifeline_end],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert child.stdout is not None
        started.append(child)
        started_others.append(int(child.stdout.readline()))
        number.append(threading.get_native_id())

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{number[0]}").exists():  # the kernel ends a thread a little later than Python
        pass
    (child,) = started
    other = psutil.Process(started_others[0])
    assert child.poll() is None
    assert other.is_running()
    os.close(lifeline_end)
    os.close(lifeline)
    assert child.wait(900) < 0
    assert child.stdout is not None
    child.stdout.close()
    while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
        pass  # it was killed with its group, and nothing tells of the end of a grandchild
