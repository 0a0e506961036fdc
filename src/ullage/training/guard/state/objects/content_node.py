"""Records the state of single Python objects, detects changes, and undoes them."""

import io
import operator
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from operator import is_
from types import CellType, FunctionType, GeneratorType
from typing import Any, Final

import torch
from torch import nn

FEW: Final = 4096
"""The maximum number of elements of a container that is fully recorded. Changes of larger ones are only detected."""
_MOST_COMPARED: Final = 1 << 16
"""The maximum number of elements of a container that are compared. Larger containers are compared only at both ends."""
ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device, torch.Size)
"""The Python and PyTorch types whose instances cannot change."""


class ContentNode:
    """A record of the state of one Python object."""

    always_counts = False
    """Whether the guard restores the object even if only numbers in it have changed."""
    is_only_told = False
    """Whether a change of this object is only reported, and raises no error."""

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
        """Restore the object. Return False if this is not possible."""
        return False

    def names(self) -> list[str]:
        return [self.path]

    def other(self) -> list[Any]:
        """Return the references that were added or removed since the object was recorded."""
        return [self.value]

    def has_new_numbers_only(self) -> bool:
        """Return whether everything that was added to or removed from this object is a plain value, such as a
        number.
        """
        return all(isinstance(one, ATOMS) for one in self.other())

    def children(self) -> Iterator[tuple[str, Any]]:
        return iter(())


class DictNode(ContentNode):
    """A record of a dictionary or of an object's attributes."""

    def __init__(
        self,
        path: str,
        value: Any,
        *,
        is_of_attributes: bool = False,
        left_out: frozenset[str] = frozenset(),
        always_counts: bool = False,
    ) -> None:
        self._text = "{}.{}" if is_of_attributes else "{}[{!r}]"
        self.always_counts = always_counts
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
            now.clear()  # the order of a subclass such as OrderedDict is part of its content
            now.update(saved)
        return True

    def _changed_keys(self) -> list[Any]:
        now, saved = self.value, self.saved
        return [key for key in {**saved, **now} if key not in now or key not in saved or now[key] is not saved[key]]

    def names(self) -> list[str]:
        keys = [key for key in self._changed_keys() if key not in self._left_out]
        return [self._text.format(self.path, _key(key)) for key in keys] or [self.path]

    def other(self) -> list[Any]:
        return [some[key] for key in self._changed_keys() for some in (self.value, self.saved) if key in some]

    def children(self) -> Iterator[tuple[str, Any]]:
        for key, element in self.saved.items():
            if key not in self._left_out:
                yield self._text.format(self.path, _key(key)), element


class ClassNode(DictNode):
    """A record of the attributes of a class."""

    def __init__(self, path: str, owner: type) -> None:
        self._owner = owner
        super().__init__(path, vars(owner), is_of_attributes=True, left_out=frozenset(("__dict__", "__weakref__")))

    def put_back(self) -> bool:
        now, saved = self.value, self.saved
        for name in [name for name in now if name not in saved]:
            delattr(self._owner, name)
        for name, element in saved.items():
            if now.get(name) is not element:
                setattr(self._owner, name, element)
        return True

    def children(self) -> Iterator[tuple[str, Any]]:
        return ((name, one) for name, one in super().children() if not isinstance(one, _OF_CLASSES))


_OF_CLASSES: Final = (FunctionType, staticmethod, classmethod, property)


class SlotsNode(ContentNode):
    """A record of the attributes of an object whose class uses `__slots__`."""

    def other(self) -> list[Any]:
        return _others(self.read().values(), self.saved.values())

    def read(self) -> Any:
        names = dict.fromkeys(name for kind in type(self.value).__mro__ for name in slots_of(kind))
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


class ElementsNode(ContentNode):
    """A record of the elements of a list, a tuple, a deque, a set or a bytearray."""

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
        yield from attributes_of(self.path, self.value)


