"""The passes of a run as spans of the journal: from where a forward pass begins to where the next one does.

A pass begins with the first call of a module after a backward pass, so that a step of several backward passes has
several. It knows no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ullage.predicting.prediction.observation.role import Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPasses:
    """Where passes begin and where their work is done: ascending indices of the journal, one of each a pass."""

    begins: np.ndarray
    done: np.ndarray
    """The end of the last backward pass or of the step, whichever is later; -1 for a pass that has not come so far."""
    has_stepped: np.ndarray
    """Whether the pass has come to its end: a backward pass, and the optimizer's step if its step has one."""

    @classmethod
    def of(cls, moments: Moments, step_ends: Sequence[int]) -> "TrainingPasses":
        """Find them.

        Args:
            moments: when passes began and ended.
            step_ends: where optimizers' steps ended.
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
        """Return the number of the pass in which something happened, from 1; 0 is before the first."""
        return np.searchsorted(self.begins, indices, side="left")
