"""Start the user's command in its own process group, and exit with its exit code or signal.

The first argument is the descriptor of a pipe that ullage holds open. If ullage ends, the kernel kills the process
group. The other arguments are the user's command. The processes that the command leaves behind end a moment after it.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from ullage.base.child_process import adopt_orphans, descendants_of, kill_descendants, tie_to_parent

_REST_SECONDS: Final = 0.5  # for processes that are about to end
_POLL_SECONDS: Final = 0.01


def main() -> None:
    """Run the command in sys.argv, and end this process with the same exit code or signal."""
    tie_to_parent()
    adopt_orphans()
    try:
        code = _ended(subprocess.Popen(sys.argv[2:]).pid)
    except OSError as error:
        sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\n")
        code = 127
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _ended(command: int) -> int:
    while True:
        process, status = os.waitpid(-1, 0)
        if process == command:
            break
    until = time.monotonic() + _REST_SECONDS
    while any(descendants_of(os.getpid())) and time.monotonic() < until:
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(_POLL_SECONDS)
    kill_descendants(os.getpid())
    return os.waitstatus_to_exitcode(status)
