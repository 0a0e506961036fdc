"""Record which operators use which GPU memory blocks, and when.

The record stores numbers in arrays, because additional Python objects would change when Python collects garbage.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ullage.gpu.values.dispatch import ONLY
from ullage.predicting.prediction.observation.role import Lives, Moments
from ullage.training.ownership.storage import addresses

_PLAIN: Final = frozenset((Tensor, nn.Parameter))
_SEVERAL: Final = frozenset((list, tuple))
# The recorded name if no PyTorch operator launched the kernel.
_KERNEL: Final = "a kernel"


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


class UseLog:
    """Record each use of GPU memory by an operator. Pass every operator to the method `hear`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._addresses, self._indices, self._operators = array("Q"), array("q"), array("H")
        self._rows, self._columns, self._item_bytes = array("q"), array("q"), array("B")
        self._names: list[str] = [_KERNEL]
        self._codes: dict[Any, int] = {}

    def hear(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Record one use of GPU memory for each tensor argument of an operator."""
        code = self._codes.get(operator)
        if code is None:
            code = self._codes[operator] = len(self._names)
            self._names.append(operator._schema.name)
        for argument in (*arguments, *keywords.values()) if keywords else arguments:
            kind = argument.__class__
            if kind in _PLAIN:
                self.note(argument, code)
            elif kind in _SEVERAL:
                for each in argument:
                    if isinstance(each, Tensor):
                        self.note(each, code)
            elif isinstance(argument, Tensor):
                self.note(argument, code)

    def note(self, tensor: Tensor, code: int = 0) -> None:
        """Record that an operator used a tensor."""
        try:
            if not tensor.is_cuda:
                return
            if tensor.is_nested:  # Its sizes are not integers.
                self._note_parts(tensor, code)
                return
            address = tensor.data_ptr()
            if address:
                shape = tensor.size()
                rows = shape[-2] if len(shape) > 1 else 0
                is_float = tensor.dtype.is_floating_point
                item_bytes = tensor.itemsize
                start = address - int(tensor.storage_offset()) * item_bytes
                self._put(start, code, rows, shape[-1] if shape else 0, item_bytes if is_float else 0)
        except (RuntimeError, NotImplementedError, ValueError):  # a tensor without its own memory, such as a sparse one
            self._note_parts(tensor, code)

    def _note_parts(self, tensor: Tensor, code: int) -> None:
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            for address in addresses([tensor]):
                self._put(address, code)

    def _put(self, address: int, code: int, rows: int = 0, columns: int = 0, item_bytes: int = 0) -> None:
        self._addresses.append(address)
        self._indices.append(self._now())
        self._operators.append(code)
        self._rows.append(rows)
        self._columns.append(columns)
        self._item_bytes.append(item_bytes)

    def table(self, lives: Lives) -> UseTable:
        """Return a table of the recorded uses of memory blocks."""
        when = np.array(self._indices, np.int64)
        block = _block_at(np.array(self._addresses, np.uint64), when, lives)
        chosen = np.flatnonzero(block >= 0)
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
