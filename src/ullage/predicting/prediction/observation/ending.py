"""Describe how a script ended: normally, with an exception, or out of memory.

A script that handles PyTorch's out-of-memory error and then gives up counts as out of memory.
"""

import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage.base.long_text import without_middle
from ullage.base.units import text_of_bytes
from ullage.gpu.tracing.source import Line, is_users
from ullage.predicting.made_up.missing import hint_of
from ullage.predicting.prediction.data.run_result import Outcome

# From subprocess, torch.distributed.elastic, torch.multiprocessing and concurrent.futures. These exceptions do not
# contain the output of the child process.
_CHILD_ERRORS: Final = frozenset({"SubprocessError", "ChildFailedError", "ProcessExitedException", "BrokenExecutor"})
_CAPTURED_LINES: Final = 15
_OWN: Final = str(Path(__file__).resolve().parents[3]) + "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenOom:
    """The figures of an out-of-memory error, in bytes. PyTorch reports them before it raises the exception."""

    index: int
    """The number of allocator events before the out-of-memory error."""
    device: int
    asked_bytes: int
    total_bytes: int
    free_bytes: int
    limit_bytes: int | None
    """The process's limit for reserved memory in bytes, or None without a limit."""
    line: Line | None

    def outcome(self) -> Outcome:
        """Return the outcome of a run whose script caught the out-of-memory error and then ended."""
        limit = f" {text_of_bytes(self.limit_bytes)} allowed;" if self.limit_bytes is not None else ""
        text = (
            f"CUDA out of memory. Tried to allocate {text_of_bytes(self.asked_bytes)}. GPU {self.device} has a total "
            f"capacity of {text_of_bytes(self.total_bytes)} of which {text_of_bytes(self.free_bytes)} is free.{limit} "
            "(The script handled the error itself, so PyTorch's full text is lost; ullage wrote this text from the "
            "figures.)"
        )
        file, line = _place(self.line)
        return Outcome(kind="oom", type="OutOfMemoryError", text=text, file=file, line=line)


def end_outcome(gave_up: SeenOom | None, code: int = 0, line: Line | None = None) -> Outcome:
    """Return the outcome of a script that ended without an exception.

    Args:
        gave_up: the out-of-memory error after which the script did nothing on the GPU, if there is one.
        code: the exit code.
        line: the user's line that called exit.
    """
    if gave_up:
        return gave_up.outcome()
    if not code:
        return Outcome(kind="ended")
    file, number = _place(line)
    return Outcome(kind="error", type="SystemExit", exit_code=code, file=file, line=number)


def error_outcome(error: BaseException, gave_up: SeenOom | None) -> Outcome:
    """Return the outcome of a script that raised an exception."""
    oom = oom_in(error)
    if oom is not None:
        file, number = _place(raising_line(oom) or raising_line(error))
        return Outcome(kind="oom", type=type(oom).__name__, text=without_middle(_text_of(oom)), file=file, line=number)
    line = raising_line(error)
    if isinstance(error, SystemExit):
        return end_outcome(gave_up, error.code if isinstance(error.code, int) else 1, line)
    if gave_up:
        return gave_up.outcome()
    file, number = _place(line)
    captured = _captured(error)
    return Outcome(
        kind="error",
        type=without_middle(type(error).__name__),
        text=without_middle(_text_of(error)) + (f"; its last output was:\n{captured}" if captured else ""),
        is_of_child=_is_of_child(error) and not captured,
        traceback=users_traceback(error),
        is_of_system=_is_of_system(error),
        file=file,
        line=number,
        hint=hint_of(error),
    )


def oom_in(error: BaseException | None) -> BaseException | None:
    """Search an exception for PyTorch's out-of-memory error. Return the error, or None if there is none.

    The search includes the causes of the exception and the members of an exception group.
    """
    torch: Any = sys.modules.get("torch")  # A script that has not imported torch cannot raise this error.
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


# A folder exists already, a lock is held, or a port is in use.
def _is_of_system(error: BaseException) -> bool:
    kinds: list[type] = [OSError]
    for module, name in (("sqlite3", "Error"), ("torch.distributed", "DistError")):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            kinds.append(kind)
    return isinstance(error, tuple(kinds))


def raising_line(error: BaseException) -> Line | None:
    """Return the innermost line of the user's code in an exception's traceback."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_users(frame.f_code.co_filename):
            found = Line(frame.f_code.co_filename, line, frame.f_code.co_name)
    # A file with a syntax error has no frame in the traceback.
    if not found and isinstance(error, SyntaxError) and error.filename and error.lineno and is_users(error.filename):
        return Line(error.filename, error.lineno)
    return found


def users_traceback(error: BaseException) -> str:
    """Return the traceback of an exception without the stack frames of ullage. A long text of the exception itself is
    left out.
    """
    shown = traceback.TracebackException.from_exception(error)
    waiting = [shown]
    while waiting:
        part = waiting.pop()
        part.stack = traceback.StackSummary.from_list([frame for frame in part.stack if not _is_own(frame.filename)])
        waiting += [other for other in (part.__cause__, part.__context__, *(part.exceptions or ())) if other]
    whole, text = "".join(shown.format()).rstrip(), _text_of(error)
    if without_middle(text) != text:
        whole = whole.replace(text.rstrip(), "(the text above)")
    return without_middle(whole)


def _is_of_child(error: BaseException) -> bool:
    return any(kind.__name__ in _CHILD_ERRORS for kind in type(error).__mro__) or "DataLoader worker" in _text_of(error)


def _captured(error: BaseException) -> str:
    if not isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
        return ""
    said = error.stderr or error.output or ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return without_middle("\n".join(text.rstrip().splitlines()[-_CAPTURED_LINES:]))


def _is_own(file: str) -> bool:
    # Python leaves frames of its import machinery out of tracebacks, unless a call by ullage is between them.
    return file.startswith((_OWN, "<frozen importlib."))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<{type(error).__name__} without a printable text>"


def _place(line: Line | None) -> tuple[str | None, int | None]:
    return (line.file, line.line) if line else (None, None)
