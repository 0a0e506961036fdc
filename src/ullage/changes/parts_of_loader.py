"""Parts of the batches of a `DataLoader`, each a turn of the script's loop; the step is taken behind the last of them.

The loop zeroes gradients, clips, steps and schedules in every turn. What it asks for in the turns in between is left
out; the loss is multiplied by the part's share where its backward pass is asked for. So do the lines of a person:
`(loss * share).backward()`, and `if it is the last part:` before the rest.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ullage.changes.library_arguments import LibraryArguments

if TYPE_CHECKING:
    from ullage.changes.training_loop import TrainingLoop

_LEFT_OUT: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("torch.amp.grad_scaler", "GradScaler", ("step", "update", "unscale_")),
    ("torch.optim.lr_scheduler", "LRScheduler", ("step",)),
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau", ("step",)),
)
_CLIPPING: Final = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


@dataclass(slots=True)
class _Turn:
    """The part that the loop has in hand."""

    index: int = 0
    count: int = 1
    share: float = 1.0
    has_passed_back: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the step may be taken behind this part."""
        return self.index == self.count - 1


class PartsOfLoader:
    """Cuts what loaders give, and leaves out what only the last part's turn may do."""

    def __init__(self, loop: "TrainingLoop", text: str, parts: int) -> None:
        self._loop = loop
        self._text = text
        self._parts = parts
        self._turn = _Turn()
        self._stepping: set[type] = set()
        self._library = LibraryArguments(loop, text, parts)
        self._depth = 0
        """The number of loaders that are giving a batch: a loader that hands on what another gives is cut alone."""
