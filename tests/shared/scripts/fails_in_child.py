"""Start a process that says why it fails, and raise what Python raises then."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

FAILS = "import sys; print('the reason is this', file=sys.stderr); sys.exit(3)"


def fail() -> None:
    print("the reason is this", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    command = [sys.executable, "-c", FAILS]
    match sys.argv[1]:
        case "printed":
            subprocess.run(command, check=True)
        case "captured":
            subprocess.run(command, check=True, capture_output=True)
        case "output":
            subprocess.check_output(command, stderr=subprocess.STDOUT, text=True)
        case "pool":
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
                pool.submit(fail).result()
