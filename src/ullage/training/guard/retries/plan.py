"""The plan for running batches of one shape: the number of parts, activation checkpointing, offloading.

The plan is remembered for each shape. This module does not import torch: callers report whether a plan succeeded.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ullage.training.guard.splitting.batch import Shape

_GROW_AFTER: Final = 32
"""The number of successful steps before fewer parts are tried again. It doubles each time that this fails, up to
`_GROW_AFTER_AT_MOST`.
"""
_GROW_AFTER_AT_MOST: Final = 2048
_SHAPES: Final = 4096
"""The number of shapes that are remembered; the least recently used shape is dropped first."""


class Rung(StrEnum):
    """The actions after an out-of-memory error, in the order in which they are tried."""

    AGAIN = "again"
    EMPTY_CACHE = "empty_cache"
    SHRINK = "shrink"
    """Return to the plan that is known to fit, after a plan with fewer parts has failed."""
    SPLIT = "split"
    CHECKPOINT = "checkpoint"
    OFFLOAD = "offload"
    GIVE_UP = "give up"

    def text(self, parts: int) -> str:
        """Return the action as a phrase for the log; `parts` is the number of parts in which the batch is now run."""
        return {
            Rung.AGAIN: "undone, and retried unchanged",
            Rung.EMPTY_CACHE: "retried after empty_cache",
            Rung.SHRINK: f"split into {parts} parts again",
            Rung.SPLIT: f"split into {parts} parts from now on",
            Rung.CHECKPOINT: "retried with activation checkpointing",
            Rung.OFFLOAD: "retried with saved tensors in host memory",
            Rung.GIVE_UP: "gave up; everything is as before the step",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The plan for running batches of one shape: the number of parts, checkpointing, offloading."""

    parts: int = 1
    """The number of parts into which a batch is split; 1 for a whole batch."""
    checkpoint: bool = False
    """Whether activation checkpointing is used for the modules on which the user allows it."""
    offload: bool = False
    """Whether the tensors that forward saves for backward are kept in host memory."""

    @property
    def is_direct(self) -> bool:
        """Whether everything that forward saves stays on the device."""
        return not (self.checkpoint or self.offload)

    @property
    def is_plain(self) -> bool:
        return self.is_direct and self.parts == 1


PLAIN: Final = BatchPlan()
"""The plan for a batch that is run whole, without checkpointing or offloading."""


@dataclass(slots=True)
class _ShapeMemory:
    plan: BatchPlan
    successes: int = 0
    patience: int = _GROW_AFTER
    trying: BatchPlan | None = None


class Plans:
    """The current plan for each shape. A plan gets smaller parts after a failure, and larger parts again after many
    successful steps.
    """

    def __init__(self) -> None:
        self._shapes: OrderedDict[Shape, _ShapeMemory] = OrderedDict()

    def plan_for(self, shape: Shape) -> BatchPlan | None:
        """Return the plan for a batch of this shape; None if the shape is new."""
        memory = self._shapes.get(shape)
        if memory is None:
            return None
        self._shapes.move_to_end(shape)
        if memory.successes >= memory.patience and not memory.plan.is_plain:
            memory.trying = _next_plainer(memory.plan)
            return memory.trying
        return memory.plan

    def is_trying(self, shape: Shape) -> bool:
        """Return whether the plan last returned for this shape needs more memory than the plan that is known to fit."""
        memory = self._shapes.get(shape)
        return memory is not None and memory.trying is not None

    def succeeded(self, shape: Shape, plan: BatchPlan) -> None:
        """Record that a batch of this shape fits with this plan."""
        memory = self._shapes.get(shape)
        plan = PLAIN if plan.is_plain else plan
        if memory is None:
            self._shapes[shape] = _ShapeMemory(plan)
            if len(self._shapes) > _SHAPES:
                self._shapes.popitem(last=False)
            return
        if (memory.trying is not None and plan == memory.trying) or plan != memory.plan:
            memory.plan, memory.trying, memory.successes = plan, None, 0
        else:
            memory.successes += 1

    def adopt(self, shape: Shape, parts: int) -> None:
        """Run batches of this shape in at least `parts` parts from now on, because another rank has to."""
        memory = self._shapes.setdefault(shape, _ShapeMemory(PLAIN))
        if memory.plan.parts < parts:
            memory.plan = replace(memory.plan, parts=parts)
        memory.trying, memory.successes = None, 0

    def failed_to_grow(self, shape: Shape) -> BatchPlan:
        """Record that the larger plan does not fit, and return the plan that is known to fit."""
        memory = self._shapes[shape]
        memory.trying, memory.successes = None, 0
        memory.patience = min(2 * memory.patience, _GROW_AFTER_AT_MOST)
        return memory.plan


def _next_plainer(plan: BatchPlan) -> BatchPlan:
    """Return the next plan towards the plain plan: the most time-consuming saving is dropped first."""
    if plan.offload:
        return replace(plan, offload=False)
    if plan.checkpoint:
        return replace(plan, checkpoint=False)
    return replace(plan, parts=max(plan.parts // 2, 1))
