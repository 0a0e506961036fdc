"""What Python objects hold, recorded so that it can be compared and put back: attributes, elements, the values of
tensors, arrays and generators, and how far an iterator has come.

A record is shallow for each object and follows references from one to the next, so what a step rebinds, appends or
counts is found without a copy of anything large. Objects of libraries that have state of their own (loaders,
optimizers, trainers, threads) are left alone.
"""

import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, MutableMapping, Sequence
from itertools import count, islice
from operator import is_
from queue import SimpleQueue
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from ullage.guard.copies import Copies

_FEW: Final = 4096
"""The number of elements up to which a container is recorded element by element; of a larger one, its length and ends
are compared."""
_MOST: Final = 20_000
"""The number of objects of one record; what lies beyond is not recorded."""
_DEEPEST: Final = 12
_ARRAY_BYTES: Final = 64 << 20
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size)
_NOT_OPENED: Final = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    DataLoader,
    Dataset,
    Sampler,
    torch.optim.Optimizer,
)
_CLOSED: Final = (sys.stdlib_module_names - {"collections", "functools", "queue", "types"}) | {
    "accelerate",
    "deepspeed",
    "lightning",
    "lightning_fabric",
    "mlflow",
    "numpy",
    "pytorch_lightning",
    "torch",
    "ullage",
    "wandb",
}
"""Packages whose objects are not opened. A module of PyTorch's is opened nevertheless."""
_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module())) - {"training", "_parameters", "_modules", "_buffers"}
"""Attributes that every module has for its hooks, which `flags` puts back."""

_OF_PLAIN_MODULE: Final = frozenset(vars(nn.Module()))


