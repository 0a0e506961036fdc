"""`ullage.release` frees the GPU memory of objects that variables still refer to."""

import gc
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.base.units import text_of_bytes
from ullage.training.ownership import attribute
from ullage.training.ownership.block import segments
from ullage.training.ownership.emptied import empty, empty_optimizer, empty_storage, is_emptied, mark, tensors_of
from ullage.training.ownership.failure import clear_frames
from ullage.training.ownership.graph import Saved, saved_in
from ullage.training.ownership.held_in_cpp import take_out
from ullage.training.ownership.holding import Holdings
from ullage.training.ownership.owners import owners
from ullage.training.ownership.released import ReleasedParts, parts_of
from ullage.training.ownership.safe_inspection import is_of
from ullage.training.ownership.search import grad_fn_of, is_tensor, owner_search
from ullage.training.ownership.storage import parts_of_tensor


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The result of `ullage.release`: the memory before and after, summed over all devices."""

    before_bytes: int
    after_bytes: int
    """The bytes that are still allocated after the release."""
    reserved_bytes: int
    """The bytes that PyTorch still reserves after the release."""
    pooled_bytes: int
    """The reserved bytes in private pools. A CUDA graph or a `torch.cuda.MemPool` owns each pool."""
    outside_bytes: int
    """The used bytes outside PyTorch's allocator, according to the driver.

    They belong to libraries such as NCCL, to CUDA contexts, and to other processes.
    """
    remaining: Holdings
    """The objects that still hold memory after the release."""

    @property
    def is_empty(self) -> bool:
        """Whether PyTorch has no allocated or reserved memory on any device."""
        return self.after_bytes == 0 and self.reserved_bytes == 0

    def __str__(self) -> str:
        freed = self.before_bytes - self.after_bytes
        lines = [
            f"{text_of_bytes(freed)} freed: {text_of_bytes(self.before_bytes)} were allocated before, "
            f"{text_of_bytes(self.after_bytes)} are now; {text_of_bytes(self.reserved_bytes)} are reserved."
        ]
        if self.pooled_bytes:
            lines.append(
                f"{text_of_bytes(self.pooled_bytes)} of the reserved memory are in private pools, which are freed "
                "with their "
                "CUDA graph or torch.cuda.MemPool."
            )
        if self.after_bytes:
            lines.append(str(self.remaining))
        if self.outside_bytes:
            lines.append(
                f"{text_of_bytes(self.outside_bytes)} are used outside PyTorch's allocator, by the CUDA context, "
                "libraries and other processes. A CUDA context is freed when its process ends: ullage.isolated(fn) "
                "runs a function in a separate process."
            )
        return "\n".join(lines)


@public
def release(*objects: Any, to: Literal["cpu"] | None = None) -> Certificate:
    """Free the device memory of objects even if variables still refer to them, and measure what is left.

    Storages are emptied, gradients and optimizer state are dropped, autograd graphs are cut, and worker processes of
    data loaders are ended. Then all memory without a variable is freed: reference cycles, cuBLAS workspaces, caches.
    Host memory is not touched, such as a `state_dict` that was copied to it. Using a released tensor, module or
    optimizer afterwards raises an error. Passing a view releases the whole tensor that the view belongs to.

    Args:
        objects: models, optimizers, schedulers, data loaders, tensors, exceptions, or objects that hold them, such as
            containers and trainers. Without arguments, only memory that no variable refers to is freed.
        to: "cpu" to move to host memory instead: parameters, buffers, optimizer state and tensors stay usable, but
            without their autograd graphs.

    Returns:
        The allocated bytes before and after, and the holders of the remaining memory.

    Raises:
        UsageError: `to` has another value, a tensor has a layout that cannot be moved in place, or a CUDA graph is
            being captured. Nothing has been changed in these cases.
    """
    if to not in (None, "cpu"):
        raise UsageError(
            f"to={to!r} is not supported; expected 'cpu' to move objects to host memory, or no to= to free their memory"
        )
    if _is_in_use() and torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "release() was called while a CUDA graph is being captured; call it before or after the capture"
        )
    before = _allocated_bytes()
    with torch.inference_mode(mode=False), torch.no_grad(), torch._C.DisableTorchFunction():
        released = parts_of(objects)
        if to is not None:
            _check_movable(released)
        _end_loaders(released)
        _cut_graphs(released, is_emptied=to is None)
        for failure in released.failures:
            clear_frames(failure)
        if to is None:
            _drop(released)
        else:
            _move(released, torch.device(to))
        for capsule in released.capsules:
            take_out(capsule)
        for graph in released.graphs:
            graph.reset()
        del released
    _collect()
    remaining = owners(0) if _is_in_use() and torch.cuda.get_allocator_backend() == "native" else Holdings(())
    return Certificate(
        before_bytes=before,
        after_bytes=_allocated_bytes(),
        reserved_bytes=sum(map(torch.cuda.memory_reserved, _devices())),
        pooled_bytes=_pooled_bytes(),
        outside_bytes=sum(map(_outside_bytes, _devices())),
        remaining=remaining,
    )


def _drop(released: ReleasedParts) -> None:
    for optimizer in released.optimizers:
        empty_optimizer(optimizer)
    for module in released.modules:
        mark(module)
    for tensor in released.tensors:
        empty(tensor)
    for storage in released.storages:
        empty_storage(storage)
    _drop_gradients([*released.tensors, *(tensor for module in released.modules for tensor in tensors_of(module))])


def _drop_gradients(tensors: list[Tensor]) -> None:
    gone = {_storage_of(tensor) for tensor in tensors if is_emptied(tensor)}
    alike = [one for one in gc.get_objects() if is_tensor(one) and _has_gradient(one) and _storage_of(one) in gone]
    for tensor in [*tensors, *alike]:
        if tensor.is_leaf:
            attribute.GRAD.__set__(tensor, None)


def _has_gradient(tensor: Tensor) -> bool:
    return attribute.IS_LEAF.__get__(tensor) and attribute.GRAD.__get__(tensor) is not None


def _storage_of(tensor: Tensor) -> int | None:
    try:
        found: int = Tensor.untyped_storage(tensor)._cdata
    except (RuntimeError, NotImplementedError, ValueError):
        return None
    return found


def _check_movable(released: ReleasedParts) -> None:
    for tensor in released.tensors:
        is_in_parts = tensor.layout not in (torch.strided, torch.sparse_coo) or tensor.is_nested or tensor.is_quantized
        if tensor.is_cuda and is_in_parts:
            raise UsageError(
                f"a tensor of layout {tensor.layout}{', nested' if tensor.is_nested else ''} cannot be moved in place; "
                "expected strided tensors: move it with x = x.cpu(), or leave out to="
            )


def _move(released: ReleasedParts, device: torch.device) -> None:
    moved: dict[int, tuple[Any, Any]] = {}  # the old storage is kept alive, so that its address is not reused
    for tensor in released.tensors:
        if not tensor.is_cuda or is_emptied(tensor):
            continue
        gradient = attribute.GRAD.__get__(tensor) if tensor.is_leaf else None
        tensor.data = _moved(tensor.data, device, moved)
        if gradient is not None:
            attribute.GRAD.__set__(tensor, _moved(gradient, device, moved))


def _moved(data: Tensor, device: torch.device, moved: dict[int, tuple[Any, Any]]) -> Tensor:
    if type(data) is not Tensor or data.layout is not torch.strided:
        return data.to(device)
    storage = data.untyped_storage()
    if storage._cdata not in moved:
        moved[storage._cdata] = storage, storage.to(device=device)
    empty = torch.empty(0, dtype=data.dtype, device=device)
    new = empty.set_(moved[storage._cdata][1], data.storage_offset(), data.size(), data.stride())
    new = torch._conj(new) if data.is_conj() else new
    return torch._neg_view(new) if data.is_neg() else new


def _cut_graphs(released: ReleasedParts, *, is_emptied: bool) -> None:
    uncut = list(released.functions)
    for tensor in released.tensors:
        if grad_fn_of(tensor) is None:
            continue
        with suppress(RuntimeError):  # a view cannot be detached in place, and a tensor of torch.func keeps its graph
            tensor.detach_()
        if (function := grad_fn_of(tensor)) is not None:
            uncut.append(function)
    if uncut and is_emptied:
        spared = _named_elsewhere(released)
        for function in uncut:
            _empty_graph(function, spared)


def _named_elsewhere(released: ReleasedParts) -> set[int | None]:
    own = set(map(id, released.tensors))
    named: set[int | None] = set()
    with owner_search() as search:
        search.follow_user()
        search.follow_libraries()
        for place in search.reach.found["tensor"]:
            one = search.reach.objects[place]
            if id(one) not in own and not search.is_in_graph(place):
                named.add(_storage_of(one))
    return named


def _empty_graph(function: Any, spared: set[int | None]) -> None:
    # used for graphs that cannot be detached
    for found in saved_in([(0, function)], {}):
        if not isinstance(found, Saved) or not is_tensor(found.value):
            continue
        for tensor in parts_of_tensor(found.value) or [found.value]:
            is_trained = tensor.is_leaf and tensor.requires_grad
            if not is_trained and _storage_of(tensor) not in spared:
                empty(tensor)


def _end_loaders(released: ReleasedParts) -> None:
    for loader in released.loaders:
        loader._iterator = None
    samplers = [loader._index_sampler for loader in released.loaders]
    running = [one for one in gc.get_objects() if is_of(one, (_BaseDataLoaderIter,))] if samplers else []
    for iterator in running:
        if hasattr(iterator, "_shutdown_workers") and any(iterator._index_sampler is one for one in samplers):
            iterator._shutdown_workers()


def _collect() -> None:
    for one in gc.get_objects():
        if is_of(one, (BaseException,)):
            clear_frames(one)
    one = None
    torch.clear_autocast_cache()
    if _has_compiled():
        with warnings.catch_warnings(action="ignore"):  # deprecation warnings of modules that torch imports here
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
    # compiled code holds graphs, weights and memory pools
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
    if not torch.cuda.memory_reserved(device) and device != torch.cuda.current_device():
        return 0  # the query would create a CUDA context on that device
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))
