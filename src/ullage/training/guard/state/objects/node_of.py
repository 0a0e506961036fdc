"""Chooses how a Python object is recorded, according to its type."""

import argparse
import array
import ctypes
import functools
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from functools import lru_cache, partial
from operator import is_
from queue import SimpleQueue
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, Sampler

from ullage.training.guard.state.copies import SMALL_BYTES, version_of
from ullage.training.guard.state.objects.content_node import (
    FEW,
    UNSET,
    ContentNode,
    DictNode,
    ElementsNode,
    LargeNode,
    ProgressNode,
    ReferenceNode,
    SlotsNode,
    StateNode,
    attributes_of,
    reference_of_cell,
    slots_of,
)

_ARRAY_BYTES: Final = 64 << 20
# The attributes in which every PyTorch module keeps its hooks. `flags` restores them.
_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module())) - {"training", "_parameters", "_modules", "_buffers"}
_FUNCTIONS: Final = (FunctionType, MethodType, partial)


def is_installed(thing: Any) -> bool:
    """Return whether a function, class or module is from an installed package or the standard library."""
    return _is_installed(thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or "")


@lru_cache(maxsize=4096)
def _is_installed(home: str) -> bool:
    if home == "__main__":
        return False
    where = getattr(sys.modules.get(home), "__file__", None) or ""
    return "site-packages" in where or home.partition(".")[0] in sys.stdlib_module_names or not where


def node_of(path: str, value: Any, is_opened: Callable[[Any], bool]) -> ContentNode | None:
    """Return a record of an object. None if the object cannot change."""
    stateful = _stateful_of(path, value)
    if stateful is not None:
        return stateful
    if isinstance(value, list | tuple | deque | set | bytearray | MutableMapping):
        if isinstance(value, MutableMapping) and not isinstance(value, dict):
            return _opened(path, value, is_opened)
        if len(value) > FEW:
            return LargeNode(path, value)
        if isinstance(value, dict):
            return DictNode(path, value)
        return ElementsNode(path, value)
    if hasattr(type(value), "__next__") or type(value) is SimpleQueue:
        return ProgressNode(path, value)
    return _opened(path, value, is_opened)


def _opened(path: str, value: Any, is_opened: Callable[[Any], bool]) -> ContentNode | None:
    if not is_opened(value):
        return None
    if isinstance(getattr(value, "__dict__", None), dict):
        left_out = _OF_EVERY_MODULE if isinstance(value, nn.Module) else frozenset[str]()
        return DictNode(
            path,
            vars(value),
            is_of_attributes=True,
            left_out=left_out,
            always_counts=isinstance(value, nn.Module) or type(value).__module__.startswith("torch."),
        )
    return SlotsNode(path, value) if any(map(slots_of, type(value).__mro__)) else None


