"""Runs a PyTorch operation again if it ran out of memory, after memory has been freed.

An optimizer's step writes parameters in place, so it cannot be restarted. Instead, the operation that failed is
retried, and operations that were already executed are not repeated.

Most of the work of an optimizer's step is done by operations on lists of tensors (`torch._foreach_*`,
`torch._fused_*`). Version counters do not show reliably what these operations have written. So wrappers count their
calls.
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
"""A function that retries an operation. Its arguments are the operation and the out-of-memory error."""


def targets_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that a PyTorch operation writes in place. The operation's name shows whether it does."""
    if kwargs.get("out") is not None:
        return _flat(kwargs["out"])
    is_in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and name not in _NO_WRITE)
    return _flat(args[0]) if is_in_place and args else []


class RetryingMode(TorchFunctionMode):
    """Retries each PyTorch operation that runs out of memory, after freeing memory. The last attempt runs on the
    CPU.
    """

    def __init__(
        self,
        ways: Sequence[Callable[[BaseException], None]],
        made: Mapping[int, int] | None = None,
        made_on_lists: Iterable[int] = (),
    ) -> None:
        # `made` maps the `id` of a tensor to the number of writes that an earlier attempt has made, and `made_on_lists`
        # has the `id` of the first tensor of each list. These writes are skipped, and everything else is computed
        # again. The result is exact if the code never reads a tensor before the write and uses the old value after it.
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
                if (
                    name == _UNSCALE
                ):  # gradients are unscaled already, but the scaler still has to learn whether they hold infinities
                    self.run(func, (args[0], args[1], torch.ones_like(args[2])), {})
                return None
        elif targets:
            self._written_singly.update(map(id, targets))
            if self._left_out[id(targets[0])] > 0:
                self._left_out[id(targets[0])] -= 1
                return args[0] if args else kwargs["out"]
        return self.run(func, args, kwargs)

    def is_makeshift(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was created in host memory because it did not fit on its device."""
        return id(tensor) in self._on_host and tensor.device.type == "cpu"

    def has_written_singly(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Return whether a single-tensor operation has written to one of the given tensors.

        Operations on lists of tensors, such as `_foreach_add_`, do not count.
        """
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
    # callers must not keep the error, because its stack frames keep tensors alive
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
    # unique to a list: no two lists in an optimizer's step begin with the same tensor
    if isinstance(written, list | tuple):
        return id(written[0]) if written else 0
    return id(written)


def names_in(modules: Iterable[str]) -> frozenset[str]:
    """Return the names of the list operations that these Python modules call, such as `torch._foreach_add_`.

    They are read from the source code. Without source code, all known names are returned.
    """
    return frozenset().union(*map(_names_in, modules))


@cache
def _names_in(module: str) -> frozenset[str]:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return frozenset(_ORIGINALS)
    return frozenset(re.findall(r"\b_\w+", source)) & _ORIGINALS.keys()


class ForeachOperations:
    """Retries operations on lists of tensors, and records which tensors they wrote."""

    def __init__(self) -> None:
        self._retry: Retry | None = None
        self._notes_all = False
        self._standing_in: dict[frozenset[str], dict[str, Any]] = {}
        self._originals: dict[frozenset[str], dict[str, Any]] = {}
        # The `id`s of the tensors that each operation wrote. References would keep the tensors alive.
        self.written: list[tuple[int, ...]] = []

    def run_to_end(
        self, run: Callable[[], Any], insist: Retry, *, names: frozenset[str], notes_all: bool = False
    ) -> None:
        """Run a part of the optimizer's step. Operations on lists of tensors are retried until they succeed."""
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
                del (
                    failure
                )  # the error refers to this frame; a reference to it would keep the tensors of the frame alive
            target = args[0]
            is_whole = self._notes_all and isinstance(target, list | tuple)
            self.written.append(tuple(map(id, target)) if is_whole else (_identity_of(target),))
            return result

        return run
