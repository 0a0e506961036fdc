"""Detects and undoes writes to tensors other than buffers and gradients.

A tensor's version counter shows whether it was written. Small tensors are copied in advance, large tensors only after
the first write to them.
"""

import copy
from collections.abc import Sequence
from typing import Any, Final, Self

import torch
from torch import nn

SMALL_BYTES: Final = 1 << 20
"""The maximum size, in bytes, of a tensor that is copied at every step."""
FIRST_BYTES: Final = 256 << 20
"""The maximum size, in bytes, of a tensor that is copied at all."""


# The types of tensors that one process can read alone. Reading a tensor that is sharded over ranks needs all ranks.
_PLAIN: Final = (torch.Tensor, nn.Parameter, nn.Buffer)


class WatchedTensors:
    """A record of tensors that detects later writes to them, by version counters or by copies."""

    def __init__(self) -> None:
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._versions: list[int] = []
        self._copies: dict[int, torch.Tensor] = {}

    def _is_same(self, number: int) -> bool:
        raise NotImplementedError

    def _learn(self, number: int) -> None:
        raise NotImplementedError

    def uncopied(self) -> list[tuple[str, torch.Tensor]]:
        """Return the names and tensors that have no copy."""
        return [one for number, one in enumerate(self._tensors) if number not in self._copies]

    def changed(self) -> list[str]:
        """Return the names of the tensors that have changed since the last call of `record()`."""
        return [self._tensors[number][0] for number in range(len(self._versions)) if not self._is_same(number)]

    def restore(self) -> list[str]:
        """Restore the tensors from their copies. Return the names of changed tensors without a copy."""
        lost = []
        for number, (name, tensor) in enumerate(self._tensors[: len(self._versions)]):
            if self._is_same(number):
                continue
            if number in self._copies:
                put_back(tensor, self._copies[number])
            else:
                lost.append(name)
                self._learn(number)
        return lost

    def kept(self) -> Self:
        """Return a copy of this record, which later calls of `record()` do not change."""
        kept = copy.copy(self)
        kept._tensors, kept._versions = list(self._tensors), list(self._versions)
        kept._copies = {number: one.clone() for number, one in self._copies.items()}
        return kept


class Copies(WatchedTensors):
    """A record of tensors, with copies of the small ones and of those that have changed before."""

    def __init__(self, changing: set[str] | None = None, *, is_copying: bool = True) -> None:
        """Create an empty record of tensors.

        Args:
            changing: the names of tensors that have changed before. The record adds the names of tensors that change.
            is_copying: whether the record copies small tensors (up to `SMALL_BYTES`) and the tensors in `changing`.
        """
        super().__init__()
        self._changing = set[str]() if changing is None else changing
        self._is_copying = is_copying
        self._places: list[tuple[Any, ...]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor to the record."""
        number = len(self._tensors)
        self._tensors.append((name, tensor))
        self._versions.append(version_of(tensor))
        self._places.append(place_of(tensor))
        if self._is_copied(name, tensor):
            self._copies[number] = tensor.detach().clone()

    def _is_copied(self, name: str, tensor: torch.Tensor) -> bool:
        if not self._is_copying or not is_plain_tensor(tensor) or tensor.nbytes > FIRST_BYTES:
            return False
        return tensor.nbytes <= SMALL_BYTES or name in self._changing

    @property
    def is_empty(self) -> bool:
        return not self._tensors

    def record(self) -> None:
        """Record the version counters of the tensors, and copy their values."""
        if not self._tensors:
            return
        self.settle()
        self._versions = [version_of(tensor) for _, tensor in self._tensors]
        self._places = [place_of(tensor) for _, tensor in self._tensors]
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for number, (name, tensor) in enumerate(self._tensors):
            if not self._is_copied(name, tensor):
                self._copies.pop(number, None)
                continue
            copy = self._copies.get(number)
            if copy is None or (copy.shape, copy.dtype, copy.device) != (tensor.shape, tensor.dtype, tensor.device):
                self._copies[number] = tensor.detach().clone()
                continue
            copies, sources = groups.setdefault((tensor.device, tensor.dtype), ([], []))
            copies.append(copy)
            sources.append(tensor.detach())
        with torch.no_grad():
            for copies, sources in groups.values():
                torch._foreach_copy_(copies, sources)

    def settle(self) -> None:
        """Find the tensors that have changed. The next `record()` copies them even if they are large."""
        for number, (_, tensor) in enumerate(self._tensors):
            if version_of(tensor) != self._versions[number]:
                self._learn(number)

    def _learn(self, number: int) -> None:
        self._changing.add(self._tensors[number][0])

    def _is_same(self, number: int) -> bool:
        tensor, copy = self._tensors[number][1], self._copies.get(number)
        if copy is None:
            return version_of(tensor) == self._versions[number] and place_of(tensor) == self._places[number]
        return is_equal(tensor, copy)


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version counter, which increases with each write. Return -1 for an inference tensor."""
    return -1 if tensor.is_inference() else tensor._version


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version counters of these tensors."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # some are inference tensors
        return list(map(version_of, tensors))


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the address, shape and strides of a tensor. They change after `tensor.data = ...`."""
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except RuntimeError:  # a sparse or nested tensor, or a tensor without memory
        return (id(tensor),)


def is_equal(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits, including NaN values."""
    if (tensor.shape, tensor.dtype, tensor.device) != (copy.shape, copy.dtype, copy.device):
        return False
    ours, theirs = (one.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for one in (tensor, copy))
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def put_back(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    """Write a copy back into a tensor. If its shape, dtype or device has changed, give it new memory."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        if (tensor.shape, tensor.dtype, tensor.device) == (copy.shape, copy.dtype, copy.device):
            tensor.copy_(copy)
        else:
            tensor.data = copy.clone()


def can_be_copied(tensor: torch.Tensor) -> bool:
    """Return whether no two elements of a tensor share memory. Only then can a copy be written back."""
    return (
        not nn.parameter.is_lazy(tensor)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and torch._debug_has_internal_overlap(tensor) != _OVERLAPS
    )


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor can be copied by this process alone."""
    return type(tensor) in _PLAIN and can_be_copied(tensor)


# The result of PyTorch's overlap check for a tensor whose elements share memory, such as an expanded tensor.
_OVERLAPS: Final = 1


def digest_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return checksums of a tensor's bits. Return None if the bits cannot be read.

    Checksums detect writes through `.data`, which do not change the version counter.
    """
    try:
        if not is_plain_tensor(tensor):
            return None
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        is_whole = flat.numel() % 4 == 0 and flat.storage_offset() % 4 == 0
        words = flat.view(torch.int32) if is_whole else flat
        return tuple(int(some.sum(dtype=torch.int64)) for some in (words, words[::2]))
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return None
