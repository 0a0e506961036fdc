"""Chooses how a Python object is recorded, according to its type."""

import argparse
import functools
import io
import operator
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from functools import partial
from itertools import count
from operator import is_
from queue import SimpleQueue
from types import CellType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, Sampler

from ullage.training.guard.state.copies import SMALL_BYTES, version_of
from ullage.training.guard.state.objects.installed import is_installed
from ullage.training.guard.state.objects.node import (
    FEW,
    UNSET,
    Children,
    ContentNode,
    ElementsNode,
    NamesNode,
    SlotsNode,
    StateNode,
    VariableNode,
    attributes_of,
    slots_of,
)

_ARRAY_BYTES: Final = 64 << 20
_MOST_COMPARED: Final = 1 << 20
"""The maximum number of elements of a container that are compared. Larger containers are compared only at both ends."""
OF_EVERY_MODULE: Final = frozenset(vars(nn.Module())) - {"training", "_parameters", "_modules", "_buffers"}
"""The attributes in which every PyTorch module keeps its hooks."""


def node_of(
    path: str, value: Any, is_opened: Callable[[Any], bool], *, is_of_batch: bool = False
) -> ContentNode | None:
    """Return a record of an object. None if the object cannot change.

    Args:
        path: what error messages call the object.
        value: the object.
        is_opened: returns whether the attributes of an object are recorded.
        is_of_batch: whether the object is in a batch, where only containers, arrays and iterators are recorded.
    """
    if type(value) not in _USUAL:
        for kinds, make in _AS_STATE if is_of_batch else (*_AS_STATE, *_BY_TYPE):
            if isinstance(value, kinds):
                return make(path, value)
        node = _of_numpy(path, value)
        if node is None and not is_of_batch:
            node = _of_buffer(path, value)
        if node is not None:
            return node
    if isinstance(value, list | deque | set | bytearray | dict):
        if len(value) > FEW:
            return StateNode(path, value, partial(_elements_of, value), None, is_equal=_are_same_elements)
        return NamesNode(path, value) if isinstance(value, dict) else ElementsNode(path, value)
    is_iterator = hasattr(type(value), "__next__") or type(value) is SimpleQueue
    if is_iterator and not isinstance(value, MutableMapping):
        inside = partial(_inside_iterator, path, value)
        return StateNode(
            path, value, partial(_progress_of, value), None, is_equal=_is_same_place, children=inside, counts=True
        )
    return _opened(path, value) if is_opened(value) else None


def _opened(path: str, value: Any) -> ContentNode | None:
    if isinstance(getattr(value, "__dict__", None), dict):
        is_module = isinstance(value, nn.Module)
        counts = is_module or type(value).__module__.startswith("torch.")
        left_out = OF_EVERY_MODULE if is_module else frozenset[str]()
        return NamesNode(path, vars(value), is_of_attributes=True, left_out=left_out, counts=counts)
    return SlotsNode(path, value) if any(map(slots_of, type(value).__mro__)) else None


def _elements_of(container: Any) -> tuple[int, list[Any], list[int]]:
    length = len(container)
    if length > _MOST_COMPARED:
        ends = [next(iter(container)), next(reversed(container)) if hasattr(container, "__reversed__") else None]
        return length, ends, []
    elements = [*container, *(container.values() if isinstance(container, dict) else ())]
    return length, elements, [version_of(one) for one in elements if isinstance(one, torch.Tensor)]


def _are_same_elements(now: Any, saved: Any) -> bool:
    return now[0] == saved[0] and all(map(is_, now[1], saved[1])) and bool(now[2] == saved[2])


def _variable(path: str, cell: CellType) -> ContentNode:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return UNSET

    def write(content: Any) -> None:
        if content is UNSET:
            del cell.cell_contents
        else:
            cell.cell_contents = content

    return VariableNode(path, cell, read, write)


def _context_variable(path: str, variable: ContextVar[Any]) -> ContentNode:
    is_set = variable.get(UNSET) is not UNSET
    write = variable.set if is_set else None  # a variable without a value cannot lose its value again
    return VariableNode(path, variable, lambda: variable.get(UNSET), write, counts=True)


def _function(path: str, function: Any) -> ContentNode | None:
    if is_installed(function.func if isinstance(function, partial) else function):
        return None
    return StateNode(path, function, lambda: None, None, children=partial(_inside_function, path, function))


def _inside_function(path: str, function: Any) -> Children:
    if isinstance(function, partial):
        yield from ((path, one) for one in (function.func, function.args, function.keywords))
    elif isinstance(function, MethodType):
        yield from ((path, one) for one in (function.__self__, function.__func__))
    else:
        yield from zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        yield from ((path, one) for one in function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).items()
        yield from attributes_of(path, function)


