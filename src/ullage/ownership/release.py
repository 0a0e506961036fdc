"""`ullage.release`: device memory given back although variables still name what used it, and proof of it."""

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ullage._errors import UsageError
from ullage.ownership.block import segments
from ullage.ownership.certificate import Certificate
from ullage.ownership.failure import forget
from ullage.ownership.given import Given, parts_of
from ullage.ownership.graph import Saved, saved_in
from ullage.ownership.holding import Holdings
from ullage.ownership.inert import instance_dict, is_of
from ullage.ownership.owners import owners
from ullage.ownership.search import Search, is_tensor

_GONE: Final = "it was given to ullage.release(), and its device memory is gone; make it anew"


def release(*objects: Any, to: str | None = None) -> Certificate:
    """Free the device memory of objects although variables still name them, and measure what is left.

    Storages are emptied, gradients and optimizers' state dropped, graphs cut, workers of loaders ended; then what
    nobody names goes: cycles, cuBLAS's workspaces, caches. Memory of the host is left as it is, such as a `state_dict`
    that was copied there. A tensor, module or optimizer that is used afterwards raises an error. A view stands for the
    whole tensor that it is a view of.

    Args:
        objects: models, optimizers, schedulers, loaders, tensors, exceptions, or anything that holds such: containers,
            trainers. Without any, only what nobody names goes.
        to: "cpu" to move to the host's memory instead: parameters, buffers, optimizers' state and tensors stay usable,
            without the graphs that led to them.

    Returns:
        What was allocated before and is after, and who holds the rest.

    Raises:
        UsageError: `to` is something else, a tensor has a layout that cannot be moved in place, or a CUDA graph is
            being captured; nothing has changed then.
    """
    if to not in (None, "cpu"):
        raise UsageError(f"to={to!r}; expected 'cpu', or to leave it out to drop what objects hold")
    if _is_in_use() and torch.cuda.is_current_stream_capturing():
        raise UsageError("release() was called while a CUDA graph is captured; expected it before, or after its end")
    before = _allocated_bytes()
    with torch.inference_mode(mode=False), torch.no_grad(), torch._C.DisableTorchFunction():
        given = parts_of(objects)
        if to is not None:
            _check_movable(given)
        _end_loaders(given)
        _cut_graphs(given, is_emptied=to is None)
        for error in given.errors:
            forget(error)
        if to is None:
            _drop(given)
        else:
            _move(given, torch.device(to))
        for graph in given.graphs:
            graph.reset()
        del given
    _sweep()
    remaining = owners(0) if _is_in_use() and torch.cuda.get_allocator_backend() == "native" else Holdings(())
    return Certificate(
        before_bytes=before,
        after_bytes=_allocated_bytes(),
        reserved_bytes=sum(map(torch.cuda.memory_reserved, _devices())),
        pooled_bytes=_pooled_bytes(),
        outside_bytes=sum(map(_outside_bytes, _devices())),
        remaining=remaining,
    )


def _drop(given: Given) -> None:
    for optimizer in given.optimizers:
        for tensor in _state_of(optimizer):
            _empty(tensor)
        optimizer.state.clear()
        optimizer.register_step_pre_hook(_refuse_step)
    for module in given.modules:
        for tensor in _tensors_of(module):
            if tensor.is_leaf:
                Tensor.grad.__set__(tensor, None)
        if _is_on_card(module) and not is_of(module, (torch.jit.ScriptModule,)):  # that takes no hooks
            module.register_forward_pre_hook(_refuse_forward)
    for tensor in given.tensors:
        if tensor.is_leaf:
            Tensor.grad.__set__(tensor, None)
        _empty(tensor)
    for storage in given.storages:
        _empty_storage(storage)


def _check_movable(given: Given) -> None:
    for tensor in given.tensors:
        is_in_parts = tensor.layout not in (torch.strided, torch.sparse_coo) or tensor.is_nested or tensor.is_quantized
        if tensor.is_cuda and is_in_parts:
            raise UsageError(
                f"a tensor of layout {tensor.layout}{', nested' if tensor.is_nested else ''} cannot be moved in place; "
                "expected strided ones: move it by x = x.cpu(), or leave out to="
            )


def _move(given: Given, device: torch.device) -> None:
    moved: dict[int, tuple[Any, Any]] = {}  # with the old storage: no other may get its address meanwhile
    for tensor in given.tensors:
        if not tensor.is_cuda or _is_gone(tensor):
            continue
        gradient = Tensor.grad.__get__(tensor) if tensor.is_leaf else None
        tensor.data = _moved(tensor.data, device, moved)
        if gradient is not None:
            Tensor.grad.__set__(tensor, _moved(gradient, device, moved))


def _moved(data: Tensor, device: torch.device, moved: dict[int, tuple[Any, Any]]) -> Tensor:
    """Return a tensor on another device; those that shared memory share it there."""
    if type(data) is not Tensor or data.layout is not torch.strided:
        return data.to(device)
    storage = data.untyped_storage()
    if storage._cdata not in moved:
        moved[storage._cdata] = storage, storage.to(device=device)
    empty = torch.empty(0, dtype=data.dtype, device=device)
    new = empty.set_(moved[storage._cdata][1], data.storage_offset(), data.size(), data.stride())
    new = torch._conj(new) if data.is_conj() else new
    return torch._neg_view(new) if data.is_neg() else new


def _state_of(optimizer: Optimizer) -> Iterator[Tensor]:
    for own in optimizer.state.values():
        for value in own.values() if isinstance(own, dict) else ():
            if is_tensor(value):
                yield value