def _stateful_of(path: str, value: Any) -> ContentNode | None:
    if isinstance(value, CellType):
        return reference_of_cell(path, value)
    if isinstance(value, torch.Generator):
        return StateNode(path, value, value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return None if value is random._inst else StateNode(path, value, value.getstate, value.setstate)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        if value.dtype.hasobject or value.nbytes > _ARRAY_BYTES:
            return None
        return StateNode(path, value, value.copy, lambda saved: numpy.copyto(value, saved))
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return StateNode(path, value, lambda: bits.state, lambda saved: setattr(bits, "state", saved))
    if isinstance(value, numpy.random.RandomState):
        return StateNode(path, value, lambda: value.get_state(legacy=False), value.set_state)
    return None


def odd_node_of(path: str, value: Any) -> ContentNode | None:
    """Return a record of an object of a rare type, such as a cache or an optimizer. None for other objects."""
    if isinstance(value, _FUNCTIONS):
        return None if is_installed(value.func if isinstance(value, partial) else value) else FunctionNode(path, value)
    if isinstance(value, functools._lru_cache_wrapper):
        return CacheNode(path, value)
    if isinstance(value, Optimizer):
        return OptimizerNode(path, value)
    if isinstance(value, argparse.Namespace | threading.local):
        return DictNode(path, vars(value), is_of_attributes=True)
    if isinstance(value, weakref.WeakKeyDictionary | weakref.WeakValueDictionary):
        return DictNode(path, value.__dict__["data"])
    if isinstance(value, torch.jit.ScriptModule) and hasattr(value, "_concrete_type"):
        return ScriptNode(path, value)
    if isinstance(value, ContextVar):
        return _VariableNode(path, value, lambda: value.get(UNSET), value.set, always_counts=True)
    if isinstance(value, array.array):
        return StateNode(path, value, lambda: value[:], partial(value.__setitem__, slice(None)), always_counts=True)
    shared = _shared_memory_of(value)
    if shared is not None:
        put = lambda saved: ctypes.memmove(ctypes.addressof(shared), saved, len(saved))  # noqa: E731
        return StateNode(path, value, lambda: bytes(shared), put, always_counts=True)
    if isinstance(value, Dataset | Sampler) and not is_installed(type(value)) and hasattr(value, "__dict__"):
        return DataNode(path, vars(value), is_of_attributes=True)
    return None


def _shared_memory_of(value: Any) -> Any:
    shared = sys.modules.get("multiprocessing.sharedctypes")
    if shared is not None and isinstance(value, shared.SynchronizedBase):
        return value.get_obj()
    kind = type(value)
    return value if kind.__module__ == "ctypes" or isinstance(value, ctypes._SimpleCData | ctypes.Array) else None


class DataNode(DictNode):
    """A record of a user's dataset or sampler. Large arrays and tensors are left out."""

    def children(self) -> Iterator[tuple[str, Any]]:
        for path, element in super().children():
            if getattr(element, "nbytes", SMALL_BYTES + 1) <= SMALL_BYTES or isinstance(element, torch.Tensor):
                yield path, element


class FunctionNode(ContentNode):
    """A record of a user's function: its closure variables, defaults and attributes."""

    def record(self) -> None:
        """Do nothing. A function object does not change."""

    def is_same(self) -> bool:
        return True

    def children(self) -> Iterator[tuple[str, Any]]:
        function = self.value
        if isinstance(function, partial):
            yield from ((self.path, one) for one in (function.func, function.args, function.keywords))
        elif isinstance(function, MethodType):
            yield from ((self.path, one) for one in (function.__self__, function.__func__))
        else:
            yield from zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            yield from ((self.path, one) for one in function.__defaults__ or ())
            yield from (function.__kwdefaults__ or {}).items()
            yield from attributes_of(self.path, function)


class CacheNode(ContentNode):
    """A record of a `functools.cache`. New entries are removed only if the cache was empty before."""

    is_only_told = True

    def read(self) -> Any:
        return self.value.cache_info()

    def is_same(self) -> bool:
        return bool(self.saved.currsize == 0 or self.read().misses == self.saved.misses)

    def put_back(self) -> bool:
        if self.saved.currsize == 0 and self.read().currsize:
            self.value.cache_clear()
        return True

    def children(self) -> Iterator[tuple[str, Any]]:
        yield self.path, self.value.__wrapped__


class _VariableNode(ReferenceNode):
    # if the variable had no value, this cannot be restored
    def put_back(self) -> bool:
        return self.saved is not UNSET and super().put_back()


class ScriptNode(ContentNode):
    """A record of a TorchScript module, whose attributes are stored in C++."""

    always_counts = True

    def __init__(self, path: str, value: Any) -> None:
        apart = {name for some in (value._parameters, value._buffers) for name, _ in some.items()}
        self._names = [name for name in value._concrete_type.get_attributes() if name not in apart]
        super().__init__(path, value)

    def read(self) -> Any:
        return {name: self.value._c.getattr(name) for name in self._names}

    def is_same(self) -> bool:
        return all(
            now is before or (not isinstance(now, torch.Tensor) and type(now) is type(before) and now == before)
            for now, before in zip(self.read().values(), self.saved.values(), strict=True)
        )

    def names(self) -> list[str]:
        now = self.read()
        return [f"{self.path}.{name}" for name in self._names if now[name] is not self.saved[name]] or [self.path]

    def put_back(self) -> bool:
        for name, before in self.saved.items():
            self.value._c.setattr(name, before)
        return True

    def children(self) -> Iterator[tuple[str, Any]]:
        every = [*self.saved.items(), *self.value._buffers.items()]
        yield from ((f"{self.path}.{name}", one) for name, one in every if isinstance(one, torch.Tensor))


class OptimizerNode(ContentNode):
    """A record of an optimizer. Its settings are restored, but a step of the optimizer cannot be undone."""

    always_counts = True

    def __init__(self, path: str, value: Optimizer, *, is_state_read: bool = True) -> None:
        # The state of the guard's own optimizers is not recorded, because only the guard steps them.
        self._is_state_read = is_state_read
        super().__init__(path, value)

    def read(self) -> Any:
        groups = list(map(dict, self.value.param_groups))
        if not self._is_state_read:
            return groups, [], []
        tensors = list(_tensors_in(list(self.value.state.values())))
        own = [one for one in vars(self.value).values() if isinstance(one, int | float)]
        return groups, tensors, [*map(version_of, tensors), *own]

    def is_same(self) -> bool:
        return self._has_not_stepped(now := self.read()) and _are_same(now[0], self.saved[0])

    def _has_not_stepped(self, now: Any) -> bool:
        return len(now[1]) == len(self.saved[1]) and all(map(is_, now[1], self.saved[1])) and now[2] == self.saved[2]

    def put_back(self) -> bool:
        now = self.read()
        for group, saved in zip(self.value.param_groups, self.saved[0], strict=False):
            for name in group.keys() - saved.keys():
                del group[name]
            group.update(saved)
        return self._has_not_stepped(now) and len(now[0]) == len(self.saved[0])


def _tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict) and depth <= _DEEPEST:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(one, depth + 1)


