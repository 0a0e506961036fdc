"""The buckets of DistributedDataParallel, in which gradients are reduced; they are kept in C++."""

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ullage.training.ownership import attribute
from ullage.training.ownership.safe_inspection import instance_dict, is_of

_IN_CPP: Final = ("reducer", "logger")
_ROUNDED_BYTES: Final = 512


def has_buckets(module: nn.Module) -> bool:
    """Tell whether a module is a DistributedDataParallel that still has its buckets."""
    return is_of(module, (DistributedDataParallel,)) and _IN_CPP[0] in (instance_dict(module) or {})


def is_bucket(module: nn.Module, size_bytes: int) -> bool:
    """Tell whether a block is as large as neighbouring parameters together, or as the map of the used parameters.

    Blocks of a reducer can only be recognised by their size.
    """
    parameters = (instance_dict(module) or {}).get("_module_parameters")
    sizes = [one.numel() * one.element_size() for one in parameters or () if isinstance(one, Tensor)]
    if size_bytes - _ROUNDED_BYTES < len(sizes) * torch.int32.itemsize <= size_bytes:
        return True
    first, total = 0, 0
    for size in sizes:
        total += size
        while total > size_bytes:
            total -= sizes[first]
            first += 1
        if size_bytes - _ROUNDED_BYTES < total <= size_bytes:
            return True
    return False


def drop_buckets(module: nn.Module) -> None:
    """Free the buckets of a DistributedDataParallel, which cannot run afterwards."""
    variables = instance_dict(module) or {}
    if variables.get("gradient_as_bucket_view"):
        for parameter in variables.get("_module_parameters") or ():
            gradient = attribute.GRAD.__get__(parameter)
            if gradient is not None and gradient.is_cuda:
                gradient.untyped_storage().resize_(0)
    for name in _IN_CPP:
        variables.pop(name, None)
    _settle(variables.get("process_group"), variables.get("device_ids"))


def _settle(group: Any, devices: list[Any] | None) -> None:
    """Have NCCL drop its references to the last reduced buckets, which it does at its next call.

    With more than one rank this is not possible, because all of them would have to call it.
    """
    if group is None or not devices or dist.get_world_size(group) != 1 or "nccl" not in dist.get_backend(group):
        return
    dist.all_reduce(torch.zeros(1, device=torch.device("cuda", devices[0])), group=group)
