"""IPython and Jupyter: `%load_ext ullage`, then `%%memory`, `%memory` and `%free`.

PyTorch has one peak statistic for the whole process, so it is never reset here. The peak of a cell comes from PyTorch's
memory history, which is on while the cell runs.
"""

import gc
import re
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ullage.base.errors import UsageError
from ullage.base.units import parse_bytes, text_of_bytes

if TYPE_CHECKING:
    from ullage.training.ownership.holding import Holdings

_LEAST_BYTES: Final = 1 << 10
_PLACE: Final = re.compile(r"\[\d+\]")
_ROWS: Final = 12
_SYS_ERROR_NAMES: Final = ("last_exc", "last_value", "last_traceback", "last_type")


def load_ipython_extension(shell: Any) -> None:
    """Add `%memory`, `%%memory` and `%free` to an IPython shell."""
    magics = _Magics(shell)
    shell.register_magic_function(magics.memory, magic_kind="line_cell", magic_name="memory")
    shell.register_magic_function(magics.free, magic_kind="line", magic_name="free")


def unload_ipython_extension(shell: Any) -> None:
    """Remove `%memory`, `%%memory` and `%free` from the shell."""
    for kind, names in (("line", ("memory", "free")), ("cell", ("memory",))):
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)


class _Magics:
    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def memory(self, line: str, cell: str | None = None) -> None:
        """Show which objects hold GPU memory, or how much memory a cell uses.

        ::

          %memory [SIZE]     what holds memory now; holders of less than SIZE (default 1MiB) are one row
          %%memory           run the cell; show what was allocated before, after and at its peak, and what the cell left
        """
        if cell is None:
            try:
                self._print(str(_owners(parse_bytes(line.strip() or "1MiB"))))
            except UsageError as wrong:
                raise _refusal(f"%memory: {wrong}") from None
            return
        if line.strip():
            raise _refusal(f"%%memory takes no options; got {line.strip()!r}")
        lines, error = _run_watched(self._shell, cell)
        self._print("\n".join(lines))
        if error is None:
            return
        _show_once(self._shell, error)
        try:
            raise error  # so that IPython knows that the cell failed, and does not run further cells
        finally:
            del error  # without this, the frame would hold the error, whose traceback contains the frame

    def free(self, line: str) -> None:
        """Free the memory that the last errors hold, and show what holds the rest.

        ::

          %free              frames of the last error and of other exceptions, `_`, reference cycles, caches
          %free --out        `Out` and `_1`, `_2`, ... as well
        """
        if line.strip() not in ("", "--out"):
            raise _refusal(f"%free takes --out or nothing; got {line.strip()!r}")
        before = _allocated_bytes() if _is_in_use() else 0
        _clear_errors(self._shell)
        _drop_results(self._shell, everything=bool(line.strip()))
        if not _is_in_use():
            print("No GPU memory is held: this process does not use a GPU.")
            return
        from ullage.training.ownership.release import release

        self._print(str(replace(release(), before_bytes=before)))

    def _print(self, text: str) -> None:
        names: dict[str, int] = getattr(getattr(self._shell, "compile", None), "_filename_map", {})
        for file, number in names.items():
            parts = file.replace("\\", "/").split("/")
            for short in ("/".join(parts[-2:]), parts[-1]):
                text = text.replace(f"{short}:", f"In[{number}]:")
        print(text)


def _refusal(text: str) -> Exception:
    from IPython.core.error import UsageError as RefusedError

    return RefusedError(text)


def _show_once(shell: Any, error: BaseException) -> None:
    show = shell.showtraceback

    def show_others(*args: Any, **options: Any) -> None:
        if sys.exc_info()[1] is not error:
            show(*args, **options)

    def end() -> None:
        shell.showtraceback = show
        shell.events.unregister("post_execute", end)

    shell.showtraceback = show_others
    shell.events.register("post_execute", end)