_DEEPEST: Final = 3


class ForeignNode(ContentNode):
    """A record of an object from an installed package. Only tensors in its attributes are recorded."""

    def read(self) -> Any:
        tensors: list[torch.Tensor] = []
        for value in vars(self.value).values():
            if isinstance(value, list | tuple | dict) and 0 < len(value) <= FEW:
                first = next(iter(value.values() if isinstance(value, dict) else value))
                tensors += _tensors_in(value, _DEEPEST) if isinstance(first, torch.Tensor) else ()
            elif isinstance(value, torch.Tensor):
                tensors.append(value)
        return tensors, list(map(version_of, tensors))

    def is_same(self) -> bool:
        now, saved = self.read(), self.saved
        return len(now[0]) == len(saved[0]) and all(map(is_, now[0], saved[0])) and now[1] == saved[1]

    def other(self) -> list[Any]:
        return [*self.saved[0], *self.read()[0]]


def _are_same(now: list[dict[str, Any]], saved: list[dict[str, Any]]) -> bool:
    return len(now) == len(saved) and all(
        one.keys() == other.keys() and all(map(is_, one.values(), other.values()))
        for one, other in zip(now, saved, strict=True)
    )


class GradientNode(ContentNode):
    """A record of the gradient of a tensor that is not a parameter, such as the input of an adversarial attack."""

    def __init__(self, path: str, value: torch.Tensor, *, is_copied: bool) -> None:
        self._is_copied = is_copied
        super().__init__(path, value)

    def read(self) -> Any:
        gradient = self.value.grad
        return gradient, -1 if gradient is None or self._is_copied else version_of(gradient)

    def is_same(self) -> bool:
        gradient, version = self.read()
        return gradient is self.saved[0] and version == self.saved[1]

    def put_back(self) -> bool:
        self.value.grad = self.saved[0]
        return bool(self.read()[1] == self.saved[1])

    def children(self) -> Iterator[tuple[str, Any]]:
        if self._is_copied and self.saved[0] is not None:
            yield self.path, self.saved[0]
