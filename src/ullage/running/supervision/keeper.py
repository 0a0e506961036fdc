"""A helper process that kills the command of `ullage run` if `ullage run` itself is killed.

It is run as a separate Python file with the argument DESCRIPTOR, the reading end of a pipe whose writing end only
`ullage run` has. The first line in the pipe is the process id and the process group of the command. Each later empty
line means that `ullage run` has handled a signal for the group. When the pipe closes, `ullage run` has ended, whatever
ended it. If `ullage run` ends normally, it kills this process first.

This process is in the process group of `ullage run`. A signal that is pending here was sent to that whole group: see
`_Keeper.has_heard`.
"""

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Wait until `ullage run` has ended, then kill the user's command. If the command has its own process group, kill
    the group.
    """
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
