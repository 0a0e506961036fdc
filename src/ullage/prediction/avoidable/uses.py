"""The uses of the card's memory: which operation was given which block, and when.

A block that no operation is given any more is not needed; nothing else of a run tells that. It keeps addresses and
numbers in arrays: an object for each use would make Python collect garbage at other moments than it does without us.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from ullage.ownership.storage import addresses
from ullage.prediction.observation.role import Lives
from ullage.values.dispatch import ONLY

_PLAIN: Final = frozenset((Tensor, nn.Parameter))
_SEVERAL: Final = frozenset((list, tuple))


class UseLog:
    """Notes every use, as `hear` is told of operations."""

    def __init__(self, now: Callable[[], int]) -> None:
        """Take the length of the journal for the time."""
        self._now = now
        self._addresses, self._indices = array("Q"), array("q")

    def hear(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Note an operation's arguments."""
        for argument in (*arguments, *keywords.values()) if keywords else arguments:
            kind = argument.__class__
            if kind in _PLAIN:
                self.note(argument)
            elif kind in _SEVERAL:
                for each in argument:
                    if isinstance(each, Tensor):
                        self.note(each)
            elif isinstance(argument, Tensor):
                self.note(argument)

    def note(self, tensor: Tensor) -> None:
        """Note the use of a tensor; of its storage's own Python object nothing is asked (`BlockContents`)."""
        try:
            if not tensor.is_cuda:
                return
            address = tensor.data_ptr()
            if address:
                self._put(address - int(tensor.storage_offset()) * tensor.itemsize)
        except (RuntimeError, NotImplementedError, ValueError):  # one without memory of its own: sparse, nested
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                for address in addresses([tensor]):
                    self._put(address)

    def _put(self, address: int) -> None:
        self._addresses.append(address)
        self._indices.append(self._now())

    def by_block(self, lives: Lives) -> tuple[np.ndarray, np.ndarray]:
        """Return the uses of blocks of `lives`, in order of time: the numbers of blocks, and the journal's length."""
        used = np.array(self._addresses, np.uint64)
        when = np.array(self._indices, np.int64)
        known, codes = np.unique(lives.entries["address"], return_inverse=True)
        order = np.lexsort((lives.born, codes))
        place = np.searchsorted(known, used)
        is_known = (place < len(known)) & (known[np.minimum(place, len(known) - 1)] == used) if len(known) else used < 0
        place, when = place[is_known], when[is_known]
        span = int(max(lives.born.max(initial=0), when.max(initial=0))) + 1
        keys = codes[order] * span + lives.born[order]
        found = np.searchsorted(keys, place * span + when, side="left") - 1  # the last one born before
        blocks = order[np.maximum(found, 0)]
        fits = (found >= 0) & (codes[blocks] == place) & (lives.died[blocks] >= when)
        blocks, when = blocks[fits], when[fits]
        in_time = np.argsort(when, kind="stable")
        return blocks[in_time], when[in_time]
