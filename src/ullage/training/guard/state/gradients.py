"""Restores the gradients of earlier calls after a failed backward, and adds nothing to them twice.

Gradients are not copied. A version counter shows how often a backward has added to a gradient; the retry skips so many
additions.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Final

import torch
from torch import nn

Additions = Collection[tuple[int, int]]
"""Pairs of a parameter's index and a gradient's version counter. Each pair stands for one addition to a gradient."""


class EarlierGradients:
    """A record of the gradients of parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._recorded: dict[int, tuple[torch.Tensor, int]] = {}

    def record(self, *, is_fresh: bool) -> None:
        """Record the gradients. `is_fresh` is True if no parameter has a gradient."""
        self._recorded = {}
        if not is_fresh:
            for index, gradient in enumerate(map(_gradient, self._parameters)):
                if gradient is not None:
                    self._recorded[index] = gradient, gradient._version

    def have_changed(self) -> bool:
        """Return whether a gradient was added to, made or dropped."""
        recorded = (self._recorded.get(index, (None, 0)) for index in range(len(self._parameters)))
        return any(
            parameter.grad is not gradient or (gradient is not None and gradient._version != version)
            for parameter, (gradient, version) in zip(self._parameters, recorded, strict=True)
        )

    def restore(self) -> set[tuple[int, int]]:
        """Drop new gradients. Return the additions that the failed attempt has made to gradients of earlier calls."""
        finished: set[tuple[int, int]] = set()
        for index, parameter in enumerate(self._parameters):
            gradient, version = self._recorded.get(index, (None, 0))
            if gradient is not None:
                finished.update((index, added) for added in range(version, gradient._version))
            parameter.grad = gradient
        return finished

    def check_apart(self, finished: Additions) -> None:
        """Check that the additions to each gradient can be counted.

        Raises:
            RuntimeError: gradients that were added to are views of one tensor, and share a version counter.
        """
        if not finished:
            return
        memories = Counter(_memory(gradient) for gradient, _ in self._recorded.values())
        for index in {index for index, _ in finished}:
            several = memories[_memory(self._recorded[index][0])]
            if several > 1:
                raise RuntimeError(
                    f"the gradients of {several} parameters are views of one tensor (as with "
                    "gradient_as_bucket_view=True), and memory ran out after some of these gradients had been added "
                    "to; which ones is not known. Expected a separate tensor for each gradient: use "
                    "zero_grad(set_to_none=True)"
                )

    def drop(self, finished: Additions) -> bool:
        """Set the gradients to None to which a failed attempt has added. Return whether there was such a gradient."""
        for index, _ in finished:
            self._parameters[index].grad = None
        return bool(finished)

    @contextmanager
    def without(self, finished: Additions) -> Iterator[None]:
        """Inside this context, skip additions that a failed attempt has already made.

        Raises:
            RuntimeError: fewer additions were made to a gradient than in the failed attempt.
        """
        if not finished:
            yield
            return
        again = [
            _RepeatedAdditions(self._parameters[index], count)
            for index, count in Counter(index for index, _ in finished).items()
        ]
        try:
            yield
        finally:
            for one in again:
                one.finish()
        if not all(one.is_whole for one in again):
            raise RuntimeError(
                "the attempt that ran out of memory added to a gradient more often than the complete retry did, so the "
                "value of the gradient is not known; expected each backward to add to a gradient equally often: pass "
                "use_reentrant=False to checkpoint(), and do not write gradients in post-accumulate hooks"
            )


class _RepeatedAdditions:
    def __init__(self, parameter: nn.Parameter, count: int) -> None:
        self._parameter = parameter
        self._count = self._left = count
        self._gradient = parameter.grad
        parameter.grad = None
        self._hook = parameter.register_post_accumulate_grad_hook(self._drop)

    def _drop(self, parameter: torch.Tensor) -> None:
        if self._left:
            self._left -= 1
            parameter.grad = None if self._left else self._gradient

    @property
    def is_whole(self) -> bool:
        # also True if the retry made none, because its items do not use the parameter
        return self._left in (0, self._count)

    def finish(self) -> None:
        self._hook.remove()
        if self._left:
            self._parameter.grad = self._gradient


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


_gradient: Final = attrgetter("grad")