def attributes_of(path: str, container: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a container, such as a list. Only containers of user-defined classes have attributes."""
    if attributes := getattr(container, "__dict__", None):
        yield f"{path}.__dict__", attributes


class LargeNode(ContentNode):
    """A record of a large container. A change is detected, but cannot be undone.

    Which elements it has, and the versions of those that are tensors, are compared. Of a container with more than
    65,536 elements, only the length and both ends are compared.
    """

    def read(self) -> Any:
        first = next(iter(self.value))
        last = next(reversed(self.value)) if hasattr(self.value, "__reversed__") else None
        return len(self.value), first, last, self._digest()

    def is_same(self) -> bool:
        length, first, last, digest = self.read() if len(self.value) else (0, None, None, 0)
        is_at_ends = length == self.saved[0] and first is self.saved[1] and last is self.saved[2]
        return is_at_ends and digest == self.saved[3]

    def _digest(self) -> int:
        if len(self.value) > _MOST_COMPARED:
            return 0
        elements = list(self.value.values()) if isinstance(self.value, dict) else list(self.value)
        versions = [one._version for one in elements if isinstance(one, torch.Tensor) and not one.is_inference()]
        return hash((tuple(map(id, elements)), tuple(versions)))


class StateNode(ContentNode):
    """A record of an object whose state can be read and set as a whole, such as a random number generator."""

    def __init__(
        self,
        path: str,
        value: Any,
        state_of: Callable[[], Any],
        set_state: Callable[[Any], Any],
        *,
        always_counts: bool = False,
    ) -> None:
        self._state_of, self._set_state = state_of, set_state
        self.always_counts = always_counts
        super().__init__(path, value)

    def read(self) -> Any:
        return self._state_of()

    def is_same(self) -> bool:
        return _is_equal(self._state_of(), self.saved)

    def put_back(self) -> bool:
        self._set_state(self.saved)
        return True


class ReferenceNode(StateNode):
    """A record of the value of one variable, which may be unset."""

    def is_same(self) -> bool:
        return self._state_of() is self.saved

    def other(self) -> list[Any]:
        return [self._state_of(), self.saved]

    def children(self) -> Iterator[tuple[str, Any]]:
        if self.saved is not UNSET:
            yield self.path, self.saved


def reference_of_cell(path: str, cell: CellType) -> ReferenceNode:
    """Return a record of one closure variable of a function."""

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

    return ReferenceNode(path, cell, read, write)


class ProgressNode(ContentNode):
    """A record of an iterator. If it has advanced, this is detected but cannot be undone."""

    def read(self) -> Any:
        one = self.value
        if isinstance(one, GeneratorType):
            frame = one.gi_frame
            return None if frame is None else (frame.f_lasti, *frame.f_locals.values())
        if isinstance(one, count):
            return repr(one)
        if hasattr(one, "_num_yielded"):  # iterators of PyTorch's DataLoader
            return one._num_yielded
        if hasattr(one, "qsize"):
            return one.qsize()
        if type(one) in _AROUND_OTHERS:
            return one.__reduce__()[1][1] if type(one) is enumerate else 0
        if isinstance(one, io.IOBase):
            return _place_in(one)
        try:
            return operator.length_hint(one, -1)
        except Exception:
            return -1

    def is_same(self) -> bool:
        now, saved = self.read(), self.saved
        if now == -1:
            return False  # the progress is not known
        if isinstance(now, tuple) and isinstance(saved, tuple):
            return len(now) == len(saved) and now[0] == saved[0] and all(map(is_, now[1:], saved[1:]))
        return type(now) is type(saved) and not isinstance(now, tuple) and bool(now == saved)

    def children(self) -> Iterator[tuple[str, Any]]:
        one = self.value
        if isinstance(one, GeneratorType) and one.gi_frame is not None:
            # A generator may be at the same line with the same variables although one of these variables, an iterator,
            # has advanced.
            yield from ((f"{self.path}.{name}", inner) for name, inner in one.gi_frame.f_locals.items())
            yield self.path, one.gi_yieldfrom
        elif type(one) in _AROUND_OTHERS:
            yield from ((self.path, inner) for inner in one.__reduce__()[1])
        elif hasattr(
            one, "_sampler_iter"
        ):  # a loader that fails in the middle of a fetch has advanced its sampler without counting the batch
            yield self.path, one._sampler_iter


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


UNSET: Final = object()
"""The recorded value of a variable that is unset."""


def _key(key: Any) -> Any:
    # other keys are shown by their types, because the values of a tensor, for example, would be too long
    return key if isinstance(key, ATOMS) else type(key)


def _others(now: Iterable[Any], saved: Iterable[Any]) -> list[Any]:
    ours, theirs = {id(one): one for one in now}, {id(one): one for one in saved}
    return [one for some, other in ((ours, theirs), (theirs, ours)) for key, one in some.items() if key not in other]


def has_tensors(value: Any) -> bool:
    """Return whether a value is or contains a tensor, an array, a module, an iterator or a random number generator."""
    if isinstance(value, list | tuple | deque | set):
        return any(map(has_tensors, islice(value, FEW)))
    if isinstance(value, dict):
        return any(map(has_tensors, islice(value.values(), FEW)))
    return isinstance(value, torch.Tensor | nn.Module | torch.Generator | random.Random | Iterator) or (
        type(value).__module__.partition(".")[0] == "numpy"
    )


def slots_of(kind: type) -> tuple[str, ...]:
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
