"""Retries single operations: one that runs out of memory is run again after memory has been freed.

This is for code that writes tensors in place and therefore cannot be restarted, such as an optimizer's step: what
has been written stays written, and the code does not notice that memory ran out in between.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ullage.training.guard.memory.foreach_operations import identity_of, is_on_lists
from ullage.training.guard.memory.oom import read_oom
from ullage.training.ownership.failure import clear_frames

_IN_PLACE: Final = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
) | {"__setitem__"}
_NO_WRITE: Final = frozenset({"requires_grad_", "detach_", "retain_grad_", "rename_", "share_memory_", "resize_as_"})
_UNSCALE: Final = "_amp_foreach_non_finite_check_and_unscale_"


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
        if targets and is_on_lists(name):
            written = identity_of(args[0])
            if self._lists_left_out[written] > 0:
                self._lists_left_out[written] -= 1
                return self._pass_over(func, name, args)
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

    def _pass_over(self, func: Any, name: str, args: Any) -> Any:
        if name == _UNSCALE:  # divided already, but the scaler still has to learn whether any were infinite
            self.run(func, (args[0], args[1], torch.ones_like(args[2])), {})
        return None

    def make_room(self, error: BaseException) -> None:
        """Free memory in the first of the ways."""
        self._ways[0](error)
        clear_frames(error)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._on_host and any(id(tensor) in self._on_host for tensor in _flat((args, kwargs))):
            return self._run_on_host(func, args, kwargs)
        for way in (*self._ways, None):
            result, failure = _tried(func, args, kwargs)
            if failure is None:
                return result
            if way is not None:
                way(failure)
            clear_frames(failure)
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
