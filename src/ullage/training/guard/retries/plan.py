"""A plan says how a guard runs the batches of one shape: in how many parts, and whether with activation checkpointing
and offloading.

The guard keeps a plan for each shape. This module does not import torch; its callers report whether a plan succeeded.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ullage.training.guard.splitting.batch import Shape

_GROW_AFTER: Final = 32
"""The number of successful steps after which a guard tries to use fewer parts. Each failed try doubles the number, up
to `_GROW_AFTER_AT_MOST`.
"""
_GROW_AFTER_AT_MOST: Final = 2048
_SHAPES: Final = 4096
"""The number of batch shapes whose plans are kept. The least recently used plan is dropped first."""


class Rung(StrEnum):
    """The actions of a guard after an out-of-memory error, in the order in which it tries them."""

    AGAIN = "again"
    EMPTY_CACHE = "empty_cache"
    SHRINK = "shrink"
    """Return to the earlier plan that fitted, because a plan that needs more memory has failed."""
    SPLIT = "split"
    CHECKPOINT = "checkpoint"
    OFFLOAD = "offload"
    GIVE_UP = "give up"

    def text(self, parts: int) -> str:
        """Return the log text for what the guard did after an out-of-memory error. The batch is now split into `parts`
        parts.
        """
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
    """A plan for all batches of one shape: the number of parts, and whether to use checkpointing and offloading."""

    parts: int = 1
    """The number of parts into which a batch is split. It is 1 for a whole batch."""
    checkpoint: bool = False
    """Whether activation checkpointing is applied to the modules that `checkpoint=` names."""
    offload: bool = False
    """Whether the tensors that forward saves for backward are kept in host memory."""

    @property
    def is_direct(self) -> bool:
        """Whether the tensors that forward saves stay on the device."""
        return not (self.checkpoint or self.offload)

    @property
    def is_plain(self) -> bool:
        return self.is_direct and self.parts == 1


PLAIN: Final = BatchPlan()
"""The plan that runs a batch as a whole, without checkpointing and offloading."""


@dataclass(slots=True)
class _ShapeMemory:
    plan: BatchPlan
    successes: int = 0
    patience: int = _GROW_AFTER
    trying: BatchPlan | None = None


class Plans:
    """The plans for all batch shapes. After a failure, a plan uses smaller parts. After many successful steps, it uses
    larger parts again.
    """

    def __init__(self) -> None:
        self._shapes: OrderedDict[Shape, _ShapeMemory] = OrderedDict()

    def plan_for(self, shape: Shape) -> BatchPlan | None:
        """Return the plan for batches of this shape. None if no such batch was run before."""
        memory = self._shapes.get(shape)
        if memory is None:
            return None
        self._shapes.move_to_end(shape)
        if memory.successes >= memory.patience and not memory.plan.is_plain:
            memory.trying = _next_plainer(memory.plan)
            return memory.trying
        return memory.plan

    def is_trying(self, shape: Shape) -> bool:
        """Return whether the plan from `plan_for` is a trial: it needs more memory than the plan that has fitted."""
        memory = self._shapes.get(shape)
        return memory is not None and memory.trying is not None

    def succeeded(self, shape: Shape, plan: BatchPlan) -> None:
        """Record that a batch of this shape fitted with this plan."""
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
        """Split batches of this shape into at least `parts` parts from now on, because another rank has to."""
        memory = self._shapes.setdefault(shape, _ShapeMemory(PLAIN))
        if memory.plan.parts < parts:
            memory.plan = replace(memory.plan, parts=parts)
        memory.trying, memory.successes = None, 0

    def failed_to_grow(self, shape: Shape) -> BatchPlan:
        """Record that the plan on trial does not fit. Return the earlier plan that fitted."""
        memory = self._shapes[shape]
        memory.trying, memory.successes = None, 0
        memory.patience = min(2 * memory.patience, _GROW_AFTER_AT_MOST)
        return memory.plan


def _next_plainer(plan: BatchPlan) -> BatchPlan:
    """Return a plan that saves less memory and is faster. It drops the slowest measure: first offloading, then
    checkpointing, then half of the parts.
    """
    if plan.offload:
        return replace(plan, offload=False)
    if plan.checkpoint:
        return replace(plan, checkpoint=False)
    return replace(plan, parts=max(plan.parts // 2, 1))
