"""How a script ended, in plain data: by itself, by an error, or out of memory.

An error that the script handled counts too: a script that catches PyTorch's out-of-memory error and gives up did not
fit. It does not know what was allocated.
"""

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ullage._units import text_of_bytes
from ullage.tracing.source import Line, is_users

_OWN: Final = str(Path(__file__).resolve().parent.parent) + "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenOom:
    """What PyTorch tells its observers when memory runs out, before it raises; sizes in bytes."""

    index: int
    """Of the journal's last entry then."""
    device: int
    asked_bytes: int
    total_bytes: int
    free_bytes: int
    line: Line | None

    def outcome(self) -> dict[str, Any]:
        """The outcome of a script whose own handling swallowed PyTorch's error."""
        text = (
            f"CUDA out of memory. Tried to allocate {text_of_bytes(self.asked_bytes)}. GPU {self.device} has a total "
            f"capacity of {text_of_bytes(self.total_bytes)} of which {text_of_bytes(self.free_bytes)} is free. (The "
            "script handled the error itself: PyTorch's full text is lost, and this is made from its figures.)"
        )
        return {"kind": "oom", "type": "OutOfMemoryError", "text": text, "exit_code": None, **_place(self.line)}


def end_outcome(gave_up: SeenOom | None) -> dict[str, Any]:
    """The outcome of a script that ended without an error.

    Args:
        gave_up: how memory ran out, if the script did nothing on the card after it.
    """
    return gave_up.outcome() if gave_up else {"kind": "ended"}


def exit_outcome(code: int, line: Line | None, gave_up: SeenOom | None) -> dict[str, Any]:
    """The outcome of a script that ended itself with an exit code other than 0."""
    if gave_up:
        return gave_up.outcome()
    return {"kind": "error", "type": "SystemExit", "text": "", "traceback": "", "exit_code": code, **_place(line)}


def error_outcome(error: BaseException, gave_up: SeenOom | None) -> dict[str, Any]:
    """The outcome of a script that raised."""
    oom = oom_in(error)
    if oom is not None:
        place = _place(raising_line(oom) or raising_line(error))
        return {"kind": "oom", "type": type(oom).__name__, "text": _text_of(oom), "exit_code": None, **place}
    line = raising_line(error)
    if isinstance(error, SystemExit):
        return exit_outcome(error.code if isinstance(error.code, int) else 1, line, gave_up)
    if gave_up:
        return gave_up.outcome()
    return {
        "kind": "error",
        "type": type(error).__name__,
        "text": _text_of(error),
        "traceback": users_traceback(error),
        "exit_code": None,
        **_place(line),
    }


def oom_in(error: BaseException | None) -> BaseException | None:
    """Find PyTorch's out-of-memory error in an exception, in its group, or in what caused it."""
    torch: Any = sys.modules.get("torch")  # a script without it has no such error
    kinds: tuple[type, ...] = (torch.cuda.OutOfMemoryError,) if hasattr(torch, "cuda") else ()
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        error = waiting.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, kinds) or "CUDA error: out of memory" in _text_of(error):
            return error
        waiting += [error.__context__, error.__cause__]
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
    return None


def raising_line(error: BaseException) -> Line | None:
    """The innermost line of the user's own code that an error went through."""
    found = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            found = Line(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    # The error of a file that cannot be compiled has no frame there.
    if not found and isinstance(error, SyntaxError) and error.filename and error.lineno and is_users(error.filename):
        return Line(error.filename, error.lineno)
    return found


def users_traceback(error: BaseException) -> str:
    """The traceback as `python SCRIPT` would show it: frames of ullage are left out."""
    shown = traceback.TracebackException.from_exception(error)
    waiting = [shown]
    while waiting:
        part = waiting.pop()
        part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if not _is_own(frame.filename)])
        waiting += [other for other in (part.__cause__, part.__context__, *(part.exceptions or ())) if other]
    return "".join(shown.format()).rstrip()


def _is_own(file: str) -> bool:
    # Python leaves its import machinery out of tracebacks, except where a call of ours stands in between.
    return file.startswith((_OWN, "<frozen importlib."))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} that cannot be shown>"


def _place(line: Line | None) -> dict[str, Any]:
    return {"file": line.file, "line": line.line, "function": line.function} if line else {}
