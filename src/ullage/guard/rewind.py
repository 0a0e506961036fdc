"""What forward and backward change beside the loss, recorded before an attempt and put back when it has failed.

Random numbers (Python, numpy, torch on the CPU and on the cards), buffers such as BatchNorm's statistics, and
gradients. No parameter is copied. Gradients that earlier calls have left are added to in place, as in any loop; one
that the failed attempt has added to already is finished, and what the next attempt adds to it is dropped as soon as it
is made.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter, is_
from typing import Any, Final

import torch
from torch import nn

from ullage.guard.chance import Chance

_SMALL_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 256 << 20
"""Buffers up to the first are copied at every step; larger ones (masks, tables of positions) up to the second at the
first step, and from then on only if they have been seen to change."""
_version: Final = attrgetter("_version")


class Rewind:
    """`record()` before an attempt; `back()` puts everything as it was; `keep()` after one that went well."""

    def __init__(
        self, modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter], devices: Sequence[torch.device]
    ) -> None:
        self.parameters = parameters
        self._chance = Chance(devices)
        self._buffers = _Buffers(modules)
        self._gradients: dict[int, tuple[torch.Tensor, int]] = {}

    def record(self, *, is_fresh: bool) -> None:
        """Record what the next attempt may change; `is_fresh` where no parameter has a gradient."""
        gradients = () if is_fresh else enumerate(map(_gradient, self.parameters))
        self._gradients = {
            index: (gradient, gradient._version) for index, gradient in gradients if gradient is not None
        }
        self._chance.record()
        self._buffers.record()

    def back(self) -> set[int]:
        """Put everything as it was when it was recorded.

        Returns:
            The parameters, by their places, whose gradient of earlier calls has what the attempt added to it.

        Raises:
            RuntimeError: a large buffer has changed for the first time in the attempt that failed.
        """
        finished: set[int] = set()
        for index, parameter in enumerate(self.parameters):
            gradient, version = self._gradients.get(index, (None, 0))
            if gradient is not None and gradient._version != version:
                finished.add(index)
            parameter.grad = gradient
        self._chance.back()
        self._buffers.back()
        return finished

    def keep(self) -> None:
        """Hold nothing of an attempt that went well."""
        self._gradients = {}
        self._chance.forget()
        self._buffers.keep()

    def mark(self) -> Callable[[], bool]:
        """Copy what is recorded now, and return what puts it back when later attempts have been recorded too.

        That returns whether gradients of earlier calls had to be dropped, because they have been added to since.
        """
        states, gradients, buffers = self._chance.states, dict(self._gradients), self._buffers.values()

        def back() -> bool:
            is_dropped = False
            for index, parameter in enumerate(self.parameters):
                gradient, version = gradients.get(index, (None, 0))
                is_whole = gradient is None or gradient._version == version
                parameter.grad = gradient if is_whole else None
                is_dropped |= not is_whole
            self._chance.back(states)
            self._buffers.set_values(buffers)
            return is_dropped

        return back

    def drop(self, finished: Collection[int]) -> bool:
        """Drop these gradients; return whether there were any."""
        for index in finished:
            self.parameters[index].grad = None
        return bool(finished)

    @contextmanager
    def without(self, finished: Collection[int]) -> Iterator[None]:
        """Leave the gradients of these parameters as they are: what is made for them is dropped at once."""
        if not finished:
            yield
            return
        aside = [(self.parameters[index], self.parameters[index].grad) for index in finished]
        hooks = [parameter.register_post_accumulate_grad_hook(_drop) for parameter, _ in aside]
        for parameter, _ in aside:
            parameter.grad = None
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for parameter, gradient in aside:
                parameter.grad = gradient


class _Buffers:
    """The buffers of modules and copies of them, in lists that one call of PyTorch copies."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._places = [(child, name) for module in modules for child in module.modules() for name in child._buffers]
        self._tensors: list[torch.Tensor | None] = []
        self._versions: list[int | None] = []
        self._copies: dict[int, torch.Tensor] = {}
        self._groups: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self._constant: set[int] = set()
        self._large: list[int] = []

    def record(self) -> None:
        self._versions = []  # nothing is put back of a recording that fails
        tensors = [module._buffers.get(name) for module, name in self._places]
        if len(tensors) != len(self._tensors) or not all(map(is_, tensors, self._tensors)):
            self._copy_anew(tensors)
        if self._groups:
            with torch.no_grad():
                for copies, sources in self._groups:
                    torch._foreach_copy_(copies, sources)
        self._versions = [tensor._version if tensor is not None else None for tensor in tensors]

    def _copy_anew(self, tensors: list[torch.Tensor | None]) -> None:
        """Some buffer is another tensor than before: copies that fit it, and lists of one device and type each."""
        self._tensors = []
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for place, tensor in enumerate(tensors):
            if tensor is None or place in self._constant or tensor.nbytes > _FIRST_BYTES:
                self._copies.pop(place, None)
                continue
            copy = self._copies.get(place)
            if copy is None or _form(copy) != _form(tensor):
                copy = self._copies[place] = torch.empty_like(tensor, requires_grad=False)
            copies, sources = groups.setdefault((tensor.device, tensor.dtype), ([], []))
            copies.append(copy)
            sources.append(tensor)
        self._tensors, self._groups = tensors, list(groups.values())
        self._large = [place for place, copy in self._copies.items() if copy.nbytes > _SMALL_BYTES]

    def back(self) -> None:
        for place, (tensor, version) in enumerate(zip(self._tensors, self._versions, strict=False)):
            module, name = self._places[place]
            module._buffers[name] = tensor
            if tensor is None or (place not in self._copies and tensor._version == version):
                continue  # the version alone would not do: batch_norm leaves that of its statistics as it is
            if place not in self._copies:
                raise RuntimeError(
                    f"the buffer {name} of {type(module).__name__} ({tensor.nbytes:,} bytes) changed in the step that "
                    "ran out of memory, and there was no copy of it; expected a buffer of this size to change from the "
                    "first step on, or never"
                )
            with torch.no_grad():
                tensor.copy_(self._copies[place])

    def values(self) -> list[tuple[int, torch.Tensor | None, torch.Tensor | None]]:
        """Return each buffer, and a copy of what was recorded of it."""
        copies = {place: copy.clone() for place, copy in self._copies.items()}
        return [(place, tensor, copies.get(place)) for place, tensor in enumerate(self._tensors)]

    def set_values(self, values: list[tuple[int, torch.Tensor | None, torch.Tensor | None]]) -> None:
        for place, tensor, copy in values:
            module, name = self._places[place]
            module._buffers[name] = tensor
            if tensor is not None and copy is not None:
                with torch.no_grad():
                    tensor.copy_(copy)

    def keep(self) -> None:
        """Give up the copies of large buffers that have not changed, and the hold on those that were replaced."""
        if not all(map(is_, [module._buffers.get(name) for module, name in self._places], self._tensors)):
            self._tensors, self._groups = [], []
            return
        constant = [place for place in self._large if self._is_unchanged(place)]
        if constant:
            self._constant.update(constant)
            self._tensors = []  # the lists are made again, without these

    def _is_unchanged(self, place: int) -> bool:
        tensor = self._tensors[place]
        return tensor is not None and tensor._version == self._versions[place]


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


_gradient: Final = attrgetter("grad")


def _drop(parameter: torch.Tensor) -> None:
    parameter.grad = None
