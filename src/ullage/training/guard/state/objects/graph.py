"""Records Python objects and everything that they refer to, detects changes, and undoes them.

Large objects are not copied. Objects of libraries, such as data loaders and threads, are not recorded.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from itertools import chain
from operator import is_, itemgetter
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.utils.data import DataLoader, Dataset, Sampler

from ullage.training.guard.state.objects.installed import is_installed
from ullage.training.guard.state.objects.node import (
    ATOMS,
    ClassNode,
    ContentNode,
    ElementsNode,
    NamesNode,
    SlotsNode,
    VariableNode,
)
from ullage.training.guard.state.objects.node_of import (
    CacheNode,
    foreign_node_of,
    gradient_node_of,
    node_of,
)
from ullage.training.guard.state.tensors import Kind, Learned, Tensors

# The maximum number of objects in one record. The remaining objects are ignored.
_MOST: Final = 20_000
_DEEPEST: Final = 16
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


class FoundIn(Enum):
    """Where an object was found. This decides what is recorded of it."""

    MODEL = auto()
    """An attribute of the model. Attributes of objects from installed packages are recorded too."""
    METRIC = auto()
    """A metric, which may change in each part of a batch."""
    FORWARD = auto()
    """A global variable or a class that methods of the model use."""
    OUTSIDE = auto()
    """A variable of the loss function. A change counts only if it involves tensors, arrays or modules."""
    BATCH = auto()
    """The batch. Tensors are not copied, and neither functions nor classes are followed."""


class Graph:
    """A record of some Python objects and everything that they refer to."""

    def __init__(self, learned: Learned | None = None, seen: set[int] | None = None) -> None:
        """Create an empty record.

        Args:
            learned: what earlier steps have shown about tensors.
            seen: the `id`s of objects that are recorded elsewhere and are not followed.
        """
        self.seen: set[int] = set() if seen is None else seen
        self.nodes: list[ContentNode] = []
        self.classes: list[type] = []
        self.tensors = Tensors(learned or Learned())
        self._variables: set[tuple[int, str]] = set()
        self._namespaces: dict[int, dict[str, Any]] = {}
        # Most objects are dictionaries and lists, and most do not change. They are compared all at once.
        self._sized: list[dict[Any, Any] | list[Any]] = []
        self._attributes: list[tuple[Callable[[Any], Any], list[dict[Any, Any]]]] = []
        self._dicts: list[dict[Any, Any]] = []
        self._lists: list[list[Any]] = []
        self._others: list[ContentNode] = []
        self._sizes: list[int] = []
        self._flat: list[Any] = []

    def add(self, path: str, value: Any, place: FoundIn) -> None:
        """Record an object and everything that it refers to. Error messages call the object `path`."""
        deque(self.entered(path, value, place), maxlen=0)

    def add_node(self, node: ContentNode, place: FoundIn) -> None:
        """Record what a node records, without following its references."""
        node.is_outside = place is FoundIn.OUTSIDE
        node.is_ignored = place is FoundIn.METRIC
        self.nodes.append(node)

    def add_variable(self, path: str, namespace: dict[str, Any], name: str, place: FoundIn) -> None:
        """Record the value of a global variable, so that new assignments to it are detected."""

        def write(value: Any) -> None:
            namespace[name] = value

        if (id(namespace), name) not in self._variables:
            self._variables.add((id(namespace), name))
            self.add_node(VariableNode(path, namespace, lambda: namespace.get(name), write), place)

    def watch_size(self, namespace: dict[str, Any]) -> None:
        """Make a new record if variables are added to a namespace."""
        self._namespaces[id(namespace)] = namespace

    def add_class(self, path: str, owner: type, place: FoundIn) -> None:
        """Record the attributes of a class, and everything that they refer to."""
        if id(owner) not in self.seen:
            self.seen.add(id(owner))
            self.classes.append(owner)
            node = ClassNode(path, owner)
            self.add_node(node, place)
            for name, element in node.children():
                self.add(name, element, place)

    def add_classes_of(self, kind: type, place: FoundIn) -> None:
        """Record the attributes of the user's classes among a type and its bases."""
        for one in kind.__mro__:
            if not is_installed(one):
                self.add_class(one.__name__, one, place)

    def entered(self, path: str, value: Any, place: FoundIn) -> Iterator[tuple[str, Any]]:
        """Record an object and everything that it refers to. Yield each recorded object with its name."""
        waiting = [(path, value, 0)]
        while waiting:
            name, one, depth = waiting.pop()
            if isinstance(one, ATOMS) or id(one) in self.seen or depth > _DEEPEST:
                continue
            if len(self.nodes) >= _MOST:
                return
            self.seen.add(id(one))
            yield name, one
            inside: Iterable[tuple[str, Any]] = ()
            node = None
            if isinstance(one, tuple):  # cannot change itself
                inside = ((f"{name}[{index}]", element) for index, element in enumerate(one))
            elif isinstance(one, torch.Tensor):
                node = self._add_tensor(name, one, place)
                if place is not FoundIn.BATCH and not isinstance(one, nn.Parameter):
                    waiting.append((name, one.__dict__, depth + 1))
            else:
                node = self._node_of(name, one, place)
            if node is not None:
                self.add_node(node, place)
                inside = node.children()
            waiting += [(inner, element, depth + 1) for inner, element in inside]

    def _add_tensor(self, name: str, tensor: torch.Tensor, place: FoundIn) -> ContentNode | None:
        kind = Kind.OF_BATCH if place is FoundIn.BATCH else Kind.OTHER
        self.tensors.add(name, tensor, kind, is_ignored=place is FoundIn.METRIC)
        return gradient_node_of(name, tensor)

    def _node_of(self, name: str, value: Any, place: FoundIn) -> ContentNode | None:
        is_deep = place in (FoundIn.MODEL, FoundIn.METRIC, FoundIn.BATCH)
        node = node_of(name, value, lambda one: _is_opened(one, is_deep=is_deep), is_of_batch=place is FoundIn.BATCH)
        if node is None and not is_deep and _is_foreign(value):
            return foreign_node_of(name, value)
        if place is not FoundIn.BATCH and isinstance(node, NamesNode | SlotsNode) and not isinstance(value, dict):
            self.add_classes_of(type(value), place)
        return node

    def record(self) -> None:
        """Record the current state of all nodes and tensors again. The nodes have to be the same."""
        containers = [node for node in self.nodes if isinstance(node, NamesNode | ElementsNode)]
        by_names: dict[tuple[str, ...], list[dict[Any, Any]]] = {}
        self._dicts, self._lists = [], []
        for node in containers:
            if isinstance(node, NamesNode) and node.is_of_attributes and isinstance(node.value, dict):
                names = tuple(name for name in node.saved if name not in node.left_out)
                by_names.setdefault(names, []).append(node.value)
            elif isinstance(node.value, dict) and node.value:
                self._dicts.append(node.value)
            elif isinstance(node.value, list):
                self._lists.append(node.value)
        # a getter of a single name returns no tuple
        self._attributes = [(itemgetter(*names, names[0]), dicts) for names, dicts in by_names.items() if names]
        self._sized = [node.value for node in containers if isinstance(node.value, dict | list)]
        self._others = [node for node in self.nodes if not isinstance(node, NamesNode | ElementsNode)]
        self._others += [node for node in containers if not isinstance(node.value, dict | list)]
        self._sizes = self._sizes_now()
        self._flat = list(self._elements())
        self.tensors.record()

    def _sizes_now(self) -> list[int]:
        return list(map(len, chain(self._sized, self._namespaces.values())))

    def _elements(self) -> Iterator[Any]:
        by_name = chain.from_iterable(map(getter, dicts) for getter, dicts in self._attributes)
        values = map(dict.values, self._dicts)
        return chain.from_iterable(chain(by_name, values, self._dicts, self._lists))

    def has_same_objects(self) -> bool:
        """Return whether no object has changed since the last call of `record()`. Tensors are not compared."""
        try:
            is_same = self._sizes_now() == self._sizes and all(map(is_, self._elements(), self._flat))
        except KeyError:  # an attribute was deleted
            return False
        return is_same and all(node.is_same() for node in self._others)

    def update(self) -> bool:
        """Record the current state. Return False if the objects have changed too much: then make a new record."""
        if self.tensors.is_outdated:
            return False
        if self.has_same_objects():
            self.tensors.record()
            return True
        changed = [node for node in self.nodes if not node.is_same()]
        if not changed or not all(node.has_new_numbers_only() for node in changed):
            return False
        for node in changed:
            node.record()
        self.record()
        return True

    def changed(self) -> list[str]:
        """Return the names of the objects and tensors that have changed, and would change again in a retry."""
        others = (node for node in self.nodes if not (node.is_ignored or node.is_same() or node.is_reported_only))
        return self.tensors.changed() + [name for node in others for name in node.names()]

    def left_alone(self, *, has_drawn: bool) -> list[str]:
        """Return the names of changes that the guard does not undo.

        Args:
            has_drawn: whether random numbers were drawn. Then a new entry of a cache counts.
        """
        reported = [node for node in self.nodes if not node.is_same() and node.is_reported_only]
        return [one.path for one in reported if not isinstance(one, CacheNode) or (has_drawn and one.saved.currsize)]

    def restore(self) -> list[str]:
        """Restore all recorded objects. Return the names of changed objects that cannot be restored."""
        others = [node for node in self.nodes if not node.is_same()]
        others = [node for node in others if isinstance(node, CacheNode) or not node.is_reported_only]
        lost = [node.path for node in others if not node.put_back()]
        return lost + self.tensors.restore()


def _is_opened(value: Any, *, is_deep: bool) -> bool:
    if isinstance(value, nn.Module):
        return True
    if isinstance(value, _NOT_OPENED):
        return False
    if isinstance(value, _OF_TRAINING):
        return True
    home = type(value).__module__ or ""
    if home.partition(".")[0] in _CLOSED:
        return False
    return is_deep or "site-packages" not in (getattr(sys.modules.get(home), "__file__", None) or "")


def _is_foreign(value: Any) -> bool:
    if isinstance(value, _NOT_OPENED) or not hasattr(value, "__dict__"):
        return False
    return (type(value).__module__ or "").partition(".")[0] not in _CLOSED
