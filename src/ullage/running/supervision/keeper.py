"""A process that ends the command of `ullage run` where that was killed: nothing of it is in the command itself.

Run as a file of its own, with DESCRIPTOR: the reading end of a pipe, whose other end only `ullage run` has. Through it
come the command's process and group in a line, and later an empty line for each signal of the group that was seen. When
it closes, `ullage run` has ended, by whatever signal. Who comes to a good end kills this process before.

It is in the group of `ullage run`. A signal that waits here was sent to all of that group: see `_Keeper.has_heard`.
"""

import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Wait for the end of who started this process, and kill the command with its group, if it has one of its own."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    descriptor = int(sys.argv[1])
    os.chdir("/")
    told = os.read(descriptor, 4096)
    while os.read(descriptor, 4096):
        while signal.sigtimedwait(signal.valid_signals(), 0):
            pass
    if not told:
        return  # killed before there was a command
    process, group = map(int, told.splitlines()[0].split())
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
