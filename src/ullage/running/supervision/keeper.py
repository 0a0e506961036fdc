"""A helper process that kills the user's command if `ullage run` itself is killed.

It reads a pipe whose writing end only `ullage run` has. The first line contains the process ID and the process group of
the command. Each empty line means that `ullage run` has handled a signal for the group. The pipe closes when
`ullage run` ends.
"""

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Wait until `ullage run` has ended. Then kill the user's command, or its process group if it has one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    descriptor = int(sys.argv[1])
    os.chdir("/")
    told = os.read(descriptor, 4096)
    while os.read(descriptor, 4096):
        while signal.sigtimedwait(signal.valid_signals(), 0):
            pass
    if not told:
        return  # `ullage run` was killed before it started the command
    process, group = map(int, told.splitlines()[0].split())
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