def _empty(tensor: Tensor) -> None:
    """Give the memory of a tensor's storage back; who reads it, or a view of it, learns why that cannot be."""
    if not tensor.is_cuda:
        return
    with suppress(RuntimeError, NotImplementedError):  # of layouts and wrappers, whose parts are tensors of their own
        _empty_storage(tensor.untyped_storage())


def _empty_storage(storage: torch.UntypedStorage) -> None:
    if storage.device.type == "cuda":
        storage.resize_(0)
        torch._C._set_storage_data_ptr_access_error_msg(storage._cdata, f"This tensor has no memory: {_GONE}")


def _tensors_of(module: nn.Module) -> list[Tensor]:
    if is_of(module, (torch.jit.ScriptModule,)):
        return [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    variables = instance_dict(module) or {}
    tables = [variables.get("_parameters") or {}, variables.get("_buffers") or {}]
    return [tensor for table in tables for tensor in dict.values(table) if is_tensor(tensor) and not is_lazy(tensor)]


def _is_on_card(module: nn.Module) -> bool:
    return any(tensor.is_cuda for tensor in _tensors_of(module))


def _is_gone(tensor: Tensor) -> bool:
    if not tensor.is_cuda or tensor.layout is not torch.strided or not tensor.numel():
        return False
    try:
        return not tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):
        return False


def _refuse_forward(module: nn.Module, _: Any) -> None:
    if any(map(_is_gone, _tensors_of(module))):  # with others in their place it may run again
        raise UsageError(f"this {type(module).__name__} cannot run: {_GONE}")


def _refuse_step(optimizer: Optimizer, _: Any, __: Any) -> None:
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if not optimizer.state or any(map(_is_gone, parameters)):
        raise UsageError(f"this {type(optimizer).__name__} cannot step: {_GONE}")


def _cut_graphs(given: Given, *, is_emptied: bool) -> None:
    """Take tensors out of the graphs that made them, so that what forward saved for backward can go."""
    uncut = list(given.functions)
    for tensor in given.tensors:
        if not tensor.requires_grad or tensor.is_leaf:
            continue
        try:
            tensor.detach_()
        except RuntimeError:  # a view, which cannot be taken out
            uncut.append(tensor.grad_fn)
    if uncut and is_emptied:
        spared = _named_elsewhere(given)
        for function in uncut:
            _empty_graph(function, spared)


def _named_elsewhere(given: Given) -> set[int]:
    """Return the storages of tensors that have a name beside what was passed: a graph may have saved them too."""
    own = set(map(id, given.tensors))
    named = set()
    search = Search()
    try:
        search.follow_user()
        search.follow_libraries()
        for place in search.reach.found["tensor"]:
            one = search.reach.objects[place]
            if id(one) not in own and not search.is_in_graph(place):
                with suppress(RuntimeError, NotImplementedError, ValueError):
                    named.add(Tensor.untyped_storage(one)._cdata)
    finally:
        search.forget()
    return named


def _empty_graph(function: Any, spared: set[int]) -> None:
    """Empty what a graph keeps that cannot be cut, but for what is a model's or has a name."""
    for found in saved_in([(0, function)], {}):
        if not isinstance(found, Saved) or not is_tensor(found.value):
            continue
        with suppress(RuntimeError, NotImplementedError, ValueError):
            is_trained = found.value.is_leaf and found.value.requires_grad
            if not is_trained and Tensor.untyped_storage(found.value)._cdata not in spared:
                _empty(found.value)


def _end_loaders(given: Given) -> None:
    """End the workers of loaders: those that they keep, and those of a loop that still goes through one."""
    for loader in given.loaders:
        loader._iterator = None
    samplers = [loader._index_sampler for loader in given.loaders]
    running = [one for one in gc.get_objects() if is_of(one, (_BaseDataLoaderIter,))] if samplers else []
    for iterator in running:
        if hasattr(iterator, "_shutdown_workers") and any(iterator._index_sampler is one for one in samplers):
            iterator._shutdown_workers()


def _sweep() -> None:
    """Let go of what nobody names: an exception's frames, cycles, workspaces, caches of PyTorch's and the driver's."""
    for one in gc.get_objects():
        if is_of(one, (BaseException,)):
            forget(one)
    one = None
    torch.clear_autocast_cache()
    if _has_compiled():
        with warnings.catch_warnings(action="ignore"):  # of modules that torch loads for it
            sys.modules["torch._dynamo"].reset()
    gc.collect()
    gc.collect()
    if not _is_in_use():
        return
    torch._C._cuda_clearCublasWorkspaces()
    for device in _devices():
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    empty_host: Callable[[], None] | None = getattr(torch._C, "_host_emptyCache", None)
    if empty_host is not None:
        empty_host()


def _has_compiled() -> bool:
    """Tell whether torch.compile has compiled a function, which holds its graphs, weights and pools."""
    converter = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(getattr(converter, "input_codes", None), "seen", None))


def _is_in_use() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _devices() -> range:
    return range(torch.cuda.device_count() if _is_in_use() else 0)


def _allocated_bytes() -> int:
    return sum(map(torch.cuda.memory_allocated, _devices()))


def _pooled_bytes() -> int:
    if not _is_in_use() or torch.cuda.get_allocator_backend() != "native":
        return 0
    return sum(one["total_size"] for one in segments() if tuple(one.get("segment_pool_id", (0, 0))) != (0, 0))


def _outside_bytes(device: int) -> int:
    """Return what the driver says is used of a device beside what PyTorch has reserved."""
    if not torch.cuda.memory_reserved(device) and device != torch.cuda.current_device():
        return 0  # to ask would make a context there
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))
