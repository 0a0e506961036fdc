"""The plan for forward and backward of a batch, remembered for each shape: the number of parts, activation
checkpointing, offloading.

It does not use torch: callers report whether a plan succeeded.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ullage.training.guard.splitting.batch import Shape

_GROW_AFTER: Final = 32
"""The number of successful steps before fewer parts are tried again; it doubles each time that fails, up to
`_GROW_AFTER_AT_MOST`."""
_GROW_AFTER_AT_MOST: Final = 2048
_SHAPES: Final = 4096
"""The number of shapes that are remembered; the least recently used one is dropped first."""


class Rung(StrEnum):
    """The actions against running out of memory, in the order in which they are tried."""

    AGAIN = "again"
    EMPTY_CACHE = "empty_cache"
    SHRINK = "shrink"
    """Go back to the plan that is known to fit, after one with fewer parts failed."""
    SPLIT = "split"
    CHECKPOINT = "checkpoint"
    OFFLOAD = "offload"
    GIVE_UP = "give up"

    def text(self, parts: int) -> str:
        """Return the action in words, for a step that is now taken in this number of parts."""
        return {
            Rung.AGAIN: "undone, and retried unchanged",
            Rung.EMPTY_CACHE: "retried after empty_cache",
            Rung.SHRINK: f"back to {parts} parts",
            Rung.SPLIT: f"split into {parts} parts from here on",
            Rung.CHECKPOINT: "retried with activation checkpointing",
            Rung.OFFLOAD: "retried with saved tensors offloaded to the host",
            Rung.GIVE_UP: "gave up; everything is as before the step",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The plan for running batches of one shape."""

    parts: int = 1
    """The number of parts into which a batch is split; 1 for a whole batch."""
    checkpoint: bool = False
    """Whether activation checkpointing is used for the modules for which it is allowed."""
    offload: bool = False
    """Whether what forward saves for backward is kept in host memory."""

    @property
    def is_direct(self) -> bool:
        """Whether what forward saves stays on the device."""
        return not (self.checkpoint or self.offload)

    @property
    def is_plain(self) -> bool:
        return self.is_direct and self.parts == 1


PLAIN: Final = BatchPlan()
"""The plan of a batch that is run whole, without checkpointing or offloading."""


@dataclass(slots=True)
class _ShapeMemory:
    plan: BatchPlan
    successes: int = 0
    patience: int = _GROW_AFTER
    trying: BatchPlan | None = None


class Plans:
    """The plan for each shape; it learns from what fails and grows back after a stretch that goes well."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[Shape, _ShapeMemory] = OrderedDict()

    def plan_for(self, shape: Shape) -> BatchPlan | None:
        """Return the plan for a batch of this shape; None if nothing is known of the shape."""
        memory = self._shapes.get(shape)
        if memory is None:
            return None
        self._shapes.move_to_end(shape)
        if memory.successes >= memory.patience and not memory.plan.is_plain:
            memory.trying = _next_plainer(memory.plan)
            return memory.trying
        return memory.plan

    def is_trying(self, shape: Shape) -> bool:
        """Tell whether the plan last returned for a shape needs more memory than what is known to fit."""
        memory = self._shapes.get(shape)
        return memory is not None and memory.trying is not None

    def succeeded(self, shape: Shape, plan: BatchPlan) -> None:
        """Learn that a batch of this shape fits with this plan."""
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
        """Take batches of this shape in at least `parts` parts from now on, because another rank has to."""
        memory = self._shapes.setdefault(shape, _ShapeMemory(PLAIN))
        if memory.plan.parts < parts:
            memory.plan = replace(memory.plan, parts=parts)
        memory.trying, memory.successes = None, 0

    def failed_to_grow(self, shape: Shape) -> BatchPlan:
        """Learn that the plan that was tried does not fit; return the one that does."""
        memory = self._shapes[shape]
        memory.trying, memory.successes = None, 0
        memory.patience = min(2 * memory.patience, _GROW_AFTER_AT_MOST)
        return memory.plan


def _next_plainer(plan: BatchPlan) -> BatchPlan:
    """Return the next plan towards the plain one: what costs most time is dropped first."""
    if plan.offload:
        return replace(plan, offload=False)
    if plan.checkpoint:
        return replace(plan, checkpoint=False)
    return replace(plan, parts=max(plan.parts // 2, 1))
