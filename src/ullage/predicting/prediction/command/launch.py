"""The process around a command of the user's: it starts the command in its own group, waits, and ends as it ended.

Started by `prediction.process.start` with LIFELINE COMMAND... as arguments. The kernel kills the group where our
parent ends, which a command of somebody else's would not arrange for.
"""

import os
import signal
import subprocess
import sys

from ullage.base.child_process import tie_to_parent


def main() -> None:
    """Run the command in argv, and end with its exit code or by its signal."""
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
