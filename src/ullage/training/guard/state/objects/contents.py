"""Records Python objects and everything that they refer to, detects changes, and undoes them.

Each object is recorded without copies of large objects. Objects of libraries, such as data loaders and threads, are not
recorded.
"""

import copy
import io
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Container, Iterator, Sequence
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Self

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ullage.base.errors import UsageError
from ullage.training.guard.state.copies import SMALL_BYTES, Copies
from ullage.training.guard.state.objects.content_node import (
    ATOMS,
    ClassNode,
    ContentNode,
    DictNode,
    ReferenceNode,
    SlotsNode,
    has_tensors,
)
from ullage.training.guard.state.objects.node_of import (
    ForeignNode,
    FunctionNode,
    GradientNode,
    is_installed,
    node_of,
    odd_node_of,
)

# The maximum number of objects in one record. The remaining objects are ignored.
_MOST: Final = 20_000
_DEEPEST: Final = 12
_NOT_OPENED: Final = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    DataLoader,
    Dataset,
    Sampler,
)
# Built-in types of Python. Their objects have no code, and no attributes that have to be recorded.
_PLAIN: Final = frozenset((CellType, ModuleType, dict, list, tuple, set))
# PyTorch types that a training loop steps, such as schedulers. The attributes of these objects are recorded, unlike
# those of other PyTorch objects.
_OF_TRAINING: Final = (torch.optim.lr_scheduler.LRScheduler, GradScaler)
# The packages whose objects are not searched for more objects. PyTorch modules are an exception: they are searched.
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
_OF_PLAIN_MODULE: Final = frozenset(vars(nn.Module()))


_STREAMS: Final = (Iterator, AsyncIterator, Awaitable, io.IOBase, DataLoader, IterableDataset)
_QUEUE: Final = ("get", "put", "empty")
_FILE: Final = ("read", "close")
_CONNECTION: Final = ("recv", "send")