class CacheNode(StateNode):
    """A record of a `functools.cache`. New entries are removed only if the cache was empty before."""

    def __init__(self, path: str, cache: Any) -> None:
        inside = lambda: iter([(path, cache.__wrapped__)])  # noqa: E731
        super().__init__(path, cache, cache.cache_info, None, is_equal=_is_same_cache, children=inside)

    @property
    def is_reported_only(self) -> bool:
        return True

    def put_back(self) -> bool:
        if self.saved.currsize == 0:
            self.value.cache_clear()
        return True


def _is_same_cache(now: Any, saved: Any) -> bool:
    return bool(now.misses == saved.misses)


def _attributes(path: str, value: Any) -> ContentNode:
    return NamesNode(path, vars(value), is_of_attributes=True)


def _weak_dictionary(path: str, value: Any) -> ContentNode:
    return NamesNode(path, value.__dict__["data"])


def _script(path: str, value: Any) -> ContentNode | None:
    # the attributes of a TorchScript module are stored in C++
    if not hasattr(value, "_concrete_type"):
        return None
    apart = {name for some in (value._parameters, value._buffers) for name, _ in some.items()}
    names = [name for name in value._concrete_type.get_attributes() if name not in apart]

    def read() -> dict[str, Any]:
        return {name: value._c.getattr(name) for name in names}

    def write(saved: dict[str, Any]) -> None:
        for name, before in saved.items():
            value._c.setattr(name, before)

    def is_equal(now: dict[str, Any], saved: dict[str, Any]) -> bool:
        return all(
            one is before or (not isinstance(one, torch.Tensor) and type(one) is type(before) and one == before)
            for one, before in zip(now.values(), saved.values(), strict=True)
        )

    def children() -> Children:
        every = [*read().items(), *value._buffers.items()]
        return ((f"{path}.{name}", one) for name, one in every if isinstance(one, torch.Tensor))

    return StateNode(path, value, read, write, is_equal=is_equal, children=children, counts=True)


def _optimizer(path: str, optimizer: Optimizer) -> ContentNode:
    # its settings are restored, but a step of the optimizer cannot be undone
    def read() -> Any:
        tensors = list(_tensors_in(list(optimizer.state.values())))
        own = [one for one in list(vars(optimizer).values()) if isinstance(one, int | float)]
        return tensors, [*map(version_of, tensors), *own]

    inside = lambda: iter([(path, optimizer.param_groups)])  # noqa: E731
    return StateNode(path, optimizer, read, None, is_equal=_are_same_tensors, children=inside, counts=True)


def foreign_node_of(path: str, value: Any) -> ContentNode:
    """Return a record of an object from an installed package. Only tensors in its attributes are recorded."""

    def read() -> Any:
        tensors: list[torch.Tensor] = []
        for one in list(vars(value).values()):
            if isinstance(one, list | tuple | dict) and 0 < len(one) <= FEW:
                first = next(iter(one.values() if isinstance(one, dict) else one))
                tensors += _tensors_in(one, _DEEPEST) if isinstance(first, torch.Tensor) else ()
            elif isinstance(one, torch.Tensor):
                tensors.append(one)
        return tensors, list(map(version_of, tensors))

    return StateNode(path, value, read, None, is_equal=_are_same_tensors, counts=True)


def _are_same_tensors(now: Any, saved: Any) -> bool:
    return len(now[0]) == len(saved[0]) and all(map(is_, now[0], saved[0])) and bool(now[1] == saved[1])


def _tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict) and depth <= _DEEPEST:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(one, depth + 1)


_DEEPEST: Final = 3


def gradient_node_of(path: str, tensor: torch.Tensor) -> ContentNode | None:
    """Return a record of the gradient of a tensor that is not a parameter, such as an attacked image."""
    if not (tensor.requires_grad and tensor.is_leaf):
        return None
    is_copied = not isinstance(tensor, nn.Parameter) and tensor.nbytes <= SMALL_BYTES

    def read() -> Any:
        gradient = tensor.grad
        return [] if gradient is None else [gradient], [-1 if gradient is None or is_copied else version_of(gradient)]

    def write(saved: Any) -> None:
        tensor.grad = saved[0][0] if saved[0] else None

    def children() -> Children:
        return iter([(f"{path}.grad", tensor.grad)] if is_copied and tensor.grad is not None else ())

    return StateNode(f"{path}.grad", tensor, read, write, is_equal=_are_same_tensors, children=children)


