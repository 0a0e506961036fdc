"""End in one of many ways, without torch: none of them needs it."""

import ctypes
import os
import signal
import sys
import time

how = sys.argv[1]
print("about to end:", how, flush=True)
if how == "exit 0":
    sys.exit()
elif how == "exit 3":
    sys.exit(3)
elif how == "text":
    sys.exit("the data set is not there")
elif how == "os exit 0":
    os._exit(0)
elif how == "os exit 3":
    os._exit(3)
elif how == "interrupt":
    raise KeyboardInterrupt
elif how == "crash":
    ctypes.string_at(0)
elif how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "syntax":
    compile("a = = 1", "inner.py", "exec")
elif how == "sleep":
    time.sleep(1000)
elif how == "ignores alarms":
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while True:
        pass
elif how == "deaf":  # as while a long call into C runs
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.SIGRTMAX + 1))
    time.sleep(1000)
elif how == "handles every error":
    while True:
        try:  # noqa: SIM105
            time.sleep(0.01)
        except BaseException:
            pass
elif how == "starts others":
    import subprocess

    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("ready", flush=True)
    time.sleep(1000)
elif how == "prints":
    sys.stdout.write("x" * 10_000_000)
elif how == "closes":
    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)
elif how == "closes ours":
    os.closerange(3, 300)
    files = [open(os.path.join(sys.argv[2], f"file{number}"), "w") for number in range(64)]  # noqa: SIM115
    sys.exit(0)
elif how == "cleans up":
    import atexit
    from pathlib import Path

    atexit.register(lambda: Path(sys.argv[2], "exit handler").touch())
    atexit.register(lambda: 1 / 0)
    try:
        time.sleep(1000)
    finally:
        Path(sys.argv[2], "finally").touch()