class Contents:
    """A record of some Python objects and everything that they refer to."""

    def __init__(
        self,
        *known: Container[int],
        is_of_batch: bool = False,
        is_foreign_opened: bool = True,
        changing: set[str] | None = None,
        lively: Container[str] = (),
        are_numbers_kept: bool = True,
    ) -> None:
        """Create an empty record.

        Args:
            known: the `id`s of objects that are recorded elsewhere and are not followed.
            is_of_batch: whether the objects are a batch. Then a write to a tensor is detected but not undone, because
                tensors are not copied, and variables of functions and attributes of classes are not recorded.
            is_foreign_opened: whether the attributes of objects from installed packages are recorded.
            changing: the names of large tensors that are copied too.
            lively: the names of objects that are recorded without following their references.
            are_numbers_kept: whether a change counts if only numbers, texts and similar values have changed. If false,
                only changes that involve tensors, arrays or modules count.
        """
        self._known = known
        self._is_foreign_opened = is_foreign_opened
        self._lively = lively
        self._are_numbers_kept = are_numbers_kept
        self._is_of_batch = is_of_batch
        self.seen: set[int] = set()
        self.nodes: list[ContentNode] = []
        self.classes: list[type] = []
        self.tensors = Copies(changing, is_copying=not is_of_batch)

    def add(self, path: str, value: Any) -> None:
        """Record an object and everything that it refers to. Error messages call the object `path`."""
        deque(self.entered(path, value), maxlen=0)

    def add_name(self, path: str, namespace: dict[str, Any], name: str) -> None:
        """Record the value of a variable, so that new assignments to it are detected."""
        read, write = partial(namespace.get, name), partial(namespace.__setitem__, name)
        self.nodes.append(ReferenceNode(path, namespace, read, write))
        self.add(path, namespace[name])

    def add_class(self, path: str, owner: type) -> None:
        """Record the attributes of a class, and everything that they refer to."""
        if id(owner) not in self.seen:
            self.seen.add(id(owner))
            self.classes.append(owner)
            node = ClassNode(path, owner)
            self.nodes.append(node)
            for name, element in node.children():
                self.add(name, element)

    def entered(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Record an object and everything that it refers to. Yield each recorded object with its name."""
        waiting = [(path, value, 0)]
        while waiting:
            name, one, depth = waiting.pop()
            if isinstance(one, ATOMS) or id(one) in self.seen or any(id(one) in known for known in self._known):
                continue
            if len(self.nodes) >= _MOST:
                return
            if depth > _DEEPEST:
                continue
            self.seen.add(id(one))
            yield name, one
            if isinstance(one, torch.Tensor):
                self.tensors.add(name, one)
                node: ContentNode | None = _gradient_of(name, one)
                if not self._is_of_batch and not isinstance(one, nn.Parameter):
                    waiting.append((name, one.__dict__, depth + 1))
            else:
                node = self._node_of(name, one)
            if node is not None:
                self.nodes.append(node)
                if name not in self._lively:
                    deeper = depth if isinstance(node, FunctionNode) or type(node) is ReferenceNode else depth + 1
                    waiting += [(inner, element, deeper) for inner, element in node.children()]

    def _node_of(self, name: str, value: Any) -> ContentNode | None:
        kind = type(value)
        if self._is_of_batch or kind in _PLAIN:
            return node_of(name, value, self._is_opened)
        odd = odd_node_of(name, value)
        if odd is not None:
            return odd
        node = node_of(name, value, self._is_opened)
        if node is None and self._is_foreign(value):
            return ForeignNode(name, value)
        if isinstance(node, DictNode | SlotsNode):
            for one in kind.__mro__:
                if id(one) not in self.seen and not is_installed(one):
                    self.add_class(one.__name__, one)
        return node

    def _is_opened(self, value: Any) -> bool:
        if isinstance(value, nn.Module):
            return True
        if isinstance(value, _NOT_OPENED):
            return False
        if isinstance(value, _OF_TRAINING):
            return True
        home = type(value).__module__ or ""
        if home.partition(".")[0] in _CLOSED:
            return False
        if self._is_foreign_opened:
            return True
        return "site-packages" not in (getattr(sys.modules.get(home), "__file__", None) or "")

    def _is_foreign(self, value: Any) -> bool:
        if self._is_foreign_opened or isinstance(value, _NOT_OPENED) or not hasattr(value, "__dict__"):
            return False
        return (type(value).__module__ or "").partition(".")[0] not in _CLOSED

    def changed(self) -> list[str]:
        """Return the names of the objects and tensors that have changed."""
        return [name for node in self._other_nodes() for name in node.names()] + self.tensors.changed()

    def left_alone(self) -> list[str]:
        """Return the names of objects that the guard does not restore, because only numbers and strings in them
        differ.
        """
        if self._are_numbers_kept:
            return []
        counted = set(map(id, self._other_nodes()))
        return [
            node.path for node in self.nodes if id(node) not in counted and not node.is_only_told and not node.is_same()
        ]

    def only_told(self) -> list[str]:
        """Return the names of `functools` caches that have new entries. The guard does not remove these entries."""
        return [node.path for node in self.nodes if node.is_only_told and not node.is_same()]

    def _other_nodes(self) -> "list[ContentNode]":
        others = [node for node in self.nodes if not node.is_only_told and not node.is_same()]
        if self._are_numbers_kept:
            return others
        return [node for node in others if node.always_counts or any(map(has_tensors, node.other()))]

    def restore(self) -> list[str]:
        """Restore all recorded objects. Return the names of changed objects that cannot be restored."""
        lost = [node.path for node in self._other_nodes() if not node.put_back()]
        for node in self.nodes:
            if node.is_only_told:
                node.put_back()
        return lost + self.tensors.restore()

    def kept(self) -> Self:
        """Return a copy of this record, which later changes do not affect."""
        kept = copy.copy(self)
        kept.nodes, kept.tensors = list(map(copy.copy, self.nodes)), self.tensors.kept()
        return kept


NOTHING: Final = Contents()
"""A record without any objects."""


class WatchedContents:
    """A record of Python objects that is updated in every step. An update is fast if nothing has changed."""

    def __init__(self, roots: Sequence[tuple[str, Any]], known: Container[int]) -> None:
        self._roots = roots
        self._known = known
        self._lively: set[str] = set()
        self._counting: set[str] = set()
        self._changing: set[str] = set()
        self._lasting = self._made(self._lively)
        self._is_empty = not self._lasting.nodes and self._lasting.tensors.is_empty
        self._passing = NOTHING

    def _made(self, lively: set[str]) -> Contents:
        contents = Contents(self._known, changing=self._changing, lively=lively)
        for path, value in self._roots:
            contents.add(path, value)
        return contents

    def record(self) -> None:
        """Record the current state of the objects."""
        if self._is_empty:
            return
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
        self._passing = NOTHING
        if self._lively:
            self._passing = Contents(self._known, self._lasting.seen, changing=self._changing)
            for node in self._lasting.nodes:
                if node.path in self._lively:
                    for path, element in node.children():
                        self._passing.add(path, element)

    def settle(self) -> None:
        """Drop the recorded state, because the step has succeeded."""
        if self._is_empty:
            return
        if self._counting:
            for node in self._lasting.nodes:
                if node.path in self._counting:
                    node.record()
        self._lasting.tensors.settle()
        self._passing.tensors.settle()
        self._passing = NOTHING

    @property
    def records(self) -> tuple[Contents, Contents]:
        """Two parts of this record: objects that stay the same in all steps, and objects of the current step."""
        return self._lasting, self._passing

    def kept(self) -> Self:
        """Return a copy of this record, which later calls of `record()` do not change."""
        kept = copy.copy(self)
        kept._lasting = self._lasting.kept()  # each record creates a new `_passing`
        return kept


def has_own_attributes(module: nn.Module) -> bool:
    """Return whether a module has other attributes than parameters, buffers and settings."""
    is_container = type(module) in (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    own = [value for name, value in vars(module).items() if name not in _OF_PLAIN_MODULE]
    return bool(own) and (is_container or not all(map(_is_setting, own)))


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_setting, value))
    return isinstance(value, ATOMS) or (callable(value) and odd_node_of("", value) is None)


def _gradient_of(path: str, tensor: torch.Tensor) -> GradientNode | None:
    if not (tensor.requires_grad and tensor.is_leaf):
        return None
    is_copied = not isinstance(tensor, nn.Parameter) and tensor.nbytes <= SMALL_BYTES
    return GradientNode(f"{path}.grad", tensor, is_copied=is_copied)


def refuse_consumables(batch: Any) -> None:
    """Raise an error if a batch contains an object that can be read only once.

    Raises:
        UsageError: the batch has an iterator, a generator, a file, a queue, a data loader or a stream.
    """
    for path, value in Contents(is_of_batch=True).entered("batch", batch):
        if _is_consumable(value):
            raise UsageError(
                f"{path} is of type {type(value).__qualname__}, which can be read only once, so a step that runs out "
                "of memory could not be retried; expected tensors, and containers that can be read twice: convert it "
                "to a list first"
            )


def _is_consumable(value: Any) -> bool:
    if isinstance(value, _STREAMS):
        return True
    kind = type(value)
    if kind.__module__ == "builtins":
        return False
    return any(all(callable(getattr(kind, name, None)) for name in names) for names in (_QUEUE, _FILE, _CONNECTION))
