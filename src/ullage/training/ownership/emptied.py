"""Frees the memory of tensors and modules that variables still refer to. Later use of them raises an error."""

from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ullage.base.errors import UsageError
from ullage.training.ownership.held_in_cpp import drop_buckets, has_buckets
from ullage.training.ownership.safe_inspection import instance_dict, is_of, table_of
from ullage.training.ownership.search import is_tensor

_GONE: Final = "ullage.release() has freed its device memory; create the object again"


def empty(tensor: Tensor) -> None:
    """Free the memory of a tensor. Reading it or a view of it raises an error afterwards."""
    if not tensor.is_cuda:
        return
    with suppress(RuntimeError, NotImplementedError):  # raised by layouts and wrappers that consist of other tensors
        storage = tensor.untyped_storage()
        if storage.resizable():
            empty_storage(storage)
        else:  # memory of another library or process: it is freed with the last tensor that refers to it
            nothing = torch.empty(1, dtype=tensor.dtype, device=tensor.device)
            tensor.data = nothing.expand(tensor.shape)
            empty_storage(nothing.untyped_storage())


def empty_storage(storage: torch.UntypedStorage) -> None:
    """Free the memory of a storage on a CUDA device. Reading it raises an error afterwards."""
    if storage.device.type == "cuda":
        storage.resize_(0)
        torch._C._set_storage_data_ptr_access_error_msg(storage._cdata, f"This tensor has no memory: {_GONE}")


def empty_optimizer(optimizer: Optimizer) -> None:
    """Clear an optimizer's state. Its next step raises an error.

    The caller has to free the tensors of the state.
    """
    variables = instance_dict(optimizer) or {}
    state = variables.get("state")
    if state is not None and is_of(state, (dict,)):
        dict.clear(state)
    if "_optimizer_step_pre_hooks" in variables:
        optimizer.register_step_pre_hook(_refuse_step)


def mark(module: nn.Module) -> None:
    """Make a module raise an error when it is called, because its memory was freed."""
    is_parallel = is_of(module, (DistributedDataParallel,))
    if is_parallel:
        drop_buckets(module)
    is_on_card = any(tensor.is_cuda for tensor in tensors_of(module))
    if (is_on_card or is_parallel) and not is_of(
        module, (torch.jit.ScriptModule,)
    ):  # a ScriptModule does not support hooks
        module.register_forward_pre_hook(_refuse_forward)


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module, without those of its submodules."""
    if is_of(module, (torch.jit.ScriptModule,)):
        return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    tables = (table_of(module, "_parameters"), table_of(module, "_buffers"))
    return [tensor for table in tables for tensor in dict.values(table) if is_tensor(tensor) and not is_lazy(tensor)]


def is_emptied(tensor: Tensor) -> bool:
    """Return whether a tensor has elements but no memory for them."""
    if not tensor.is_cuda or tensor.layout is not torch.strided or not tensor.numel():
        return False
    try:
        return not tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return False


def _refuse_forward(module: nn.Module, _: Any) -> None:
    is_cut = is_of(module, (DistributedDataParallel,)) and not has_buckets(module)
    if is_cut or any(map(is_emptied, tensors_of(module))):  # the module works again after it was given new parameters
        raise UsageError(f"this {type(module).__name__} cannot run: {_GONE}")


def _refuse_step(optimizer: Optimizer, _: Any, __: Any) -> None:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if not optimizer.state or any(map(is_emptied, parameters)):
        raise UsageError(f"this {type(optimizer).__name__} cannot step: {_GONE}")
