"""PyTorch's operations on whole lists of tensors, each run to its end while an optimizer steps.

They are few a step and do nearly all of its work. What they write cannot be told afterwards: fused ones leave the
version of a tensor as it is, and others raise it more than once on the CPU. So they are counted as they are called, by
names in torch's namespace that stand for them as long as the step takes; a mode that sees every operation would cost a
step twice its time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import torch

from ullage.guard.oom import read_oom

_PREFIXES: Final = ("_foreach_", "_fused_", "_amp_")
_ORIGINALS: Final[dict[str, Any]] = {
    name: function for name in dir(torch) if name.startswith(_PREFIXES) and callable(function := getattr(torch, name))
}


def is_on_lists(name: str) -> bool:
    """Tell whether an operation is one of those, by its name."""
    return name in _ORIGINALS


def identities_of(written: Any) -> tuple[int, ...]:
    """Return the `id` of each tensor of a list, or of a single one."""
    return tuple(map(id, written if isinstance(written, list | tuple) else (written,)))


class Lists:
    """While entered, runs every such operation to its end, and notes what those that write in place have written."""

    def __init__(self) -> None:
        self._insist: Callable[[Callable[[], Any], Exception], Any] | None = None
        self._standing_in = {
            name: self._guarded(function, writes=name.endswith("_")) for name, function in _ORIGINALS.items()
        }
        self.written: list[tuple[int, ...]] = []
        """The `id` of the tensors that were written, once for each operation that did: held, they would live longer."""

    @contextmanager
    def run_to_end(self, insist: Callable[[Callable[[], Any], Exception], Any]) -> Iterator[None]:
        """Stand in for the operations; `insist` is called with one that has failed and its error, and runs it again."""
        self._insist = insist
        self.written = []
        vars(torch).update(self._standing_in)
        try:
            yield
        finally:
            vars(torch).update(_ORIGINALS)
            self._insist = None

    def forget(self) -> int:
        """Begin to count anew; return how many were written."""
        count = len(self.written)
        self.written = []
        return count

    def _guarded(self, function: Any, *, writes: bool) -> Any:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            failure: Exception | None = None
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                if self._insist is None or read_oom(error, is_on_host=True) is None:
                    raise
                failure = error
            if failure is not None and self._insist is not None:
                result = self._insist(lambda: function(*args, **kwargs), failure)
                del failure  # it knows this frame: one that kept it would keep the tensors too
            if writes:
                self.written.append(identities_of(args[0]))
            return result

        return run
