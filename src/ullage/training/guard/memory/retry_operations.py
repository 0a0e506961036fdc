"""Retries single operations: one that runs out of memory is run again after memory has been freed.

This is for code that writes tensors in place and therefore cannot be restarted, such as an optimizer's step: what
has been written stays written, and the code does not notice that memory ran out in between.

PyTorch's operations on lists of tensors (`torch._foreach_*`, `torch._fused_*`) are few in a step, and do nearly all of
its work. What they have written cannot be seen afterwards: fused ones do not change a tensor's version counter, and
others raise it more than once on the CPU. So calls are counted, by wrappers that replace these names in torch's
namespace during the step; a mode that sees every operation would double a step's time.
"""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ullage.training.guard.memory.oom import read_oom
from ullage.training.ownership.failure import clear_frames

_IN_PLACE: Final = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
) | {"__setitem__"}
_NO_WRITE: Final = frozenset({"requires_grad_", "detach_", "retain_grad_", "rename_", "share_memory_", "resize_as_"})
_UNSCALE: Final = "_amp_foreach_non_finite_check_and_unscale_"
_PREFIXES: Final = ("_foreach_", "_fused_", "_amp_")
_ORIGINALS: Final[dict[str, Any]] = {
    name: function
    for name in dir(torch)
    if name.startswith(_PREFIXES) and name.endswith("_") and callable(function := getattr(torch, name))
}

Retry = Callable[[Callable[[], Any], Exception], Any]
"""A function that is called with a failed operation and its error, and runs the operation again."""


def targets_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operation writes in place, judged by its name; lists are flattened."""
    if kwargs.get("out") is not None:
        return _flat(kwargs["out"])
    is_in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name not in _NO_WRITE)
    return _flat(args[0]) if is_in_place and args else []


class RetryingMode(TorchFunctionMode):
    """Retries each operation that runs out of memory: after each way to free memory, and at last on the host."""

    def __init__(
        self,
        ways: Sequence[Callable[[BaseException], None]],
        made: Mapping[int, int] | None = None,
        made_on_lists: Iterable[int] = (),
    ) -> None:
        """Take the ways to free memory, and the writes that an earlier attempt has already made.

        That many writes are skipped: to each tensor (by its `id`), and to each list (by the `id` of its first tensor).
        Everything else is computed again. This is exact if no tensor is read before it is written and the result
        used after.
        """
        super().__init__()
        self._ways = ways
        self._left_out = Counter(made or {})
        self._lists_left_out = Counter(made_on_lists)
        self._on_host: dict[int, torch.Tensor] = {}
        self._written_singly: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        targets = targets_of(name, args, kwargs)
        if targets and name in _ORIGINALS:
            written = _identity_of(args[0])
            if self._lists_left_out[written] > 0:
                self._lists_left_out[written] -= 1
                if name == _UNSCALE:  # divided already, but the scaler still has to learn whether any were infinite
                    self.run(func, (args[0], args[1], torch.ones_like(args[2])), {})
                return None
        elif targets:
            self._written_singly.update(map(id, targets))
            if self._left_out[id(targets[0])] > 0:
                self._left_out[id(targets[0])] -= 1
                return args[0] if args else kwargs["out"]
        return self.run(func, args, kwargs)

    def is_makeshift(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor was allocated on the host because there was no room on its device."""
        return id(tensor) in self._on_host and tensor.device.type == "cpu"

    def has_written_singly(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Tell whether any of these tensors was written by an operation that is not one on lists."""
        return not self._written_singly.isdisjoint(map(id, tensors))

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._on_host and any(id(tensor) in self._on_host for tensor in _flat((args, kwargs))):
            return self._run_on_host(func, args, kwargs)
        for way in (*self._ways, None):
            result, failure = _tried(func, args, kwargs)
            if failure is None:
                return result
            clear_frames(failure)
            if way is not None:
                way(failure)
        del failure
        return self._run_on_host(func, args, kwargs)

    def _run_on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on copies in host memory; what it writes in place is copied back."""
        copies: dict[int, torch.Tensor] = {}

        def to_host(tensor: torch.Tensor) -> torch.Tensor:
            return copies.setdefault(id(tensor), tensor.detach().cpu() if tensor.device.type != "cpu" else tensor)

        with torch.no_grad():
            on_host = tree_map_only(torch.Tensor, to_host, (tuple(args), kwargs))
            result = func(*on_host[0], **on_host[1])
            targets = targets_of(getattr(func, "__name__", ""), args, kwargs)
            for target in targets:
                if target.device.type != "cpu":
                    target.copy_(copies[id(target)])
        if targets:
            return args[0] if args else kwargs["out"]
        for tensor in _flat(result):
            self._on_host[id(tensor)] = tensor
        return result


def _tried(func: Any, args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    """Return an operation's result, or its out-of-memory error, which must not be kept: it holds frames' tensors."""
    try:
        return func(*args, **kwargs), None
    except Exception as error:
        if read_oom(error, is_on_host=True) is None:
            raise
        return None, error


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _identity_of(written: Any) -> int:
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
            self.written.append(tuple(map(id, target)) if is_whole else (_identity_of(target),))
            return result

        return run
