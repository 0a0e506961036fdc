"""Modules whose result for one item depends on the others of the batch: BatchNorm and what is like it."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BatchNorm = Literal["freeze", "allow"]


class BatchNorms:
    """The batch norms of a model and what is to become of them when a batch is split."""

    def __init__(self, modules: Sequence[nn.Module], choice: BatchNorm | None) -> None:
        self._choice = choice
        self._modules = [child for module in modules for child in module.modules() if isinstance(child, _BatchNorm)]
        self._has_warned = False

    @property
    def freezes(self) -> bool:
        """Whether the choice is "freeze"."""
        return self._choice == "freeze"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Normalise with the running statistics and leave these as they are, where the choice is "freeze"."""
        if not self.freezes:
            yield
            return
        training = [module for module in self._modules if module.training and module.running_mean is not None]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def warn_of(self, items: int, parts: int) -> None:
        """Say once what splitting does to statistics, unless the user has chosen."""
        without = [module for module in self._modules if module.running_mean is None]  # and so even in evaluation
        affected = (
            without if self._choice == "freeze" else [one for one in self._modules if one.training or one in without]
        )
        if self._choice == "allow" or self._has_warned or not affected:
            return
        self._has_warned = True
        if self._choice == "freeze":
            what = "have no running statistics (track_running_stats=False) that batchnorm='freeze' could use"
            cure = "Have them track running statistics"
        else:
            what = f"update those that they track {parts} times a step instead of once"
            cure = "Pass batchnorm='freeze' to normalise with the running statistics in every step"
        warnings.warn(
            f"a batch of {items} items is taken in {parts} parts, and {len(affected)} modules such as "
            f"{type(affected[0]).__name__} normalise with the statistics of a part of {-(-items // parts)} items "
            f"instead of the batch's, and {what}: the gradient is not that of the whole batch. {cure}, or "
            "batchnorm='allow' to accept it without this warning",
            stacklevel=6,  # warn_of, _apply, run, climb, step, and the line that calls it
        )
