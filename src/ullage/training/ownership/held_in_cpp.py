"""Finds tensors that only C++ code holds: in TorchScript, DLPack capsules, and DDP's gradient buckets."""

import ctypes
import datetime
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ullage.training.ownership import attribute
from ullage.training.ownership.safe_inspection import instance_dict, is_of

SCRIPTS: Final = (torch._C.ScriptModule, torch._C.ScriptFunction)
CAPSULE: Final[type] = type(datetime.datetime_CAPI)  # named types.CapsuleType from Python 3.13 on
# Maps the name of an unused DLPack capsule to the byte offset of its DLTensor struct (dlpack.h).
_OFFSETS: Final = {b"dltensor": 0, b"dltensor_versioned": 32}
# The attributes of DistributedDataParallel that hold its gradient buckets.
_IN_CPP: Final = ("reducer", "logger")
_ROUNDED_BYTES: Final = 512

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def tensors_of_script(one: Any) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the tensors of a TorchScript module with their names and kinds, such as "parameter"."""
    if isinstance(one, torch._C.ScriptFunction):
        yield from _constants_of(one.graph)
        return
    waiting = [("", one)]
    while waiting:
        prefix, module = waiting.pop()
        parameters: Any = torch._C.ParameterDict(module)  # PyTorch's type stubs do not declare items()
        buffers: Any = torch._C.BufferDict(module)
        for name, tensor in parameters.items():
            yield "parameter", prefix + name, tensor
        for name, tensor in buffers.items():
            yield "buffer", prefix + name, tensor
        for name in module._method_names():
            yield from _constants_of(module._get_method(name).graph)
        for (
            _,
            examples,
        ) in module._retrieve_traced_inputs().items():  # the example inputs that the module was traced with
            for example in examples:
                if isinstance(example, Tensor):
                    yield "example", "example", example
        waiting += [(f"{prefix}{name}.", child) for name, child in torch._C.ModuleDict(module).items()]


def _constants_of(graph: Any) -> Iterator[tuple[str, str, Tensor]]:
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            if node.kind() == "prim::Constant" and node.hasAttribute("value") and node.kindOf("value") == "t":
                yield "constant", "constant", node.t("value")
            blocks += node.blocks()


def address_in(capsule: Any) -> int | None:
    """Return the device address of the tensor in a DLPack capsule. None if the capsule is empty."""
    name = _name_of(capsule)
    if name not in _OFFSETS:
        return None
    start = _pointer_of(capsule, name) + _OFFSETS[name]
    return ctypes.c_void_p.from_address(start).value


def take_out(capsule: Any) -> Tensor | None:
    """Return the tensor of a DLPack capsule, and empty the capsule."""
    return torch._C._from_dlpack(capsule) if address_in(capsule) is not None else None


def has_buckets(module: nn.Module) -> bool:
    """Return whether a module is a DistributedDataParallel with gradient buckets."""
    return is_of(module, (DistributedDataParallel,)) and _IN_CPP[0] in (instance_dict(module) or {})


def is_bucket(module: nn.Module, size_bytes: int) -> bool:
    """Return whether a memory block has the size of one of DDP's gradient buckets.

    A bucket is as large as some consecutive parameters together. It can be recognised only by its size.
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
    """Free the gradient buckets of a DistributedDataParallel. The module cannot run afterwards."""
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
    # This is skipped if there are several ranks, because all of them would have to take part in the collective.
    if group is None or not devices or dist.get_world_size(group) != 1 or "nccl" not in dist.get_backend(group):
        return
    dist.all_reduce(torch.zeros(1, device=torch.device("cuda", devices[0])), group=group)
