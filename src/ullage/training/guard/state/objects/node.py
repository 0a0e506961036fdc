"""Records the state of single Python objects, detects changes, and undoes them."""

import random
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from operator import is_
from types import FunctionType
from typing import Any, Final

import torch
from torch import nn

FEW: Final = 4096
"""The maximum number of elements of a container that is fully recorded. Changes of larger ones are only detected."""
ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size)
"""The Python and PyTorch types whose instances cannot change."""
UNSET: Final = object()
"""The recorded value of a variable that is unset."""

Children = Iterator[tuple[str, Any]]
"""Pairs of a name for messages and an object."""


class ContentNode:
    """A record of the state of one Python object."""

    def __init__(self, path: str, value: Any, *, counts: bool = False) -> None:
        """Record an object.

        Args:
            path: what error messages call the object.
            value: the object.
            counts: whether the guard restores the object even if only numbers in it have changed.
        """
        self.path = path
        self.value = value
        self.counts = counts
        self.is_outside = False
        """Whether the object was found outside of the model, where numbers are not restored."""
        self.is_ignored = False
        """Whether a change does not prevent a split of the batch, as that of a metric."""
        self.record()

    def record(self) -> None:
        self.saved = self.read()

    def read(self) -> Any:
        raise NotImplementedError

    def is_same(self) -> bool:
        raise NotImplementedError

    def put_back(self) -> bool:
        """Restore the object. Return False if this is not possible."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """Return the names of what has changed."""
        return [self.path]

    def other(self) -> Iterable[Any]:
        """Return the references that were added or removed since the object was recorded."""
        return [self.value]

    def has_new_numbers_only(self) -> bool:
        """Return whether everything that was added or removed is a plain value, such as a number."""
        return all(isinstance(one, ATOMS) for one in self.other())

    @property
    def is_reported_only(self) -> bool:
        """Whether the change of this object is only reported: it is outside of the model, and involves no tensors."""
        return self.is_outside and not self.counts and not any(map(_has_tensors, self.other()))

    def children(self) -> Children:
        """Yield the objects that the recorded object refers to."""
        return iter(())


class NamesNode(ContentNode):
    """A record of a dictionary, or of the attributes of an object."""

    def __init__(
        self, path: str, value: Any, *, is_of_attributes: bool = False, left_out: Container[str] = (), **how: Any
    ) -> None:
        self.is_of_attributes = is_of_attributes
        self._text = "{}.{}" if is_of_attributes else "{}[{!r}]"
        self.left_out = left_out
        super().__init__(path, value, **how)

    def read(self) -> dict[Any, Any]:
        return dict(self.value)

    def set(self, key: Any, element: Any) -> None:
        self.value[key] = element

    def delete(self, key: Any) -> None:
        del self.value[key]

    def is_same(self) -> bool:
        now, saved = self.value, self.saved
        if len(now) == len(saved) and all(map(is_, now.values(), saved.values())) and all(map(is_, now, saved)):
            return True
        return self.is_of_attributes and not self._changed_keys()

    def put_back(self) -> bool:
        saved = self.saved
        for key in self._changed_keys():
            if key in saved:
                self.set(key, saved[key])
            else:
                self.delete(key)
        if isinstance(self.value, dict) and type(self.value) is not dict and not all(map(is_, self.value, saved)):
            self.value.clear()  # the order of a subclass such as OrderedDict is part of its content
            self.value.update(saved)
        return True

    def _changed_keys(self) -> list[Any]:
        now, saved = self.read(), self.saved
        changed = [key for key in {**saved, **now} if now.get(key, UNSET) is not saved.get(key, UNSET)]
        if not self.is_of_attributes:
            return changed
        return [key for key in changed if key not in self.left_out and not key.startswith(_OF_PYTORCH)]

    def names(self) -> list[str]:
        return list(map(self._name_of, self._changed_keys())) or [self.path]  # or the order of keys has changed

    def _name_of(self, key: Any) -> str:
        # other keys are shown by their types, because the values of a tensor, for example, would be too long
        return self._text.format(self.path, key if isinstance(key, ATOMS) else type(key))

    def other(self) -> Iterable[Any]:
        now = self.read()
        return [some[key] for key in self._changed_keys() for some in (now, self.saved) if key in some]

    def children(self) -> Children:
        for key, element in self.saved.items():
            if key not in self.left_out:
                yield self._name_of(key), element


# The prefixes of attributes that PyTorch adds when it compiles or shards a module.
_OF_PYTORCH: Final = ("_dynamo", "_fsdp", "_ddp")


class ClassNode(NamesNode):
    """A record of the attributes of a class."""

    def __init__(self, path: str, owner: type) -> None:
        self._owner = owner
        super().__init__(path, vars(owner), is_of_attributes=True, left_out=frozenset(("__dict__", "__weakref__")))

    def set(self, key: str, element: Any) -> None:
        setattr(self._owner, key, element)

    def delete(self, key: str) -> None:
        delattr(self._owner, key)

    def children(self) -> Children:
        return (one for one in super().children() if not isinstance(one[1], _OF_CLASSES))


_OF_CLASSES: Final = (FunctionType, staticmethod, classmethod, property)


class SlotsNode(NamesNode):
    """A record of the attributes of an object whose class uses `__slots__`."""

    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path, value, is_of_attributes=True)

    def read(self) -> dict[str, Any]:
        names = dict.fromkeys(name for kind in type(self.value).__mro__ for name in slots_of(kind))
        return {name: getattr(self.value, name) for name in names if hasattr(self.value, name)}

    def is_same(self) -> bool:
        return not self._changed_keys()

    def set(self, key: str, element: Any) -> None:
        object.__setattr__(self.value, key, element)

    def delete(self, key: str) -> None:
        object.__delattr__(self.value, key)


def slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__") and not name.startswith("__"))


class ElementsNode(ContentNode):
    """A record of the elements of a list, a deque, a set or a bytearray."""

    def read(self) -> tuple[Any, ...]:
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

    def other(self) -> Iterable[Any]:
        ours, theirs = ({id(one): one for one in some} for some in (self.value, self.saved))
        return [
            one for some, others in ((ours, theirs), (theirs, ours)) for key, one in some.items() if key not in others
        ]

    def children(self) -> Children:
        for index, element in enumerate(self.saved):
            yield f"{self.path}[{index}]", element
        yield from attributes_of(self.path, self.value)


def attributes_of(path: str, container: Any) -> Children:
    """Yield the attributes of a function, or of a container of a user-defined class."""
    attributes = getattr(container, "__dict__", None)
    if attributes is not None:
        yield f"{path}.__dict__", attributes


class StateNode(ContentNode):
    """A record of an object whose state is read, and set, by a function."""

    def __init__(
        self,
        path: str,
        value: Any,
        read: Callable[[], Any],
        write: Callable[[Any], Any] | None,
        *,
        is_equal: Callable[[Any, Any], bool] | None = None,
        children: Callable[[], Children] | None = None,
        **how: Any,
    ) -> None:
        """Record an object.

        Args:
            path: what error messages call the object.
            value: the object.
            read: returns the object's state.
            write: sets the state. None if a change can only be detected.
            is_equal: compares two states. By default their values are compared.
            children: yields the objects that the object refers to.
            how: passed on to `ContentNode`.
        """
        self.read = read  # type: ignore[method-assign]
        self._write = write
        self._is_equal = is_equal or _is_equal
        self._children = children
        super().__init__(path, value, **how)

    def is_same(self) -> bool:
        return self._is_equal(self.read(), self.saved)

    def put_back(self) -> bool:
        if self._write is None:
            return False
        self._write(self.saved)
        return True

    def children(self) -> Children:
        return self._children() if self._children is not None else iter(())


class VariableNode(StateNode):
    """A record of a variable, which may be unset."""

    def __init__(
        self, path: str, value: Any, read: Callable[[], Any], write: Callable[[Any], Any] | None, **how: Any
    ) -> None:
        super().__init__(path, value, read, write, is_equal=is_, **how)

    def other(self) -> Iterable[Any]:
        return [self.read(), self.saved]

    def children(self) -> Children:
        if self.saved is not UNSET:
            yield self.path, self.saved


def _has_tensors(value: Any) -> bool:
    """Return whether a value is or contains a tensor, an array, a module, an iterator or a random number generator."""
    if isinstance(value, list | tuple | deque | set):
        return any(map(_has_tensors, islice(value, FEW)))
    if isinstance(value, dict):
        return any(map(_has_tensors, islice(value.values(), FEW)))
    return isinstance(value, torch.Tensor | nn.Module | torch.Generator | random.Random | Iterator) or (
        type(value).__module__.partition(".")[0] == "numpy"
    )


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    if hasattr(one, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)