def _run_watched(shell: Any, cell: str) -> tuple[list[str], BaseException | None]:
    if not _is_in_use():  # the cell itself decides whether CUDA is initialized
        error = _error_of(shell.run_cell(cell))
        if not _is_in_use():
            return ["memory: this cell did not use a GPU."], error
        return [_text_without_watch(), "left by the cell:", _left({}, _held())], error
    from ullage.integrations.peak import PeakWatch

    gc.collect()
    held, watch = _held(), PeakWatch()
    watch.start()
    try:
        error = _error_of(shell.run_cell(cell))
        watch.note_alive()
    finally:
        peak = watch.stop()
    before, after = sum(watch.before_bytes), _allocated_bytes()
    known = f"{text_of_bytes(peak.bytes)} at the cell's peak" if peak.by_role is not None else "its peak is unknown"
    lines = [
        f"memory: {text_of_bytes(before)} before, {text_of_bytes(after)} after ({_more(after - before)}), {known}",
        str(peak),
        "",
        "left by the cell:",
        _left(held, _held()),
    ]
    return lines, error


def _error_of(result: Any) -> BaseException | None:
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    return error


def _text_without_watch() -> str:
    import torch

    peak = max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
    after = _allocated_bytes()
    return (
        f"memory: 0 B before, {text_of_bytes(after)} after ({_more(after)}), {text_of_bytes(peak)} at the cell's peak"
    )


def _held() -> dict[str, int]:
    held: Counter[str] = Counter()
    for row in _owners(_LEAST_BYTES):
        held[f"{row.kind:<15}  {_PLACE.sub('[*]', row.path)}"] += row.bytes
    return dict(held)


def _left(before: dict[str, int], after: dict[str, int]) -> str:
    more = {path: size - before.get(path, 0) for path, size in after.items()}
    more |= {path: -size for path, size in before.items() if path not in after}
    rows = sorted(((path, size) for path, size in more.items() if size), key=lambda row: -abs(row[1]))
    lines = [f"{text_of_bytes(size):>12}  {path}" for path, size in rows[:_ROWS]]
    rest = sum(size for _, size in rows[_ROWS:])
    lines += [f"{text_of_bytes(rest):>12}  {len(rows) - _ROWS} more"] if rest else []
    return "\n".join(lines) or "nothing"


def _more(n_bytes: int) -> str:
    return f"{text_of_bytes(abs(n_bytes))} {'less' if n_bytes < 0 else 'more'}"


def _owners(least_bytes: int) -> "Holdings":
    from ullage.training.ownership.holding import Holdings

    if not _is_in_use():
        return Holdings(())
    from ullage.training.ownership.owners import owners

    return owners(least_bytes)


def _is_in_use() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()


def _allocated_bytes() -> int:
    import torch

    return sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))


# Python, IPython and IPython's debugger keep these frames.
def _clear_errors(shell: Any) -> None:
    from ullage.training.ownership.failure import clear_frames

    last = getattr(shell, "last_execution_result", None)
    errors = [getattr(sys, name, None) for name in ("last_exc", "last_value")]
    errors += [getattr(last, name, None) for name in ("error_in_exec", "error_before_exec")]
    for error in errors:
        if isinstance(error, BaseException):
            clear_frames(error)
            error.__traceback__ = None
    for name in _SYS_ERROR_NAMES:
        with suppress(AttributeError):
            delattr(sys, name)
    for name in ("InteractiveTB", "SyntaxTB"):
        handler: Any = getattr(shell, name, None)
        if hasattr(handler, "tb"):
            handler.tb = None


def _drop_results(shell: Any, *, everything: bool) -> None:
    hook, hidden = shell.displayhook, shell.user_ns_hidden
    if everything and hook.do_full_cache:
        for number in list(shell.user_ns.get("_oh", ())):
            shell.user_ns.pop(f"_{number}", None)
            hidden.pop(f"_{number}", None)
        hook.flush()
        shell.last_execution_result = None
    for name in ("_", "__", "___"):
        hidden.pop(name, None)
        if hasattr(hook, name) and shell.user_ns.get(name) is getattr(
            hook, name
        ):  # otherwise the variable is the user's own
            setattr(hook, name, "")
            shell.user_ns[name] = ""