def _dataset(path: str, value: Any) -> ContentNode | None:
    return None if is_installed(type(value)) or not hasattr(value, "__dict__") else _Dataset(path, value)


class _Dataset(NamesNode):
    # large arrays of a user's dataset are left out
    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path, vars(value), is_of_attributes=True)

    def children(self) -> Children:
        for path, element in super().children():
            if getattr(element, "nbytes", SMALL_BYTES + 1) <= SMALL_BYTES or isinstance(element, torch.Tensor):
                yield path, element


def _of_numpy(path: str, value: Any) -> ContentNode | None:
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


def _of_buffer(path: str, value: Any) -> ContentNode | None:
    # arrays of Python, ctypes and multiprocessing; an array of Python objects is not copied as bytes
    value = value.get_obj() if hasattr(value, "get_obj") else value
    try:
        memory = memoryview(value)
        is_fixed = memory.readonly or memory.nbytes > _ARRAY_BYTES or "O" in memory.format
    except TypeError:
        return None
    if is_fixed:
        return None

    def write(saved: bytes) -> None:
        memoryview(value).cast("B")[:] = saved

    return StateNode(path, value, lambda: bytes(memoryview(value)), write, counts=True)


def _generator_of_python(path: str, value: random.Random) -> ContentNode | None:
    return None if value is random._inst else StateNode(path, value, value.getstate, value.setstate)


def _generator_of_torch(path: str, value: torch.Generator) -> ContentNode:
    return StateNode(path, value, value.get_state, value.set_state)


def _progress_of(iterator: Any) -> Any:
    if isinstance(iterator, GeneratorType):
        frame = iterator.gi_frame
        return None if frame is None else (frame.f_lasti, *frame.f_locals.values())
    if isinstance(iterator, count):
        return repr(iterator)
    if hasattr(iterator, "_num_yielded"):  # iterators of PyTorch's DataLoader
        return iterator._num_yielded
    if hasattr(iterator, "qsize"):
        return iterator.qsize()
    if type(iterator) in _AROUND_OTHERS:
        return iterator.__reduce__()[1][1] if type(iterator) is enumerate else 0
    if isinstance(iterator, io.IOBase):
        return _place_in(iterator)
    try:
        return operator.length_hint(iterator, -1)
    except Exception:
        return -1


def _is_same_place(now: Any, saved: Any) -> bool:
    if now == -1:
        return False  # the progress is not known
    if isinstance(now, tuple) and isinstance(saved, tuple):
        return len(now) == len(saved) and now[0] == saved[0] and all(map(is_, now[1:], saved[1:]))
    return type(now) is type(saved) and not isinstance(now, tuple) and bool(now == saved)


def _inside_iterator(path: str, iterator: Any) -> Children:
    if isinstance(iterator, GeneratorType) and iterator.gi_frame is not None:
        # A generator may be at the same line with the same variables although one of these variables, an iterator, has
        # advanced.
        yield from ((f"{path}.{name}", inner) for name, inner in iterator.gi_frame.f_locals.items())
        yield path, iterator.gi_yieldfrom
    elif type(iterator) in _AROUND_OTHERS:
        yield from ((path, inner) for inner in iterator.__reduce__()[1])
    elif hasattr(iterator, "_sampler_iter"):
        # a loader that fails in the middle of a fetch has advanced its sampler without counting the batch
        yield path, iterator._sampler_iter


# The types of iterators that contain another iterator and advance it, such as `zip` and `map`.
_AROUND_OTHERS: Final = (zip, map, filter, enumerate)


def _place_in(file: io.IOBase) -> int:
    # 0 for a file that is only written, -1 if the position is unknown
    try:
        return file.tell() if file.readable() and file.seekable() else 0
    except OSError:  # the file is being read line by line
        return -1
    except ValueError:  # the file is closed
        return 0


_USUAL: Final = frozenset((dict, list, set))
"""The types of most objects, which need no look at the following tables."""
_Maker = Callable[[str, Any], ContentNode | None]
_AS_STATE: Final[tuple[tuple[Any, _Maker], ...]] = (
    (CellType, _variable),
    (torch.Generator, _generator_of_torch),
    (random.Random, _generator_of_python),
)
_BY_TYPE: Final[tuple[tuple[Any, _Maker], ...]] = (
    (FunctionType | MethodType | partial, _function),
    (functools._lru_cache_wrapper, CacheNode),
    (Optimizer, _optimizer),
    (argparse.Namespace | threading.local, _attributes),
    (weakref.WeakKeyDictionary | weakref.WeakValueDictionary, _weak_dictionary),
    (torch.jit.ScriptModule, _script),
    (ContextVar, _context_variable),
    (Dataset | Sampler, _dataset),
)
