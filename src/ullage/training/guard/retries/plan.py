"""Remembers for each batch shape how it fits: the number of parts, activation checkpointing, and offloading.

This module does not import torch.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ullage.training.guard.splitting.batch import Shape

# The number of successful steps after which a guard tries to use fewer parts. Each failed try doubles the number, up to
# `_GROW_AFTER_AT_MOST`.
_GROW_AFTER: Final = 32
_GROW_AFTER_AT_MOST: Final = 2048
# The number of batch shapes whose plans are kept. The least recently used plan is dropped first.
_SHAPES: Final = 4096


class Rung(StrEnum):
    """The actions of the guard after an out-of-memory error, in the order in which the guard tries them."""

    AGAIN = "again"
    EMPTY_CACHE = "empty_cache"
    SHRINK = "shrink"
    """Return to earlier settings that fitted, because settings that need more memory failed."""
    SPLIT = "split"
    CHECKPOINT = "checkpoint"
    OFFLOAD = "offload"
    GIVE_UP = "give up"

    def text(self, parts: int) -> str:
        """Return the log text for this action. `parts` is the new number of parts."""
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
    """How a batch is run: the number of parts, and whether to use activation checkpointing and offloading."""

    parts: int = 1
    """The number of parts into which a batch is split. It is 1 for a whole batch."""
    checkpoint: bool = False
    """Whether activation checkpointing is used for the modules in the guard's argument `checkpoint`."""
    offload: bool = False
    """Whether tensors that forward saves for backward are moved to host memory."""

    @property
    def is_direct(self) -> bool:
        """Whether tensors that forward saves for backward stay on the device."""
        return not (self.checkpoint or self.offload)

    @property
    def is_plain(self) -> bool:
        return self.is_direct and self.parts == 1


PLAIN: Final = BatchPlan()
"""A whole batch, without activation checkpointing and offloading."""


@dataclass(slots=True)
class _ShapeMemory:
    plan: BatchPlan
    successes: int = 0
    patience: int = _GROW_AFTER
    trying: BatchPlan | None = None


class Plans:
    """Stores for each batch shape how it is run. Parts become smaller after a failure, and larger after many successful
    steps.
    """

    def __init__(self) -> None:
        self._shapes: OrderedDict[Shape, _ShapeMemory] = OrderedDict()

    def plan_for(self, shape: Shape) -> BatchPlan | None:
        """Return the number of parts and the memory-saving methods for batches of this shape. None for a new shape."""
        memory = self._shapes.get(shape)
        if memory is None:
            return None
        self._shapes.move_to_end(shape)
        if memory.successes >= memory.patience and not memory.plan.is_plain:
            memory.trying = _next_plainer(memory.plan)
            return memory.trying
        return memory.plan

    def is_trying(self, shape: Shape) -> bool:
        """Return whether the next step tries to use more memory than the last successful step."""
        memory = self._shapes.get(shape)
        return memory is not None and memory.trying is not None

    def succeeded(self, shape: Shape, plan: BatchPlan) -> None:
        """Record that a batch of this shape fitted in memory with the given plan."""
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
        """Split batches of this shape into at least `parts` parts, because another rank needs this."""
        memory = self._shapes.setdefault(shape, _ShapeMemory(PLAIN))
        if memory.plan.parts < parts:
            memory.plan = replace(memory.plan, parts=parts)
        memory.trying, memory.successes = None, 0

    def failed_to_grow(self, shape: Shape) -> BatchPlan:
        """Record that the attempt to use more memory failed. Return the earlier settings that fitted."""
        memory = self._shapes[shape]
        memory.trying, memory.successes = None, 0
        memory.patience = min(2 * memory.patience, _GROW_AFTER_AT_MOST)
        return memory.plan


def _next_plainer(plan: BatchPlan) -> BatchPlan:
    # drops the slowest measure: first offloading, then checkpointing, then half of the parts
    if plan.offload:
        return replace(plan, offload=False)
    if plan.checkpoint:
        return replace(plan, checkpoint=False)
    return replace(plan, parts=max(plan.parts // 2, 1))
