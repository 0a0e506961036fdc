"""A step's requests in a form that does not name blocks: what a step of the same shapes asks again.

Blocks that a step makes are counted from its beginning. A block that it frees and an earlier step made is named by how
many steps ago that was, and by its place among those that outlived that step: the gradients of the step before, its
loss, its logits.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ullage.predicting.epoch.requests import Ints, RequestRows
from ullage.recorded.program import Op

if TYPE_CHECKING:
    from ullage.predicting.epoch.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The requests of one step."""

    op: Ints
    key: Ints
    """The blocks that the step itself makes by their number in the step; of others the place in `age`."""
    is_own: npt.NDArray[np.bool_]
    size: Ints
    stream: Ints
    age: Ints
    """The steps since the one that made the block; 0: it was there before the first step."""
    place: Ints
    """The place among the blocks that outlived that step; of what was there before: the block's number."""
    births: int
    survivors: Ints
    """The blocks that outlive the step, by their number in it."""

    def is_like(self, other: "Template") -> bool:
        """Tell whether two steps ask for the same."""
        names = ("op", "key", "size", "stream", "age", "place", "survivors")
        return self.births == other.births and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )


class TemplateMaker:
    """Makes templates of the steps of one run, one after the other."""

    def __init__(self, ledger: "Ledger", first_block: int) -> None:
        self._ledger = ledger
        self._firsts = [first_block]
        """The number of the first block of each step, and of the next."""
        self._survivors: list[Ints] = []
        """The blocks that outlived each step, by their number in the run."""

    def template(self, requests: RequestRows) -> Template:
        """Return the next step's."""
        step, first = len(self._survivors), self._firsts[-1]
        end = self._ledger.blocks
        births = end - first
        is_alive = np.frombuffer(bytes(self._ledger.alive[first:end]), np.int8).astype(np.bool_)
        survivors = np.flatnonzero(is_alive).astype(np.int64)
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
            births=births,
            survivors=survivors,
        )

    def _named(self, step: int, block: int) -> tuple[int, int]:
        """How many steps ago a block was made, and its place among those that outlived that step."""
        made_in = bisect_right(self._firsts, block, hi=len(self._firsts) - 1) - 1
        if made_in < 0:
            return 0, block
        return step - made_in, int(np.searchsorted(self._survivors[made_in], block))
