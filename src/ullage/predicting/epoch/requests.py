"""RequestRows to the allocator: columns whose blocks have numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.recorded.program import Op

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestRows:
    """RequestRows in their order: columns of equal length. A block's number counts from 0 over the whole run."""

    op: Ints
    """`Op.ALLOCATE`, `Op.FREE` or `Op.EMPTY_CACHE`."""
    key: Ints
    size: Ints
    stream: Ints

    def __len__(self) -> int:
        return len(self.op)

    @classmethod
    def joined(cls, pieces: Sequence["RequestRows"]) -> "RequestRows":
        """Return pieces as one."""
        if not pieces:
            none = np.zeros(0, np.int64)
            return cls(none, none, none, none)
        columns = ([getattr(piece, name) for piece in pieces] for name in ("op", "key", "size", "stream"))
        return cls(*(np.concatenate(column) for column in columns))


def row(op: Op, size: int = 0) -> RequestRows:
    """Return one row that is no block's."""
    return RequestRows(*(np.array([value], np.int64) for value in (int(op), 0, size, 0)))


EMPTY_CACHE: Final = row(Op.EMPTY_CACHE)
OTHERS_GONE: Final = row(Op.SET_OTHERS)
