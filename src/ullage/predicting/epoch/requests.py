"""Store memory requests to PyTorch's allocator as NumPy columns, and compare steps by their requests."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.recorded.program import Op

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Memory requests in order, as columns of equal length. Memory blocks are numbered over the whole run."""

    op: Ints
    """The kind of each memory request: `Op.ALLOCATE`, `Op.FREE` or `Op.EMPTY_CACHE`."""
    key: Ints
    size: Ints
    stream: Ints

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def joined(cls, pieces: Sequence["RequestRows"]) -> "RequestRows":
        """Join several parts into one."""
        if not pieces:
            none = np.zeros(0, np.int64)
            return cls(none, none, none, none)
        columns = ([getattr(piece, name) for piece in pieces] for name in ("op", "key", "size", "stream"))
        return cls(*(np.concatenate(column) for column in columns))


def row(op: Op, size: int = 0) -> RequestRows:
    """Return a record of an allocator call that concerns no memory block, such as `torch.cuda.empty_cache()`."""
    return RequestRows(*(np.array([value], np.int64) for value in (int(op), 0, size, 0)))


EMPTY_CACHE: Final = row(Op.EMPTY_CACHE)
OTHERS_GONE: Final = row(Op.SET_OTHERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The memory requests of one step, with block numbers relative to the step.

    Steps with the same requests have equal templates, wherever they are in the run.
    """

    # A memory block that the step allocates is numbered within the step: `key` is this number, and `is_own` is true.
    # For any other block, `key` is an index into `age` and `place`. `age` is the number of steps since the allocation.
    # `place` is the position among the blocks that were alive at the end of the allocating step. For a block from
    # before the first step, `age` is 0, and `place` is the number of the block in the run.
    op: Ints
    key: Ints
    is_own: npt.NDArray[np.bool_]
    size: Ints
    stream: Ints
    age: Ints
    place: Ints
    births: int
    survivors: Ints
    """The blocks that the step allocates and that are still alive at its end."""

    def is_like(self, other: "Template") -> bool:
        """Return whether two steps make the same memory requests."""
        names = ("op", "key", "size", "stream", "age", "place", "survivors")
        return self.births == other.births and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )


class TemplateMaker:
    """Rewrites the memory requests of each step so that steps with the same requests compare equal.

    Call `template` for every step in order.
    """

    def __init__(self, alive: bytearray, first_block: int) -> None:
        # One byte per memory block that the run has allocated so far: 1 if the block is alive.
        self._alive = alive
        # The number of the first memory block of each step. The last entry is for the next step.
        self._firsts = [first_block]
        # The blocks that were alive at the end of each step, numbered over the whole run.
        self._survivors: list[Ints] = []

    def template(self, requests: RequestRows) -> Template:
        """Return the template of the next step."""
        step, first = len(self._survivors), self._firsts[-1]
        end = len(self._alive)
        survivors = np.flatnonzero(np.frombuffer(bytes(self._alive[first:]), np.int8)).astype(np.int64)
        self._survivors.append(survivors + first)
        self._firsts.append(end)
        key = requests.key.copy()
        has_block = requests.op != int(Op.EMPTY_CACHE)
        is_own = (key >= first) & has_block
        key[is_own] -= first
        carried = np.flatnonzero(~is_own & has_block)
        ages, places = np.zeros(len(carried), np.int64), np.zeros(len(carried), np.int64)
        for number, at in enumerate(carried.tolist()):
            ages[number], places[number] = self._named(step, int(requests.key[at]))
        key[carried] = np.arange(len(carried))
        return Template(
            op=requests.op,
            key=key,
            is_own=is_own,
            size=requests.size,
            stream=requests.stream,
            age=ages,
            place=places,
            births=end - first,
            survivors=survivors,
        )

    def _named(self, step: int, block: int) -> tuple[int, int]:
        made_in = bisect_right(self._firsts, block, hi=len(self._firsts) - 1) - 1
        if made_in < 0:
            return 0, block
        return step - made_in, int(np.searchsorted(self._survivors[made_in], block))
