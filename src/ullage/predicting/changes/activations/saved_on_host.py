"""The source code of hooks that move saved tensors to host memory, which ullage copies into the user's script."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="var-annotated"

import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class saved_on_host(torch.autograd.graph.saved_tensors_hooks):
    """Keep the tensors that autograd saves for the backward pass in host memory.

    Parameters stay where they are. A tensor that several operators save is copied once.
    """

    def __init__(self):
        copies = weakref.WeakValueDictionary()

        def pack(tensor):
            base = tensor if tensor._base is None else tensor._base
            if isinstance(base, torch.nn.Parameter) or type(tensor) is not torch.Tensor:
                return tensor
            if not tensor.is_cuda or tensor.layout is not torch.strided:
                return tensor
            if not tensor.is_contiguous() or tensor.is_complex():
                return moved(tensor), tensor.shape, tensor.device
            place = StorageWeakRef(tensor.untyped_storage()), tensor.storage_offset()
            key = place, tensor.numel(), tensor.dtype, tensor._version
            copy = copies.get(key)
            if copy is None:
                copy = copies[key] = moved(tensor)
            return copy, tensor.shape, tensor.device

        def moved(tensor):
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            copy, shape, device = packed
            return copy.to(device, non_blocking=True).view(shape)

        super().__init__(pack, unpack)
