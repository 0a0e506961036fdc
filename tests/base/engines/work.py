"""Functions that stand in for predictions: plain data in, plain data out; each leaves its process's number."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def double(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Return twice a number, and which process did it."""
    return {"number": 2 * payload["number"], "process": os.getpid()}


def wait(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Wait until nobody wants the result any more."""
    Path(payload["began"]).write_text(str(os.getpid()))
    while not cancelled():
        time.sleep(0.02)
    return {}


def die_at_first(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Be killed at the first attempt, and answer at the second; or be killed each time."""
    seen = Path(payload["seen"])
    attempt = len(seen.read_text()) if seen.exists() else 0
    with seen.open("a") as file:
        file.write("x")
    if attempt < payload["deaths"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempts": attempt + 1}
