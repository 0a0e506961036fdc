"""Compares, copies and restores single tensors."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

SMALL_BYTES: Final = 1 << 20
"""The maximum size, in bytes, of a tensor that is copied at every step."""
FIRST_BYTES: Final = 256 << 20
"""The maximum size, in bytes, of a tensor that is copied at all."""


# The types of tensors that one process can read alone. Reading a tensor that is sharded over ranks needs all ranks.
_PLAIN: Final = (torch.Tensor, nn.Parameter, nn.Buffer)


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version counter, which increases with each write. Return -1 for an inference tensor."""
    return -1 if tensor.is_inference() else tensor._version


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version counters of these tensors."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # some are inference tensors
        return list(map(version_of, tensors))


def addresses_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the addresses of these tensors. They change after `tensor.data = ...`."""
    try:
        return [tensor.data_ptr() for tensor in tensors]
    except RuntimeError:  # some have no memory that this process can address
        return [tensor.data_ptr() if type(tensor) in _PLAIN else 0 for tensor in tensors]


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


def parameters_in(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    return [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
