"""Record which operators use which GPU memory blocks, and when.

The record stores numbers in arrays, because additional Python objects would change when Python collects garbage.
"""

import functools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ullage.gpu.values.dispatch import ONLY
from ullage.gpu.values.operator_plan import argument_at, plan_of
from ullage.predicting.prediction.observation.role import Lives, Moments
from ullage.training.ownership.storage import addresses

_COPY: Final = "aten::copy_"
# A copy of fewer elements is too small to matter.
_LEAST_EXPANDED: Final = 1024
# The recorded name if no PyTorch operator launched the kernel.
_KERNEL: Final = "a kernel"


# Stands for the content of a block that no operator has written yet.
_UNWRITTEN: Final = -(1 << 62)


class Way(IntEnum):
    """How an operator uses a tensor."""

    READ = 0
    WRITTEN = 1
    """An argument that the operator writes, as it is before the call."""
    RESULT = 2
    REWRITTEN = 3
    """An argument that the operator writes, as it is after the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPasses:
    """The training passes of a run.

    A training pass begins with a forward pass. It ends at the first forward pass that follows a backward pass.
    """

    begins: np.ndarray
    done: np.ndarray
    """The allocator event at which the last backward pass or optimizer step of each training pass ended.

    -1 means that the training pass has neither.
    """
    has_stepped: np.ndarray
    """Whether the training pass has had a backward pass."""

    @classmethod
    def of(cls, moments: Moments, step_ends: Sequence[int]) -> "TrainingPasses":
        """Return the training passes of a run.

        Args:
            moments: the numbers of allocator events at which forward and backward passes began and ended.
            step_ends: the numbers of allocator events at which optimizer steps ended.
        """
        begins: list[int] = []
        ends = np.asarray(moments.backward_ends, np.int64)
        for start in moments.forward_starts:
            if not begins or (ends[(ends > begins[-1]) & (ends <= start)]).size:
                begins.append(start)
        borders = [*begins[1:], np.iinfo(np.int64).max]
        steps = np.asarray(step_ends, np.int64)
        done, complete = [], []
        for begin, border in zip(begins, borders, strict=False):
            of_pass = [int(some[(some > begin) & (some <= border)].max(initial=-1)) for some in (ends, steps)]
            done.append(max(of_pass))
            complete.append(of_pass[0] >= 0)
        return cls(
            begins=np.asarray(begins, np.int64),
            done=np.asarray(done, np.int64),
            has_stepped=np.asarray(complete, np.bool_),
        )

    def __len__(self) -> int:
        return len(self.begins)

    def at(self, indices: np.ndarray) -> np.ndarray:
        """Return, for each allocator event, how many training passes began before it."""
        return np.searchsorted(self.begins, indices, side="left")


@dataclass(frozen=True, slots=True, kw_only=True)
class UseTable:
    """A table of all uses of memory blocks by operators, in order of time."""

    block: np.ndarray
    """The index of the memory block that the operator used."""
    when: np.ndarray
    """The number of allocator events before the operator used the block."""
    operator: np.ndarray
    """The index of the operator's name in the list `names`."""
    rows: np.ndarray
    """The size of the tensor's second-to-last dimension, or 0 if there are fewer than two dimensions."""
    columns: np.ndarray
    item_bytes: np.ndarray
    """The size in bytes of one element of a floating-point tensor. The size is recorded as 0 for all other tensors."""
    names: Sequence[str]

    def of(self, *names: str) -> np.ndarray:
        """Return a mask that selects the rows of the table whose operator has one of the given names."""
        wanted = [index for index, name in enumerate(self.names) if name in names]
        return np.isin(self.operator, wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedContents:
    """What memory blocks hold when they are freed, or at the end of the run."""

    number: Sequence[int]
    """A number for the content of each block. Blocks with equal content have equal numbers."""
    is_plain: np.ndarray
    """Whether one operator wrote the content from numbers alone, such as zeros."""


class UseLog:
    """Record each use of GPU memory by an operator. Pass every operator to the method `hear`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._addresses, self._indices, self._operators = array("Q"), array("q"), array("H")
        self._rows, self._columns, self._item_bytes = array("q"), array("q"), array("B")
        self._calls, self._views, self._ways = array("q"), array("q"), array("B")
        self._constants = array("q")
        self._expanded = array("q")
        self._names: list[str] = [_KERNEL]
        self._codes: dict[Any, int] = {}

    def hear(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Callable[[Any], None]:
        """Record one use of GPU memory for each tensor argument of an operator.

        Returns:
            A function that records the operator's result.
        """
        code = self._codes.get(operator)
        if code is None:
            code = self._codes[operator] = len(self._names)
            self._names.append(operator._schema.name)
        plan = plan_of(operator)
        call = len(self._constants)
        is_unknown = plan.is_random or plan.is_foreign or plan.is_collective
        self._constants.append(call if is_unknown else _constant(arguments, keywords))
        written = [argument_at(place, arguments, keywords) for place in plan.written]
        if plan.is_collective:  # their schemas do not say what they write
            written += arguments
        if self._names[code] == _COPY and _is_expanded(arguments[1]):
            self._expanded.append(call)
        marked = {id(each) for each in _flat(written)}
        for each in _flat((*arguments, *keywords.values()) if keywords else arguments):
            self._note(each, code, call, Way.WRITTEN if id(each) in marked else Way.READ)
        return functools.partial(self._hear_result, code, call, written)

    def _hear_result(self, code: int, call: int, written: Sequence[Any], result: Any) -> None:
        way = Way.REWRITTEN if written else Way.RESULT
        for each in _flat(written or (result,)):
            self._note(each, code, call, way)

    def used(self, tensor: Tensor) -> None:
        """Record that a kernel outside of PyTorch's operators used a tensor, and may have written it."""
        call = len(self._constants)
        self._constants.append(call)
        for way in (Way.READ, Way.REWRITTEN):
            self._note(tensor, 0, call, way)

    def _note(self, tensor: Tensor, code: int, call: int, way: Way) -> None:
        try:
            if not tensor.is_cuda:
                return
            if tensor.is_nested:  # Its sizes are not integers.
                self._note_parts(tensor, code, call, way)
                return
            address = tensor.data_ptr()
            if address:
                shape, kind, offset = tensor.size(), tensor.dtype, int(tensor.storage_offset())
                rows = shape[-2] if len(shape) > 1 else 0
                item_bytes = tensor.itemsize
                self._put(
                    address - offset * item_bytes,
                    code,
                    (rows, shape[-1] if shape else 0, item_bytes if kind.is_floating_point else 0),
                    (call, hash((shape, tensor.stride(), offset, kind)), way),
                )
        except (RuntimeError, NotImplementedError, ValueError):  # a tensor without its own memory, such as a sparse one
            self._note_parts(tensor, code, call, way)

    def _note_parts(self, tensor: Tensor, code: int, call: int, way: Way) -> None:
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            for address in addresses([tensor]):
                self._put(address, code, (0, 0, 0), (call, call, way))

    def _put(self, address: int, code: int, shape: tuple[int, int, int], use: tuple[int, int, int]) -> None:
        self._addresses.append(address)
        self._indices.append(self._now())
        self._operators.append(code)
        for column, value in zip((self._rows, self._columns, self._item_bytes), shape, strict=True):
            column.append(value)
        for column, value in zip((self._calls, self._views, self._ways), use, strict=True):
            column.append(value)

    def table(self, lives: Lives) -> UseTable:
        """Return a table of the recorded uses of memory blocks."""
        when = np.array(self._indices, np.int64)
        ways = np.array(self._ways, np.uint8)
        block = _block_at(np.array(self._addresses, np.uint64), when, lives)
        chosen = np.flatnonzero((block >= 0) & (ways <= Way.WRITTEN))
        chosen = chosen[np.argsort(when[chosen], kind="stable")]
        return UseTable(
            block=block[chosen],
            when=when[chosen],
            operator=np.array(self._operators, np.int64)[chosen],
            rows=np.array(self._rows, np.int64)[chosen],
            columns=np.array(self._columns, np.int64)[chosen],
            item_bytes=np.array(self._item_bytes, np.int64)[chosen],
            names=tuple(self._names),
        )

    def expanded_copies(self, lives: Lives) -> set[int]:
        """Return the memory blocks to which an expanded tensor was copied."""
        ways = np.array(self._ways, np.uint8)
        chosen = (ways == Way.REWRITTEN) & np.isin(np.array(self._calls, np.int64), np.array(self._expanded, np.int64))
        addresses_used = np.array(self._addresses, np.uint64)[chosen]
        block = _block_at(addresses_used, np.array(self._indices, np.int64)[chosen], lives)
        return set(block[block >= 0].tolist())

    def contents(self, lives: Lives) -> ComputedContents:
        """Return a number for the last content of each memory block. Blocks with equal content have equal numbers.

        A number stands for the operator that computed the content, and for the contents of the operator's arguments.
        If it is unknown how the content was computed, no other block has the same number.
        """
        block = _block_at(np.array(self._addresses, np.uint64), np.array(self._indices, np.int64), lives)
        numbering = _Numbering(len(lives.born), self._operators, self._constants)
        for use in zip(block.tolist(), self._calls, self._views, self._ways, self._operators, strict=True):
            if use[0] >= 0:
                numbering.take(*use)
        is_plain = np.array([each in numbering.plain for each in numbering.content], np.bool_)
        return ComputedContents(number=numbering.content, is_plain=is_plain)


class _Numbering:
    """Computes the numbers of contents from the uses of blocks, in order of time."""

    def __init__(self, blocks: int, operators: Sequence[int], constants: Sequence[int]) -> None:
        self.content = [-1 - block for block in range(blocks)]
        self.plain: set[int] = set()
        self._is_new = [True] * blocks
        self._constants = constants
        self._inputs: dict[int, list[tuple[int, int]]] = {}
        self._own: dict[int, set[int]] = {}

    def take(self, block: int, call: int, view: int, way: int, code: int) -> None:
        if way <= Way.WRITTEN:
            is_unwritten = way == Way.WRITTEN and self._is_new[block]
            self._is_new[block] = False
            content = _UNWRITTEN if is_unwritten else self.content[block]
            self._inputs.setdefault(call, []).append((content, view))
            self._own.setdefault(call, set()).add(block)
        elif way == Way.REWRITTEN or block not in self._own.get(call, ()):
            self._is_new[block] = False
            inputs = tuple(self._inputs.get(call, ()))
            content = self.content[block] = hash((code, self._constants[call], inputs, view))
            if all(each == _UNWRITTEN for each, _ in inputs):
                self.plain.add(content)


def _flat(arguments: Iterable[Any]) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from (each for each in argument if isinstance(each, Tensor))


# Broadcasting repeats elements along a dimension with stride 0.
def _is_expanded(tensor: Any) -> bool:
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided or tensor.numel() < _LEAST_EXPANDED:
        return False
    return any(size > 1 and not step for size, step in zip(tensor.size(), tensor.stride(), strict=True))


def _constant(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    given = (*arguments, *keywords.items()) if keywords else arguments
    return hash(tuple(_hashable(each) for each in given))


def _hashable(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return Tensor
    if isinstance(argument, list | tuple):
        return tuple(_hashable(each) for each in argument)
    try:
        hash(argument)
    except TypeError:
        return repr(argument)
    return argument


def _block_at(addresses_used: np.ndarray, when: np.ndarray, lives: Lives) -> np.ndarray:
    if not len(lives.born) or not len(when):
        return np.full(len(when), -1, np.int64)
    known, codes = np.unique(lives.entries["address"], return_inverse=True)
    order = np.lexsort((lives.born, codes))
    place = np.minimum(np.searchsorted(known, addresses_used), len(known) - 1)
    span = int(max(lives.born.max(), when.max())) + 1
    keys = codes[order] * span + lives.born[order]
    found = np.searchsorted(keys, place * span + when, side="left") - 1  # the last block allocated before
    blocks = order[np.maximum(found, 0)]
    fits = (found >= 0) & (known[place] == addresses_used) & (codes[blocks] == place) & (lives.died[blocks] >= when)
    return np.where(fits, blocks, -1)


class LastUses:
    """The last use of each memory block by an operator, and the training passes that used the block."""

    def __init__(self, table: UseTable, passes: TrainingPasses, count: int) -> None:
        of_pass = passes.at(table.when)
        self.when = np.full(count, -1, np.int64)
        """The number of allocator events before the last use of each block, or -1 if no operator used it."""
        self.when[table.block] = table.when  # for several uses of one block, the last assignment wins
        self.last_pass = np.zeros(count, np.int64)
        self.last_pass[table.block] = of_pass
        self.first_pass = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(self.first_pass, table.block, of_pass)
