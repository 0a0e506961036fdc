"""Count the graphs that torch.compile has made, and end Inductor's worker processes.

This module does not import torch.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

_WORKER_SECONDS: Final = 1.0  # for a worker to end; a worker that is still loading libraries has nothing to clean up


def compiled_graphs() -> int:
    """Return the number of graphs that Dynamo has compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def hurry_workers() -> None:
    """Make Inductor's worker processes end at once when this process exits.

    Inductor's exit handler waits up to five minutes for the workers, even if they never got any work. If ullage killed
    the process, temporary folders would stay: torch 2.8 creates one when it is imported.
    """
    compiler = sys.modules.get("torch._inductor.async_compile")
    for pool in tuple(getattr(compiler, "_pool_set", ())):
        process = getattr(pool, "process", None)
        if isinstance(process, subprocess.Popen):
            # Only this process object is changed: Inductor's handler calls its `wait` and has no other setting.
            process.wait = partial(_end, process, process.wait)  # type: ignore[assignment, method-assign]


# `_child.begin` makes the process end cleanly.
def _end(process: "subprocess.Popen[bytes]", wait: Callable[[float], int], timeout: float | None = None) -> int | None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return wait(_WORKER_SECONDS)
    return None
