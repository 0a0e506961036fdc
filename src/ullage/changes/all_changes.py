"""Every change there is, the cheapest first, and those that a request names."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ullage._errors import UsageError, quoted
from ullage.changes import (
    expandable_segments,
    for_loop_optimizer,
    fused_optimizer,
    large_blocks,
)
from ullage.changes.change import Change

if TYPE_CHECKING:
    from ullage.changes.training_loop import TrainingLoop

CHANGES: Final[tuple[Change, ...]] = (
    expandable_segments.CHANGE,
    large_blocks.CHANGE,
    fused_optimizer.CHANGE,
    for_loop_optimizer.CHANGE,
)
_BY_KEY: Final = {change.key: change for change in CHANGES}


def change_named(text: str) -> tuple[Change, str]:
    """Return the change and the setting that a text of the form `key=setting` names.

    Raises:
        UsageError: there is no such change.
    """
    key, _, setting = text.partition("=")
    if key not in _BY_KEY:
        raise UsageError(f"the change {quoted(text)} is not known; expected one of {', '.join(_BY_KEY)}")
    return _BY_KEY[key], setting


def install(changes: Sequence[str], note: Callable[[str], None]) -> "TrainingLoop":
    """Make changes in this process, in which torch has just been imported."""
    from ullage.changes.training_loop import TrainingLoop

    loop = TrainingLoop(note)
    loop.install()
    for text in changes:
        change, setting = change_named(text)
        if change.install is not None:
            change.install(loop, setting)
    return loop
