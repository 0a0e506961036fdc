"""Searches for objects that hold GPU memory, beginning at the user's variables."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ullage.base.garbage_collector import without_collections
from ullage.base.source_location import short_place
from ullage.training.ownership import attribute
from ullage.training.ownership.graph import Saved, saved_in, values_of
from ullage.training.ownership.held_in_cpp import CAPSULE
from ullage.training.ownership.holding import HolderKind
from ullage.training.ownership.path import path_of
from ullage.training.ownership.reach import Reach
from ullage.training.ownership.root import Root, is_of_user_class, module_dicts, roots_of_libraries, roots_of_user
from ullage.training.ownership.safe_inspection import class_dict, mro_of, name_of, table_of

_SOUGHT: Final[dict[type, str]] = {
    Tensor: "tensor",
    nn.Module: "module",
    Optimizer: "optimizer",
    torch.UntypedStorage: "storage",
    torch._C._autograd.SavedTensor: "saved",
    torch.cuda.CUDAGraph: "cuda graph",
    torch.cuda.MemPool: "pool",
    torch._C.ScriptModule: "script",
    torch._C.ScriptFunction: "script",
    CAPSULE: "capsule",
}


def _name_of(kind: type) -> str | None:
    name = next((name for base, name in _SOUGHT.items() if base in mro_of(kind)), None)
    return "function" if name is None and is_function(kind) else name


@contextmanager
def owner_search() -> "Iterator[OwnerSearch]":
    """Create a search for objects that hold memory. At the end of this context, its references are dropped."""
    search = OwnerSearch()
    with torch._C.DisableTorchFunction(), without_collections():
        try:
            yield search
        finally:
            search.drop_references()


class OwnerSearch:
    """All objects that were found, including tensors that only autograd graphs keep alive."""

    def __init__(self) -> None:
        self.reach = Reach(_name_of)
        # Maps the index of an object in `reach.objects` to the start of a path, such as a variable.
        self.roots: dict[int, Root] = {}
        self.kept: list[Saved] = []
        self.in_graphs: set[int] = set()
        self._done = {"tensor": 0, "function": 0, "saved": 0}
        self.closed = module_dicts()
        self._names: dict[int, str] | None = None
        self._seen_functions: dict[int, Any] = {}
        self.reach.ignore(self, self.__dict__, *self.__dict__.values(), self.reach.__dict__)

    def follow_user(self) -> None:
        """Search everything that the user's variables refer to."""
        classes = frozenset(id(one) for one in gc.get_objects() if type(one) is type and not is_of_user_class(one))
        self._follow(roots_of_user(), self.closed | classes)
        self._follow_graphs(self.closed | classes)

    def follow_libraries(self) -> None:
        self._follow(roots_of_libraries(), self.closed)
        self._follow_graphs(self.closed)

    def drop_references(self) -> None:
        self.reach.drop_references()
        self.roots.clear()
        self.kept.clear()
        self._seen_functions.clear()

    def root_of(self, place: int) -> Root:
        """Return the variable or exception at which the path to an object begins."""
        return self.roots[self.reach.chain_of(place)[0]]

    def is_in_graph(self, place: int) -> bool:
        return bool(self.in_graphs) and not self.in_graphs.isdisjoint(self.reach.chain_of(place))

    def path_to(self, place: int, *, is_general: bool) -> str:
        """Return the path to an object as text."""
        chain = self.reach.chain_of(place)
        objects = [self.reach.objects[one] for one in chain]
        graphs = {index for index, one in enumerate(chain) if index and one in self.in_graphs}
        return path_of(self.roots[chain[0]].text, objects, graphs, is_general=is_general)

    def module_names(self) -> dict[int, str]:
        """Return the names of the modules that own each parameter. The keys are the `id`s of the parameters."""
        if self._names is None:
            self._names = {}
            modules = [self.reach.objects[place] for place in self.reach.found["module"]]
            inner = {id(child) for module in modules for child in table_of(module, "_modules").values()}
            seen: set[int] = set()
            for top in sorted(modules, key=lambda module: id(module) in inner):
                for name, module in _modules_in(top, seen):
                    for parameter in table_of(module, "_parameters").values():
                        self._names.setdefault(id(parameter), name or name_of(type(module)))
        return self._names

    def _follow(self, roots: Iterable[Root], closed: frozenset[int]) -> None:
        starts = []
        for root in roots:
            place = self.reach.add(root.value)
            if place is not None:
                self.roots[place] = root
                starts.append(place)
        self.reach.search(starts, closed)

    def _follow_graphs(self, closed: frozenset[int]) -> None:
        objects = self.reach.objects
        while any(len(self.reach.found[what]) > done for what, done in self._done.items()):
            starts = [(place, grad_fn_of(objects[place])) for place in self._found_since_last("tensor")]
            starts += [(place, objects[place]) for place in self._found_since_last("function")]
            saved = [
                Saved(value, None, place)
                for place in self._found_since_last("saved")
                for value in values_of(objects[place])
            ]
            added: list[int | None] = []
            for found in chain(saved, saved_in(starts, self._seen_functions)):
                if isinstance(found, Saved):
                    if is_tensor(found.value):
                        self.kept.append(found)
                    added.append(self.reach.add(found.value, found.start))
                else:  # an autograd function that is written in Python may have attributes
                    added.append(self.reach.add(found[0], found[1]))
            places = [place for place in added if place is not None]
            self.in_graphs.update(places)
            self.reach.search(places, closed)

    def _found_since_last(self, what: str) -> list[int]:
        news = self.reach.found[what][self._done[what] :]
        self._done[what] += len(news)
        return news

    def follow_rest(self) -> None:
        """Search objects that no variable leads to, such as reference cycles."""
        rest = [one for one in self.reach.unknown(gc.get_objects()) if type(one) is not type]
        self.reach.ignore(rest)
        referred = set(map(id, gc.get_referents(*rest))) if rest else set()
        tops = [one for one in rest if id(one) not in referred]
        self.reach.ignore(referred, tops)
        self._follow((Root(value=one, kind=HolderKind.RUNNING, text=_text_of(one)) for one in tops), self.closed)
        cycles = self.reach.unknown(rest)
        self.reach.ignore(cycles)
        roots = (Root(value=one, kind=HolderKind.GARBAGE, text=f"a reference cycle, {_text_of(one)}") for one in cycles)
        self._follow(roots, self.closed)
        self._follow_graphs(self.closed)


def _modules_in(top: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    waiting = [("", top)]
    while waiting:
        name, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            children = table_of(module, "_modules")
            waiting += [
                (f"{name}.{key}" if name else key, child) for key, child in children.items() if child is not None
            ]


def is_function(kind: type) -> bool:
    """Return whether a type is the class of an autograd function."""
    return any("next_functions" in class_dict(base) for base in mro_of(kind))


def is_tensor(one: Any) -> bool:
    """Return whether an object is a tensor, judged only by its type."""
    return issubclass(type(one), Tensor)


def grad_fn_of(tensor: Tensor) -> Any:
    """Return a tensor's `grad_fn`, which is None for a leaf tensor."""
    try:
        return attribute.GRAD_FN.__get__(tensor)
    except RuntimeError:
        return None  # raised for a view that was modified in place in a way without a gradient


def _text_of(one: Any) -> str:
    if type(one) is FunctionType:
        place = short_place(one.__code__.co_filename, one.__code__.co_firstlineno).rpartition("/")[2]
        return f"{place} {one.__code__.co_name}(), which no variable refers to"
    name = name_of(type(one))
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name} that no variable refers to"
