"""A process that starts the user's command in its own process group, waits for it, and ends with its exit code or
signal.

`prediction.process.start` starts it with LIFELINE COMMAND... as arguments. The kernel kills the whole process group if
the parent process ends, even if the command itself is not prepared for that.
"""

import os
import signal
import subprocess
import sys

from ullage.base.child_process import tie_to_parent


def main() -> None:
    """Run the command in sys.argv. End this process as the command ended: with the same exit code, or by the same
    signal.
    """
    tie_to_parent()
    try:
        code = subprocess.call(sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\n")
        code = 127
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)
