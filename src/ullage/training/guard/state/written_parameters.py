"""Detects and restores parameters that forward writes, such as the key encoder in momentum contrast.

A write is detected by the version counter. A write through `.data` is detected when the step is retried.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ullage.training.guard.state.copies import (
    FIRST_BYTES,
    WatchedTensors,
    digest_of,
    is_equal,
    is_plain_tensor,
    version_of,
    versions_of,
)


class WrittenParameters(WatchedTensors):
    """A record of a model's parameters. It has copies of the parameters to which the forward pass writes."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], trained: Collection[int]) -> None:
        super().__init__()
        self._tensors = list(named)
        self._parameters: list[torch.Tensor] = [parameter for _, parameter in named]
        self._trained = trained
        self._digests: dict[int, tuple[int, ...] | None] = {}
        self._written: list[int] = []
        self.is_first = True
        self._unmade: set[int] = set()
        self._lazy = {number for number, one in enumerate(self._parameters) if is_lazy(one)}

    def record(self) -> None:
        """Record the version counters of all parameters. Copy the parameters to which the forward pass writes."""
        self._unmade = {number for number in self._lazy if is_lazy(self._parameters[number])} if self._lazy else set()
        self._versions = versions_of(self._parameters)
        if self.is_first and not self._copies and not self._digests:
            self._record_untrained()
        for number in self._written:
            self._copy(number)

    def _record_untrained(self) -> None:
        left_bytes = FIRST_BYTES
        copies: dict[int, torch.Tensor] = {}
        digests: dict[int, tuple[int, ...] | None] = {}
        for number, parameter in enumerate(self._parameters):
            if number in self._lazy or (id(parameter) in self._trained and parameter.requires_grad):
                continue
            if is_plain_tensor(parameter) and parameter.nbytes <= left_bytes:
                left_bytes -= parameter.nbytes
                copies[number] = parameter.detach().clone()
            else:
                digests[number] = digest_of(parameter)
        self._copies, self._digests = copies, digests  # both at once, or neither if memory runs out

    def _copy(self, number: int) -> None:
        parameter, copy = self._parameters[number], self._copies.get(number)
        if copy is None or copy.shape != parameter.shape or copy.device != parameter.device:
            self._copies[number] = parameter.detach().clone()
            return
        with torch.no_grad():
            copy.copy_(parameter)

    def settle(self) -> None:
        """Find the parameters that were written. The next `record()` copies them."""
        if self.is_first:
            self.is_first = False
            for number in [*self._copies, *self._digests]:
                if not self._is_same(number):
                    self._learn(number)
            self._digests = {}
        versions = versions_of(self._parameters)
        if versions != self._versions:
            for number, (now, before) in enumerate(zip(versions, self._versions, strict=True)):
                if now != before and number not in self._lazy:
                    self._learn(number)
        self._lazy = {number for number in self._lazy if is_lazy(self._parameters[number])} if self._lazy else set()
        if len(self._copies) > len(self._written):
            self._copies = {number: self._copies[number] for number in self._written if number in self._copies}

    def _learn(self, number: int) -> None:
        parameter = self._parameters[number]
        if number not in self._written and is_plain_tensor(parameter) and parameter.nbytes <= FIRST_BYTES:
            self._written.append(number)

    def learn(self, name: str) -> None:
        """Include the parameter with this name in the copies of all later `record()` calls."""
        names = [one for one, _ in self._tensors]
        if name in names:
            self._learn(names.index(name))

    def _is_same(self, number: int) -> bool:
        parameter = self._parameters[number]
        if number in self._lazy:
            # The first forward initialises it, once. A parameter with two or more dimensions is initialised with random
            # numbers.
            return is_lazy(parameter) or parameter.dim() < 2 or number not in self._unmade
        if number in self._copies:
            return is_equal(parameter, self._copies[number])
        if version_of(parameter) != self._versions[number]:
            return False
        digest, before = digest_of(parameter) if number in self._digests else None, self._digests.get(number)
        return digest is None or before is None or digest == before

    def uncopied(self) -> list[tuple[str, torch.Tensor]]:
        left_out = self._copies.keys() | self._lazy
        return [one for number, one in enumerate(self._tensors) if number not in left_out]


def parameters_in(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    return [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]


def names_of(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters, each with a name for error messages. The names come from the given modules."""
    names: dict[int, Any] = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            names.setdefault(id(parameter), name)
    return [(f"the parameter {names.get(id(one), 'of an optimizer')}", one) for one in parameters]
