"""The values that a Lightning step logs, and the metrics that it updates.

They are held back or copied, so that a failed attempt leaves no trace, and a batch in parts is logged once.
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from ullage.integrations.framework import framework
from ullage.training.guard.splitting.batch import tensors_of

_MEANS = ("mean", "avg", torch.mean)


class HeldLogs:
    """Holds back what is logged in its context: `begin_attempt()` before each attempt, `commit()` after the last."""

    def __init__(self, results: Any, module: nn.Module) -> None:
        self._results = results
        self._metrics = [child for child in module.modules() if isinstance(child, framework("torchmetrics").Metric)]
        self._before: list[tuple[nn.Module, dict[str, Any]]] = []
        self._calls: dict[str, Any] = {}
        self.logged: dict[str, Any] = {}
        """The logged values by name: a mean is a tensor, to be weighted with those of other parts; anything else is a
        function that logs it."""

    def __enter__(self) -> None:
        self._place: list[int] | None = None
        self._at_first: list[tuple[nn.Module, dict[str, Any]]] | None = None
        self._log = self._results.log
        self._results.log = self._hold

    def __exit__(self, kind: object, *_: object) -> None:
        del self._results.log
        if kind is not None and self._before and self._at_first is not None:
            self._before = self._at_first  # parts that succeeded are undone, too
        self._restore()
        self._calls, self.logged = ({}, {}) if kind is not None else (self._calls, self.logged)

    def begin_attempt(self, part: Any) -> None:
        """Undo what the attempt before has logged, if it was at the same items and has therefore failed."""
        place = [tensor.data_ptr() for tensor in tensors_of(part)]
        if place == self._place:
            self._restore()
        self._place = place
        self.logged = {}
        self._before = [(metric, _state_of(metric)) for metric in self._metrics]
        if self._at_first is None:
            self._at_first = [(metric, _state_of(metric)) for metric in self._metrics] if self._metrics else []

    def commit(self) -> None:
        self._before = []

    def log_joined(self, logged: Any) -> None:
        """Log the joined values of a batch's parts."""
        for one in logged if isinstance(logged, list) else [logged]:
            for name, value in one.items():
                for each in value if isinstance(value, list) else [value]:
                    each() if callable(each) else self._calls[name](each)
        self._calls, self.logged = {}, {}

    def _hold(self, fx: str, name: str, value: Any, **how: Any) -> None:
        log = partial(self._log, fx, name, **how)
        key = f"{len(self.logged)} {name}"
        is_mean = isinstance(value, torch.Tensor) and how.get("reduce_fx", torch.mean) in _MEANS
        self._calls[key] = log
        self.logged[key] = value if is_mean else partial(log, value)

    def _restore(self) -> None:
        for metric, state in self._before:
            for name, value in state.items():
                setattr(metric, name, value)
        self._before = []


def _state_of(metric: Any) -> dict[str, Any]:
    """Return the state that an update changes; lists are copied without their elements, which no update changes."""
    names = [*metric._defaults, "_update_count", "_computed", "_forward_cache"]
    values = ((name, getattr(metric, name)) for name in names)
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, list) else value
        for name, value in values
    }