class Contents:
    """A record of what is reachable from some objects, at one moment."""

    def __init__(
        self,
        *known: Container[int],
        copies: bool = True,
        is_foreign_opened: bool = True,
        changing: set[str] | None = None,
        lively: Container[str] = (),
        are_numbers_kept: bool = True,
    ) -> None:
        """Make an empty record.

        Args:
            known: the `id`s of objects that are recorded elsewhere, and are not entered.
            copies: whether the values of small tensors are copied; else a write to one is noticed, not undone.
            is_foreign_opened: whether the attributes of objects of installed packages are recorded.
            changing: the names of large tensors that are copied too.
            lively: the names of objects that are recorded, while what they refer to is not entered.
            are_numbers_kept: whether containers count in which nothing has changed but numbers, texts and the like;
                else only changes count that have to do with tensors, arrays and modules.
        """
        self._known = known
        self._is_foreign_opened = is_foreign_opened
        self._lively = lively
        self._are_numbers_kept = are_numbers_kept
        self.seen: set[int] = set()
        self.nodes: list[ContentNode] = []
        self.tensors = Copies(changing, is_copying=copies)

    @classmethod
    def reachable(cls, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield an object and every other that it refers to, each once and with its name."""
        contents = cls(copies=False)
        return contents._entered(path, value)

    def add(self, path: str, value: Any) -> None:
        """Record an object and what it refers to, under a name that an error may tell."""
        deque(self._entered(path, value), maxlen=0)

    def add_name(self, path: str, namespace: dict[str, Any], name: str) -> None:
        """Record what a name stands for, and the object."""
        self.nodes.append(_Name(path, namespace, name))
        self.add(path, namespace[name])

    def add_class(self, path: str, owner: type) -> None:
        """Record the attributes of a class, and the objects."""
        if id(owner) not in self.seen:
            self.seen.add(id(owner))
            node = _Class.of(path, owner)
            self.nodes.append(node)
            for name, element in node.children():
                self.add(name, element)

    def _entered(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        waiting = [(path, value, 0)]
        while waiting:
            name, one, depth = waiting.pop()
            if isinstance(one, _ATOMS) or id(one) in self.seen or any(id(one) in known for known in self._known):
                continue
            if len(self.nodes) >= _MOST or depth > _DEEPEST:
                return
            self.seen.add(id(one))
            yield name, one
            if isinstance(one, torch.Tensor):
                self.tensors.add(name, one)
                continue
            node = _node_of(name, one, self._is_opened)
            if node is not None:
                self.nodes.append(node)
                if name not in self._lively:
                    waiting += [(inner, element, depth + 1) for inner, element in node.children()]

    def _is_opened(self, value: Any) -> bool:
        if isinstance(value, nn.Module):
            return True
        if isinstance(value, _NOT_OPENED):
            return False
        home = type(value).__module__ or ""
        if home.partition(".")[0] in _CLOSED:
            return False
        if self._is_foreign_opened:
            return True
        return "site-packages" not in (getattr(sys.modules.get(home), "__file__", None) or "")

    def changed(self) -> list[str]:
        """Return the names of what is not as it was recorded."""
        return [name for node in self._other_nodes() for name in node.names()] + self.tensors.changed()

    def left_alone(self) -> list[str]:
        """Return the names of what has changed and does not count, because it is numbers, texts and the like."""
        if self._are_numbers_kept:
            return []
        counted = set(map(id, self._other_nodes()))
        return [node.path for node in self.nodes if id(node) not in counted and not node.is_same()]

    def _other_nodes(self) -> "list[ContentNode]":
        others = [node for node in self.nodes if not node.is_same()]
        return others if self._are_numbers_kept else [node for node in others if any(map(_has_tensors, node.other()))]

    def restore(self) -> list[str]:
        """Put everything back; return the names of what has changed and cannot be put back."""
        lost = [node.path for node in self._other_nodes() if not node.put_back()]
        return lost + self.tensors.restore()

    def mark(self) -> Callable[[], list[str]]:
        """Return a function that puts back what is recorded now, even after later records."""
        kept = [(node, node.saved) for node in self.nodes]
        put_tensors = self.tensors.mark()

        def restore() -> list[str]:
            for node, saved in kept:
                node.saved = saved
            return [node.path for node in self._other_nodes() if not node.put_back()] + put_tensors()

        return restore


class WatchedContents:
    """What some objects hold, recorded again and again: at little cost where nothing has changed."""

    def __init__(self, roots: Sequence[tuple[str, Any]], known: Container[int]) -> None:
        """Take objects with their names, and the `id`s of those that are recorded elsewhere."""
        self._roots = roots
        self._known = known
        self._lively: set[str] = set()
        """The names of objects that were seen to refer to others than before."""
        self._counting: set[str] = set()
        """The names of objects that were seen to have other numbers than before."""
        self._changing: set[str] = set()
        self._lasting = self._made(self._lively)
        self._passing = Contents()

    def _made(self, lively: set[str]) -> Contents:
        contents = Contents(self._known, changing=self._changing, lively=lively)
        for path, value in self._roots:
            contents.add(path, value)
        return contents

    def record(self) -> None:
        """Record everything as it is now."""
        found = [node for node in self._lasting.nodes if not node.is_same()]
        new = {node.path for node in found if node.path not in self._lively and not node.has_new_numbers_only()}
        if new:
            self._lasting = self._made(self._lively | new)
            self._lively |= new
        else:
            for node in found:
                node.record()
        self._counting.update(node.path for node in found)
        self._lasting.tensors.record()
        self._passing = Contents()
        if self._lively:
            self._passing = Contents(self._known, self._lasting.seen, changing=self._changing)
            for node in self._lasting.nodes:
                if node.path in self._lively:
                    for path, element in node.children():
                        self._passing.add(path, element)

    def settle(self) -> None:
        """Drop what the objects held before the step."""
        if self._counting:
            for node in self._lasting.nodes:
                if node.path in self._counting:
                    node.record()
        self._lasting.tensors.settle()
        self._passing.tensors.settle()
        self._passing = Contents()

    def uncopied(self) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors of which there is no copy."""
        return self._lasting.tensors.uncopied() + self._passing.tensors.uncopied()

    def changed(self) -> list[str]:
        """Return the names of what is not as it was recorded."""
        return self._lasting.changed() + self._passing.changed()

    def restore(self) -> list[str]:
        """Put everything back; return the names of what has changed and cannot be put back."""
        return self._lasting.restore() + self._passing.restore()

    def mark(self) -> Callable[[], list[str]]:
        """Return a function that puts back what is recorded now, even after later records."""
        both = [self._lasting.mark(), self._passing.mark()]
        return lambda: [name for restore in both for name in restore()]


class ContentNode:
    """One object's record."""

    def __init__(self, path: str, value: Any) -> None:
        self.path = path
        self.value = value
        self.saved: Any = None
        self.record()

    def record(self) -> None:
        self.saved = self.read()

    def read(self) -> Any:
        raise NotImplementedError

    def is_same(self) -> bool:
        raise NotImplementedError

    def put_back(self) -> bool:
        raise NotImplementedError

    def names(self) -> list[str]:
        return [self.path]

    def other(self) -> list[Any]:
        """Return what it refers to and did not before, and what it did before and does not now; itself if it has a
        state that it tells."""
        return [self.value]

    def has_new_numbers_only(self) -> bool:
        """Tell whether it refers to the same objects as before, but for numbers and texts."""
        return all(isinstance(one, _ATOMS) for one in self.other())

    def children(self) -> Iterator[tuple[str, Any]]:
        return iter(())


class _Dict(ContentNode):
    """A dictionary, or the attributes of an object."""

    def __init__(self, path: str, value: Any, *, is_of_attributes: bool, left_out: frozenset[str]) -> None:
        self._text = "{}.{}" if is_of_attributes else "{}[{!r}]"
        self._left_out = left_out
        super().__init__(path, value)

    def read(self) -> Any:
        return dict(self.value)

    def is_same(self) -> bool:
        now, saved = self.value, self.saved
        return (
            len(now) == len(saved) and all(map(is_, now.values(), saved.values())) and all(map(is_, now.keys(), saved))
        )

    def put_back(self) -> bool:
        now, saved = self.value, self.saved
        for key in [key for key in now if key not in saved]:
            del now[key]
        for key, element in saved.items():
            if key not in now or now[key] is not element:
                now[key] = element
        if not all(map(is_, now.keys(), saved)) and type(now) is not dict:
            now.clear()  # its order says something
            now.update(saved)
        return True

    def names(self) -> list[str]:
        now, saved = self.value, self.saved
        keys = [key for key in saved if key not in now or now[key] is not saved[key]]
        keys += [key for key in now if key not in saved]
        return [self._text.format(self.path, key) for key in keys if key not in self._left_out] or [self.path]

    def other(self) -> list[Any]:
        now, saved = self.value, self.saved
        keys = [key for key in {**saved, **now} if key not in now or key not in saved or now[key] is not saved[key]]
        return [some[key] for key in keys for some in (now, saved) if key in some]

    def children(self) -> Iterator[tuple[str, Any]]:
        for key, element in self.saved.items():
            if key not in self._left_out:
                yield self._text.format(self.path, key), element


class _Class(_Dict):
    """The attributes of a class."""

    def put_back(self) -> bool:
        now, saved = self.value, self.saved
        for name in [name for name in now if name not in saved]:
            delattr(self.owner, name)
        for name, element in saved.items():
            if now.get(name) is not element:
                setattr(self.owner, name, element)
        return True

    @classmethod
    def of(cls, path: str, owner: type) -> "_Class":
        """Make the record of a class."""
        made = cls(path, vars(owner), is_of_attributes=True, left_out=frozenset(("__dict__", "__weakref__")))
        made.owner = owner
        return made

    owner: type


class _Slots(ContentNode):
    """The attributes of an object without a dictionary."""

    def other(self) -> list[Any]:
        return _others(self.read().values(), self.saved.values())

    def read(self) -> Any:
        names = dict.fromkeys(name for kind in type(self.value).__mro__ for name in _slots_of(kind))
        return {name: getattr(self.value, name) for name in names if hasattr(self.value, name)}

    def is_same(self) -> bool:
        now = self.read()
        return now.keys() == self.saved.keys() and all(now[name] is self.saved[name] for name in now)

    def put_back(self) -> bool:
        for name in self.read().keys() - self.saved.keys():
            object.__delattr__(self.value, name)
        for name, element in self.saved.items():
            object.__setattr__(self.value, name, element)
        return True

    def children(self) -> Iterator[tuple[str, Any]]:
        for name, element in self.saved.items():
            yield f"{self.path}.{name}", element


class _Elements(ContentNode):
    """A list, a tuple, a queue, a set or an array of bytes."""

    def other(self) -> list[Any]:
        return _others(self.value, self.saved)

    def read(self) -> Any:
        return tuple(self.value)

    def is_same(self) -> bool:
        return len(self.value) == len(self.saved) and all(map(is_, self.value, self.saved))

    def put_back(self) -> bool:
        if isinstance(self.value, list | bytearray):
            self.value[:] = self.saved
        elif isinstance(self.value, deque):
            self.value.clear()
            self.value.extend(self.saved)
        elif isinstance(self.value, set):
            self.value.clear()
            self.value.update(self.saved)
        return True

    def children(self) -> Iterator[tuple[str, Any]]:
        for index, element in enumerate(self.saved):
            yield f"{self.path}[{index}]", element


class _Large(ContentNode):
    """A container of many elements, of which the length and the ends are compared."""

    def read(self) -> Any:
        first = next(iter(self.value))
        last = next(reversed(self.value)) if hasattr(self.value, "__reversed__") else None
        return len(self.value), first, last

    def is_same(self) -> bool:
        length, first, last = self.read() if len(self.value) else (0, None, None)
        return length == self.saved[0] and first is self.saved[1] and last is self.saved[2]

    def put_back(self) -> bool:
        return False


class _Name(ContentNode):
    """What a name stands for in a namespace, such as a module's global variable."""

    def __init__(self, path: str, namespace: dict[str, Any], name: str) -> None:
        self._name = name
        super().__init__(path, namespace)

    def read(self) -> Any:
        return self.value.get(self._name)

    def is_same(self) -> bool:
        return self.value.get(self._name) is self.saved

    def other(self) -> list[Any]:
        return [self.value.get(self._name), self.saved]

    def put_back(self) -> bool:
        self.value[self._name] = self.saved
        return True


class _Cell(ContentNode):
    """A variable of a function around the one that uses it."""

    def read(self) -> Any:
        return _content_of(self.value)

    def is_same(self) -> bool:
        return _content_of(self.value) is self.saved

    def other(self) -> list[Any]:
        return [_content_of(self.value), self.saved]

    def put_back(self) -> bool:
        if self.saved is _EMPTY:
            del self.value.cell_contents
        else:
            self.value.cell_contents = self.saved
        return True

    def children(self) -> Iterator[tuple[str, Any]]:
        if self.saved is not _EMPTY:
            yield self.path, self.saved


class _OfState(ContentNode):
    """An object that tells its state, and takes it: a generator of random numbers, an array."""

    def __init__(self, path: str, value: Any, state_of: Callable[[], Any], set_state: Callable[[Any], Any]) -> None:
        self._state_of, self._set_state = state_of, set_state
        super().__init__(path, value)

    def read(self) -> Any:
        return self._state_of()

    def is_same(self) -> bool:
        return _is_equal(self._state_of(), self.saved)

    def put_back(self) -> bool:
        self._set_state(self.saved)
        return True


class _Progress(ContentNode):
    """An iterator: how far it has come can be seen, and not undone."""

    def read(self) -> Any:
        one = self.value
        if isinstance(one, GeneratorType):
            frame = one.gi_frame
            return None if frame is None else (frame.f_lasti, *frame.f_locals.values())
        if isinstance(one, count):
            return repr(one)
        if hasattr(one, "_num_yielded"):  # PyTorch's loaders
            return one._num_yielded
        if hasattr(one, "qsize"):
            return one.qsize()
        try:
            return operator.length_hint(one, -1)
        except Exception:
            return -1

    def is_same(self) -> bool:
        now, saved = self.read(), self.saved
        if now == -1:
            return False  # it cannot be told
        if isinstance(now, tuple) and isinstance(saved, tuple):
            return len(now) == len(saved) and now[0] == saved[0] and all(map(is_, now[1:], saved[1:]))
        return type(now) is type(saved) and not isinstance(now, tuple) and bool(now == saved)

    def put_back(self) -> bool:
        return False


_EMPTY: Final = object()


def _others(now: Iterable[Any], saved: Iterable[Any]) -> list[Any]:
    """Return what is only in one of two collections."""
    ours, theirs = {id(one): one for one in now}, {id(one): one for one in saved}
    return [one for some, other in ((ours, theirs), (theirs, ours)) for key, one in some.items() if key not in other]


def _has_tensors(value: Any) -> bool:
    """Tell whether a change of this is one of tensors, or of what can be consumed."""
    if isinstance(value, list | tuple | deque | set):
        return any(map(_has_tensors, islice(value, _FEW)))
    if isinstance(value, dict):
        return any(map(_has_tensors, islice(value.values(), _FEW)))
    return isinstance(value, torch.Tensor | nn.Module | torch.Generator | random.Random | Iterator) or (
        type(value).__module__.partition(".")[0] == "numpy"
    )


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__"))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    if hasattr(one, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)


def has_own_attributes(module: nn.Module) -> bool:
    """Tell whether a module has attributes that a forward might change, beside parameters, buffers and settings."""
    is_container = type(module) in (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    own = [value for name, value in vars(module).items() if name not in _OF_PLAIN_MODULE]
    return bool(own) and (is_container or not all(map(_is_setting, own)))


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_setting, value))
    return isinstance(value, _ATOMS) or callable(value)


