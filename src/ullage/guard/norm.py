"""Modules whose result for one item depends on the others of the batch: BatchNorm and what is like it."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

BatchNorm = Literal["freeze", "allow"]


class BatchNorms:
    """The batch norms of a model and what is to become of them when a batch is split."""

    def __init__(self, modules: Sequence[nn.Module], choice: BatchNorm | None) -> None:
        self._choice = choice
        self._modules = [child for module in modules for child in module.modules() if isinstance(child, _NormBase)]
        self._has_warned = False

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Normalise with the running statistics and leave these as they are, where the choice is "freeze"."""
        if self._choice != "freeze":
            yield
            return
        training = [module for module in self._modules if module.training and module.track_running_stats]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def warn_of(self, items: int, parts: int) -> None:
        """Say once what splitting does to statistics, unless the user has chosen."""
        affected = [module for module in self._modules if module.training]
        if self._choice is not None or self._has_warned or not affected:
            return
        self._has_warned = True
        warnings.warn(
            f"a batch of {items} items is taken in {parts} parts, and {len(affected)} modules such as "
            f"{type(affected[0]).__name__} normalise with the statistics of a part of {-(-items // parts)} items "
            f"instead of the batch's, and update their running statistics {parts} times a step instead of once: the "
            "gradient is not that of the whole batch. Pass batchnorm='freeze' to normalise with the running statistics "
            "in every step, or batchnorm='allow' to accept it without this warning",
            stacklevel=6,  # warn_of, _apply, run, climb, step, and the line that calls it
        )
