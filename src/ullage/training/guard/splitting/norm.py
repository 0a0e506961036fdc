"""Finds modules whose output for an item depends on the other items of the batch, such as BatchNorm."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BatchNorm = Literal["freeze", "allow"]


class BatchNorms:
    """The BatchNorm modules of a model. The user's argument `batchnorm` decides how they work if a batch is split."""

    def __init__(self, modules: Sequence[nn.Module], choice: BatchNorm | None) -> None:
        self._choice = choice
        self._modules = [child for module in modules for child in module.modules() if isinstance(child, _BatchNorm)]
        self._has_warned = False

    @property
    def freezes(self) -> bool:
        """Whether the user has chosen batchnorm="freeze"."""
        return self._choice == "freeze"

    def frozen(self) -> AbstractContextManager[None]:
        """Make BatchNorm use its running statistics inside this context, if the user has passed batchnorm="freeze"."""
        return self.standing_still() if self.freezes else nullcontext()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Make BatchNorm use its running statistics without updating them, inside this context."""
        training = [module for module in self._modules if module.training and module.running_mean is not None]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def warn_of_split(self, items: int, parts: int) -> None:
        """Warn once that splitting a batch changes BatchNorm's statistics, unless the user has passed `batchnorm=`."""
        without = [
            module for module in self._modules if module.running_mean is None
        ]  # they use batch statistics even in evaluation mode
        affected = (
            without if self._choice == "freeze" else [one for one in self._modules if one.training or one in without]
        )
        if self._choice == "allow" or self._has_warned or not affected:
            return
        self._has_warned = True
        if self._choice == "freeze":
            what = "have no running statistics (track_running_stats=False), which batchnorm='freeze' needs"
            cure = "Make them track running statistics"
        else:
            what = f"update their running statistics {parts} times in a step instead of once"
            cure = "Pass batchnorm='freeze' to normalise with the running statistics in every step"
        warnings.warn(
            (
                f"a batch of {items} items is run in {parts} parts, and {len(affected)} modules such as "
                f"{type(affected[0]).__name__} normalise with the statistics of a part of {-(-items // parts)} items "
                f"instead of the whole batch, and {what}; the gradient therefore differs from that of the whole batch. "
                f"{cure}, or pass batchnorm='allow' to accept it without this warning"
            ),
            stacklevel=_stacklevel_of_user(),
        )


def _stacklevel_of_user() -> int:
    # Python 3.12 and later have the parameter `skip_file_prefixes` of `warnings.warn` for this.
    package = __name__.partition(".")[0]
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return level
