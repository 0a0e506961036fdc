"""List all changes that ullage can apply, the cheapest first, and find a change by its key."""

import copyreg
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ullage.base.errors import UsageError, quoted
from ullage.predicting.changes import (
    adapter_dtype,
    allocator_setting,
    autocast,
    autocast_cache,
    count_flops,
    fully_shard,
    held_over,
)
from ullage.predicting.changes.accumulation import accumulate
from ullage.predicting.changes.activations import checkpoint, offload, sdpa
from ullage.predicting.changes.change import AppliedChange, Change
from ullage.predicting.changes.loss import fused_loss
from ullage.predicting.changes.optimizer import (
    eight_bit_optimizer,
    optimizer_default,
    step_in_backward,
    zeroed_gradients,
)

if TYPE_CHECKING:
    from ullage.gpu.tracing.journal import Journal
    from ullage.predicting.changes.training.training_loop import TrainingLoop

CHANGES: Final[tuple[Change, ...]] = (
    held_over.CHANGE,
    allocator_setting.EXPANDABLE_SEGMENTS,
    allocator_setting.LARGE_BLOCKS,
    zeroed_gradients.CHANGE,
    autocast_cache.CHANGE,
    optimizer_default.FUSED,
    optimizer_default.FOR_LOOP,
    sdpa.CHANGE,
    step_in_backward.CHANGE,
    checkpoint.CHANGE,
    fused_loss.CHANGE,
    offload.CHANGE,
    accumulate.CHANGE,
    autocast.CHANGE,
    adapter_dtype.CHANGE,
    eight_bit_optimizer.CHANGE,
    fully_shard.CHANGE,
)
_BY_KEY: Final = {change.key: change for change in (*CHANGES, count_flops.CHANGE)}


def change_of(key: str) -> Change:
    """Return the change with the given key."""
    return _BY_KEY[key]


# A change is pickled by its key, because its functions cannot be pickled.
copyreg.pickle(Change, lambda change: (change_of, (change.key,)))


def change_named(text: str) -> tuple[Change, str]:
    """Parse a text such as "checkpoint=all", and return the change and its setting.

    Raises:
        UsageError: no change has this key.
    """
    key, _, setting = text.partition("=")
    if key not in _BY_KEY:
        raise UsageError(f"the change {quoted(text)} is unknown; expected one of {', '.join(_BY_KEY)}")
    return _BY_KEY[key], setting


def install(changes: Sequence[str], journal: "Journal | None" = None) -> "TrainingLoop":
    """Apply changes in this process, right after torch has been imported.

    Args:
        changes: the changes, each as `key=setting`.
        journal: the record of the run's allocations, if facts about training are to be collected from it; otherwise
            None.
    """
    from ullage.predicting.changes.training.gather import Gatherer
    from ullage.predicting.changes.training.training_loop import TrainingLoop

    loop = TrainingLoop()
    loop.install()
    if journal is not None:
        Gatherer(loop, journal).install()
    for text in changes:
        change, setting = change_named(text)
        if change.install is None:
            continue
        applied = AppliedChange(loop, text, setting)
        try:
            change.install(applied)
        except Exception as error:
            applied.refuse(f"the change cannot be applied: {type(error).__name__}: {error}")
    return loop
