"""Start the user's command in its own process group, and exit with its exit code or signal.

The first argument is the descriptor of a pipe that ullage holds open. If ullage ends, the kernel kills the process
group. The other arguments are the user's command.
"""

import os
import signal
import subprocess
import sys

from ullage.base.child_process import tie_to_parent


def main() -> None:
    """Run the command in sys.argv, and end this process with the same exit code or signal."""
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
