"""PyTorch's operations on lists of tensors (`torch._foreach_*`, `torch._fused_*`), retried while an optimizer steps.

There are few of them in a step, and they do nearly all of its work. What they have written cannot be seen afterwards:
fused ones do not change a tensor's version counter, and others raise it more than once on the CPU. So calls are
counted, by wrappers that replace these names in torch's namespace during the step; a mode that sees every operation
would double a step's time.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any, Final

import torch

from ullage.training.guard.memory.oom import read_oom

_PREFIXES: Final = ("_foreach_", "_fused_", "_amp_")
_ORIGINALS: Final[dict[str, Any]] = {
    name: function
    for name in dir(torch)
    if name.startswith(_PREFIXES) and name.endswith("_") and callable(function := getattr(torch, name))
}

Retry = Callable[[Callable[[], Any], Exception], Any]
"""A function that is called with a failed operation and its error, and runs the operation again."""


def is_on_lists(name: str) -> bool:
    """Tell by its name whether an operation is one on lists of tensors."""
    return name in _ORIGINALS


def identity_of(written: Any) -> int:
    """Return the `id` of a list's first tensor, or of a single tensor: no two lists of a step have the same first."""
    if isinstance(written, list | tuple):
        return id(written[0]) if written else 0
    return id(written)


def names_in(modules: Iterable[str]) -> frozenset[str]:
    """Return the names of the list operations that modules call, read from their source; all names if there is none."""
    return frozenset().union(*map(_names_in, modules))


@cache
def _names_in(module: str) -> frozenset[str]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return frozenset(_ORIGINALS)
    return frozenset(re.findall(r"\b_\w+", source)) & _ORIGINALS.keys()


class ForeachOperations:
    """Retries each operation on lists until it succeeds, and records what it has written."""

    def __init__(self) -> None:
        self._retry: Retry | None = None
        self._notes_all = False
        self._standing_in: dict[frozenset[str], dict[str, Any]] = {}
        self._originals: dict[frozenset[str], dict[str, Any]] = {}
        self.written: list[tuple[int, ...]] = []
        """The `id`s of the tensors that each operation wrote (references would keep them alive); only the first of each
        list, unless all were asked for."""

    def run_to_end(
        self, run: Callable[[], Any], insist: Retry, *, names: frozenset[str], notes_all: bool = False
    ) -> None:
        """Run a stage of the step with wrappers in place of these names."""
        if names not in self._originals:
            self._originals[names] = {name: _ORIGINALS[name] for name in names}
            self._standing_in[names] = {name: self._guarded(_ORIGINALS[name]) for name in names}
        self._retry = insist
        self._notes_all = notes_all
        self.written = []
        namespace = vars(torch)
        namespace.update(self._standing_in[names])
        try:
            run()
        finally:
            namespace.update(self._originals[names])
            self._retry = None

    def _guarded(self, function: Any) -> Any:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            failure: Exception | None = None
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                if self._retry is None or read_oom(error, is_on_host=True) is None:
                    raise
                failure = error
            if failure is not None and self._retry is not None:
                result = self._retry(lambda: function(*args, **kwargs), failure)
                del failure  # it knows this frame: one that kept it would keep the tensors too
            target = args[0]
            is_whole = self._notes_all and isinstance(target, list | tuple)
            self.written.append(tuple(map(id, target)) if is_whole else (identity_of(target),))
            return result

        return run
