"""How the forward and backward of a batch are taken: in how many parts, with what kept where; remembered for each
shape.

It knows no torch: what memory does with a plan is told to it.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ullage.guard.batch import Shape

_GROW_AFTER: Final = 32
"""Steps that go well before fewer parts are tried again; doubled each time that fails, up to the second figure."""
_GROW_AFTER_AT_MOST: Final = 2048
_SHAPES: Final = 4096
"""Shapes that are remembered; the one that was not met for longest is forgotten first."""


class Rung(StrEnum):
    """What is done about memory that ran out, in this order."""

    AGAIN = "again"
    EMPTY_CACHE = "empty_cache"
    SHRINK = "shrink"
    """Back to the plan that is known to fit, after fewer parts were tried."""
    SPLIT = "split"
    CHECKPOINT = "checkpoint"
    OFFLOAD = "offload"
    GIVE_UP = "give up"

    def text(self, parts: int) -> str:
        """Say what is done, for a step that is then taken in so many parts."""
        return {
            Rung.AGAIN: "taken back, and taken again as it was",
            Rung.EMPTY_CACHE: "taken again after empty_cache",
            Rung.SHRINK: f"back to {parts} parts",
            Rung.SPLIT: f"taken in {parts} parts from here on",
            Rung.CHECKPOINT: "taken with modules computed again in backward",
            Rung.OFFLOAD: "taken with saved tensors on the host",
            Rung.GIVE_UP: "given up, with everything as it was",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the batches of one shape are taken."""

    parts: int = 1
    checkpoint: bool = False
    """Whether the modules that may be are computed again in backward, instead of kept."""
    offload: bool = False
    """Whether what forward saves for backward is kept in the host's memory."""

    @property
    def is_direct(self) -> bool:
        """Whether what forward saves stays on the device."""
        return not (self.checkpoint or self.offload)

    @property
    def is_plain(self) -> bool:
        return self.is_direct and self.parts == 1


PLAIN: Final = Plan()
"""The plan of a batch that is taken whole, with nothing around it."""


@dataclass(slots=True)
class _Memory:
    plan: Plan
    successes: int = 0
    patience: int = _GROW_AFTER
    trying: Plan | None = None


class Plans:
    """The plan for each shape; it learns from what fails and grows back after a stretch that goes well."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[Shape, _Memory] = OrderedDict()

    def plan_for(self, shape: Shape) -> Plan | None:
        """Return the plan to take a batch of this shape with; None for a shape that nothing is known of."""
        memory = self._shapes.get(shape)
        if memory is None:
            return None
        self._shapes.move_to_end(shape)
        if memory.successes >= memory.patience and not memory.plan.is_plain:
            memory.trying = _eased(memory.plan)
            return memory.trying
        return memory.plan

    def is_trying(self, shape: Shape) -> bool:
        """Tell whether the plan that was last returned for a shape is more than what is known to fit."""
        memory = self._shapes.get(shape)
        return memory is not None and memory.trying is not None

    def succeeded(self, shape: Shape, plan: Plan) -> None:
        """Learn that a batch of this shape fits with this plan."""
        memory = self._shapes.get(shape)
        plan = PLAIN if plan.is_plain else plan
        if memory is None:
            self._shapes[shape] = _Memory(plan)
            if len(self._shapes) > _SHAPES:
                self._shapes.popitem(last=False)
            return
        if (memory.trying is not None and plan == memory.trying) or plan != memory.plan:
            memory.plan, memory.trying, memory.successes = plan, None, 0
        else:
            memory.successes += 1

    def adopt(self, shape: Shape, parts: int) -> None:
        """Take a batch of this shape in at least so many parts from now on, as another rank has to."""
        memory = self._shapes.setdefault(shape, _Memory(PLAIN))
        if memory.plan.parts < parts:
            memory.plan = replace(memory.plan, parts=parts)
        memory.trying, memory.successes = None, 0

    def failed_to_grow(self, shape: Shape) -> Plan:
        """Learn that the plan that was tried does not fit; return the one that does."""
        memory = self._shapes[shape]
        memory.trying, memory.successes = None, 0
        memory.patience = min(2 * memory.patience, _GROW_AFTER_AT_MOST)
        return memory.plan


def _eased(plan: Plan) -> Plan:
    """The next plan towards the plain one: what costs most time goes first."""
    if plan.offload:
        return replace(plan, offload=False)
    if plan.checkpoint:
        return replace(plan, checkpoint=False)
    return replace(plan, parts=max(plan.parts // 2, 1))
