"""Tests that run where torch can be imported: in a process that has an emulated card from its beginning.

One such process for each worker of pytest imports torch once and then makes a copy of itself for every test: none sees
what another has left, and none waits for the import. Values are computed on the CPU, as anywhere.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

INSIDE = "ULLAGE_TESTS_INSIDE" in os.environ
SLOW = "ULLAGE_SLOW" in os.environ
_ROOT = Path(__file__).parents[2]


def inside(test: Callable[..., Any], *, values: str = "on") -> Callable[..., None]:
    """Run a test in a process that has torch; its arguments are plain data, what it returns is printed."""
    if INSIDE:
        return test

    @wraps(test)
    def ask(**arguments: Any) -> None:
        server = _server(values)
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps([test.__module__, test.__name__, arguments]), file=server.stdin, flush=True)
        line = server.stdout.readline()
        assert line, "the process that has torch ended: see its standard error"
        answer = json.loads(line)
        if answer["failure"]:
            raise AssertionError(answer["failure"])
        if answer["result"] is not None:
            print(answer["result"])

    return ask


inside_with_zeros = partial(inside, values="off")
"""The same, where what is read of the card is zero: it is the same however often an operation is tried again."""


@cache
def _server(values: str) -> subprocess.Popen[str]:
    environment = os.environ | {"ULLAGE_TESTS_INSIDE": values, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path()}
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # the end of its input is its own
    return server


def _path() -> str:
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))


def _serve() -> None:
    import ullage

    ullage.emulate("T4", values=os.environ["ULLAGE_TESTS_INSIDE"])
    for name in (
        "torch",
        "torch._dynamo",
        "pytest",
        "ullage.training.guard.guard",
        "tests.training.guard.worlds",
        "tests.training.guard.made",
    ):
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a test prints is no answer
    warnings.simplefilter("error")
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answers.write(json.dumps(_result(*json.loads(line))) + "\n")
            answers.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            print(json.dumps({"failure": f"the test's process ended with {status}"}), file=answers, flush=True)


def _result(module: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result, failure = None, None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            test = getattr(importlib.import_module(module), name)
            gc.freeze()  # a guard collects garbage after every failure: there is to be none but the test's own
            result = test(**arguments)
    except BaseException:
        failure = traceback.format_exc()
    return {"result": result, "failure": failure}


if __name__ == "__main__":
    _serve()
