"""What torch.compile has made in this process, and the end of its workers, without loading any of it."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

_WORKER_SECONDS: Final = 1.0  # for a worker to end; what still loads a library then has nothing to clear away


def compiled_graphs() -> int:
    """Return the number of graphs that Dynamo made, by its own count (torch._dynamo.utils.counters)."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def hurry_workers() -> None:
    """Have Inductor's exit handler end its workers at once, in place of when they have loaded torch.

    It waits for them, five minutes at most, also where nothing was ever asked of them. A process that is over is not
    given that long, and where it is killed meanwhile its temporary folders stay: torch 2.8 makes one when it is loaded.
    """
    compiler = sys.modules.get("torch._inductor.async_compile")
    for pool in tuple(getattr(compiler, "_pool_set", ())):
        process = getattr(pool, "process", None)
        if isinstance(process, subprocess.Popen):
            # Of this process alone: Inductor's handler calls its `wait`, and has no other way to be told.
            process.wait = partial(_end, process, process.wait)  # type: ignore[assignment, method-assign]


def _end(process: "subprocess.Popen[bytes]", wait: Callable[[float], int], timeout: float | None = None) -> int | None:
    """Stand for `wait` of a process that is to end (`_child.begin` has it end in order)."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return wait(_WORKER_SECONDS)
    return None