def _node_of(path: str, value: Any, is_opened: Callable[[Any], bool]) -> ContentNode | None:
    """Return the record of an object that can change; None for all others."""
    stateful = _stateful_of(path, value)
    if stateful is not None:
        return stateful
    if isinstance(value, list | tuple | deque | set | bytearray | MutableMapping):
        if isinstance(value, MutableMapping) and not isinstance(value, dict):
            return _opened(path, value, is_opened)
        if len(value) > _FEW:
            return _Large(path, value)
        if isinstance(value, dict):
            return _Dict(path, value, is_of_attributes=False, left_out=frozenset())
        return _Elements(path, value)
    if hasattr(type(value), "__next__") or type(value) is SimpleQueue:
        return _Progress(path, value)
    return _opened(path, value, is_opened)


def _opened(path: str, value: Any, is_opened: Callable[[Any], bool]) -> ContentNode | None:
    if not is_opened(value):
        return None
    if isinstance(getattr(value, "__dict__", None), dict):
        left_out = _OF_EVERY_MODULE if isinstance(value, nn.Module) else frozenset[str]()
        return _Dict(path, vars(value), is_of_attributes=True, left_out=left_out)
    return _Slots(path, value) if any(map(_slots_of, type(value).__mro__)) else None


def _stateful_of(path: str, value: Any) -> ContentNode | None:
    if isinstance(value, CellType):
        return _Cell(path, value)
    if isinstance(value, torch.Generator):
        return _OfState(path, value, value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return None if value is random._inst else _OfState(path, value, value.getstate, value.setstate)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        if value.dtype.hasobject or value.nbytes > _ARRAY_BYTES:
            return None
        return _OfState(path, value, value.copy, lambda saved: numpy.copyto(value, saved))
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return _OfState(path, value, lambda: bits.state, lambda saved: setattr(bits, "state", saved))
    if isinstance(value, numpy.random.RandomState):
        return _OfState(path, value, lambda: value.get_state(legacy=False), value.set_state)
    return None
