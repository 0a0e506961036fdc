"""PyTorch's operations that write whole lists of tensors, each run to its end while an optimizer steps.

They are few a step and do nearly all of its work. What they write cannot be told afterwards: fused ones leave the
version of a tensor as it is, and others raise it more than once on the CPU. So they are counted as they are called, by
names in torch's namespace that stand for them as long as the step takes; a mode that sees every operation would cost a
step twice its time.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache, wraps
from typing import Any, Final

import torch

from ullage.guard.oom import read_oom

_PREFIXES: Final = ("_foreach_", "_fused_", "_amp_")
_ORIGINALS: Final[dict[str, Any]] = {
    name: function
    for name in dir(torch)
    if name.startswith(_PREFIXES) and name.endswith("_") and callable(function := getattr(torch, name))
}

Insist = Callable[[Callable[[], Any], Exception], Any]
"""Called with an operation that has failed and its error; runs it again."""


def is_on_lists(name: str) -> bool:
    """Tell whether an operation is one of those, by its name."""
    return name in _ORIGINALS


def identity_of(written: Any) -> int:
    """Return the `id` of the first tensor of a list, or of a single one: no two lists of a step begin with one."""
    if isinstance(written, list | tuple):
        return id(written[0]) if written else 0
    return id(written)


def names_in(modules: Iterable[str]) -> frozenset[str]:
    """Return the names of those operations that modules call, by their source; all names where that is not at hand."""
    return frozenset().union(*map(_names_in, modules))


@cache
def _names_in(module: str) -> frozenset[str]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return frozenset(_ORIGINALS)
    return frozenset(re.findall(r"\b_\w+", source)) & _ORIGINALS.keys()


class Lists:
    """Runs every such operation to its end, and notes what it has written."""

    def __init__(self) -> None:
        self._insist: Insist | None = None
        self._notes_all = False
        self._standing_in: dict[frozenset[str], dict[str, Any]] = {}
        self._originals: dict[frozenset[str], dict[str, Any]] = {}
        self.written: list[tuple[int, ...]] = []
        """The `id` of the tensors that were written, once for each operation that did: held, they would live longer.
        Only the first of each list, unless all were asked for."""

    def run_to_end(
        self, run: Callable[[], Any], insist: Insist, *, names: frozenset[str], notes_all: bool = False
    ) -> None:
        """Run a stage in which these names are called, and stand in for them."""
        if names not in self._originals:
            self._originals[names] = {name: _ORIGINALS[name] for name in names}
            self._standing_in[names] = {name: self._guarded(_ORIGINALS[name]) for name in names}
        self._insist = insist
        self._notes_all = notes_all
        self.written = []
        namespace = vars(torch)
        namespace.update(self._standing_in[names])
        try:
            run()
        finally:
            namespace.update(self._originals[names])
            self._insist = None

    def forget(self) -> None:
        """Begin to count anew."""
        self.written = []

    def _guarded(self, function: Any) -> Any:
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
            target = args[0]
            is_whole = self._notes_all and isinstance(target, list | tuple)
            self.written.append(tuple(map(id, target)) if is_whole else (identity_of(target),))
            return result

        return run
