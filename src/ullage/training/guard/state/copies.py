"""Tensors that a step may write beside buffers and gradients: watched by their versions, copied where they are small or
were seen to change, and put back."""

import copy
from collections.abc import Sequence
from typing import Any, Final, Self

import torch
from torch import nn

SMALL_BYTES: Final = 1 << 20
"""The size up to which tensors are copied at every step."""
FIRST_BYTES: Final = 256 << 20
"""The largest tensor that is copied at all."""


_PLAIN: Final = (torch.Tensor, nn.Parameter, nn.Buffer)
"""Kinds of tensors that this process alone has: to read one that is shared out over ranks, all ranks would have to."""


class WatchedTensors:
    """Tensors with their names, the versions that they had when they were recorded, and copies of some."""

    def __init__(self) -> None:
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._versions: list[int] = []
        self._copies: dict[int, torch.Tensor] = {}

    def _is_same(self, number: int) -> bool:
        raise NotImplementedError

    def _learn(self, number: int) -> None:
        """Copy a tensor from the next record on, because it was seen to change."""
        raise NotImplementedError

    def uncopied(self) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors of which there is no copy."""
        return [one for number, one in enumerate(self._tensors) if number not in self._copies]

    def changed(self) -> list[str]:
        """Return the names of the tensors that are not as they were recorded."""
        return [self._tensors[number][0] for number in range(len(self._versions)) if not self._is_same(number)]

    def restore(self) -> list[str]:
        """Put values back; return the names of tensors that have changed and of which there is no copy."""
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
        """Return a record of the same values, which later records do not change."""
        kept = copy.copy(self)
        kept._tensors, kept._versions = list(self._tensors), list(self._versions)
        kept._copies = {number: one.clone() for number, one in self._copies.items()}
        return kept


class Copies(WatchedTensors):
    """Tensors of which small ones, and those that were seen to change, are copied."""

    def __init__(self, changing: set[str] | None = None, *, is_copying: bool = True) -> None:
        """Make an empty list.

        Args:
            changing: the names of large tensors that were seen to change, which is added to.
            is_copying: whether tensors of up to `SMALL_BYTES`, and those that change, are copied.
        """
        super().__init__()
        self._changing = set[str]() if changing is None else changing
        self._is_copying = is_copying
        self._places: list[tuple[Any, ...]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Watch one more tensor, from now on."""
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
        """Whether no tensor is watched."""
        return not self._tensors

    def record(self) -> None:
        """Note versions, and copy, again."""
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
        """Learn which large tensors have changed: they are copied from the next record on."""
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
    """Return a tensor's version counter, which rises with each write; -1 for inference tensors, which have none."""
    return -1 if tensor.is_inference() else tensor._version


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version counters of tensors."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # some are made for inference
        return list(map(version_of, tensors))


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what changes when a tensor is given other memory (`tensor.data = ...`)."""
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except RuntimeError:  # sparse, nested, or without memory
        return (id(tensor),)


def is_equal(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Compare bits, so that not-a-number is equal to itself."""
    if (tensor.shape, tensor.dtype, tensor.device) != (copy.shape, copy.dtype, copy.device):
        return False
    ours, theirs = (one.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for one in (tensor, copy))
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))


def put_back(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    """Write a copy back into the memory that a tensor has now, or give it memory if its shape has changed."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        if (tensor.shape, tensor.dtype, tensor.device) == (copy.shape, copy.dtype, copy.device):
            tensor.copy_(copy)
        else:
            tensor.data = copy.clone()


def can_be_copied(tensor: torch.Tensor) -> bool:
    """Tell whether each element of a tensor has its own memory, so that a copy can be written back to it."""
    return (
        not nn.parameter.is_lazy(tensor)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and torch._debug_has_internal_overlap(tensor) != _OVERLAPS
    )


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor can be copied and read in this process alone."""
    return type(tensor) in _PLAIN and can_be_copied(tensor)


_OVERLAPS: Final = 1
"""PyTorch's answer for a tensor that certainly overlaps itself, such as an expanded one."""


def digest_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return sums over a tensor's bits, which a write that no version shows (`.data`) changes too; None for a kind of
    tensor that does not show its bits."""
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
