"""Several ranks that train one model: they agree before gradients are reduced, so that none waits for one that failed.

Under DistributedDataParallel each rank runs forward and backward by itself (`no_sync`), as often and in as many parts
as its memory needs. Then the ranks agree, in a process group of their own (gloo, on the CPU), whether all have
succeeded, and reduce the gradients as DDP does: divided by the number of ranks, summed. A rank that gives up announces
it there, and all ranks raise.

If forward and backward themselves have collectives (FSDP, SyncBatchNorm), the ranks agree on the number of parts
before a step. A step that runs out of memory in the middle cannot be undone then; it ends the run on all ranks instead
of leaving the others waiting.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import compress
from typing import Any, Final
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.base.units import MIB
from ullage.training.guard.memory.oom import read_oom
from ullage.training.guard.memory.room import Room
from ullage.training.ownership.failure import clear_frames

_BUCKET_BYTES: Final = 25 * MIB
_ATTEMPTS: Final = 4
_FAILED, _SPLIT, _PARTS = range(3)
_REPLICAS: Final[WeakSet[DistributedDataParallel]] = WeakSet()
"""The DDP models of this process whose gradients a guard reduces."""


@public
class RankError(RuntimeError):
    """Raised when another rank has given up, has ended, or does not answer."""


class Ranks:
    """The ranks that share a model's gradients, seen from one of them."""

    def __init__(self, modules: Sequence[nn.Module], room: Room, timeout: timedelta) -> None:
        """Make the group in which the ranks agree; every rank has to.

        Raises:
            UsageError: a communication hook is registered, which would be bypassed because the guard reduces gradients.
        """
        self._room = room
        self._timeout = timeout
        self._replicas = [module for module in modules if isinstance(module, DistributedDataParallel)]
        if any(getattr(replica, "_comm_hooks", None) for replica in self._replicas):
            raise UsageError(
                "the DistributedDataParallel model has a communication hook, but a guard reduces gradients itself; "
                "expected a model without one: leave register_comm_hook out"
            )
        if any(replica.static_graph for replica in self._replicas):
            raise UsageError(
                "the DistributedDataParallel model is made with static_graph=True, and counts on sharing gradients in "
                "every backward, which a guard does itself; expected a model without it"
            )
        _REPLICAS.update(self._replicas)
        self.in_lockstep = not self._replicas or any(
            isinstance(child, nn.SyncBatchNorm) for module in modules for child in module.modules()
        )
        """Whether forward and backward have collectives, in which ranks wait for each other."""
        shared = self._replicas[0].process_group if self._replicas else dist.group.WORLD
        assert shared is not None
        self._shared: dist.ProcessGroup = shared
        members = dist.get_process_group_ranks(self._shared)
        self._size = len(members)
        self._group = dist.new_group(members, timeout=timeout, backend="gloo", use_local_synchronization=True)
        self._parameters = [
            parameter
            for replica in self._replicas
            for name, parameter in replica.module.named_parameters()
            if name not in replica.parameters_to_ignore
        ]
        # Made now, because a rank that finds no room for it later would keep the others waiting.
        self._flat = _flat_for(self._parameters)
        self._are_buffers_due = True

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run forward and backward without DDP's collectives; those of the model itself still run."""
        # Those of other guards too: a discriminator in the generator's loss would wait for parts that others lack.
        replicas = list(_REPLICAS)
        before = [(one.require_backward_grad_sync, one.require_forward_param_sync) for one in replicas]
        for replica in replicas:
            replica.require_backward_grad_sync = False
            replica.require_forward_param_sync = False  # buffers are shared in `begin`
        try:
            yield
        finally:
            for replica, (gradients, buffers) in zip(replicas, before, strict=True):
                replica.require_backward_grad_sync = gradients
                replica.require_forward_param_sync = buffers

    def begin_step(self, parts: int) -> int:
        """Begin a step: copy the first rank's buffers, and return the number of parts that this rank has to take.

        Raises:
            RankError: another rank has ended or given up.
        """
        if self._are_buffers_due:
            self._are_buffers_due = False
            for replica in self._replicas:
                if replica.broadcast_buffers:
                    source = dist.get_global_rank(self._shared, 0)
                    with self._room.retrying():
                        for buffer in replica.modules_buffers:
                            self._retry(dist.broadcast, buffer, source, group=self._shared)
        return self._exchange([0, 0, parts])[_PARTS] if self.in_lockstep else parts

    def restart(self) -> None:
        """Have the first rank's buffers copied again at the next step."""
        self._are_buffers_due = True

    def agree(self, split: int) -> int:
        """Wait until all ranks have finished forward and backward.

        Args:
            split: in how many parts this rank takes a batch that it had to split in this step; else 0.

        Returns:
            The largest `split` of any rank.

        Raises:
            RankError: another rank has given up, has ended or does not answer.
        """
        return self._exchange([0, split, 0])[_SPLIT]

    def announce_failure(self) -> None:
        """Notify the other ranks that this one gives up; they learn it when they next agree."""
        if self.in_lockstep:
            return  # they are in the middle of the step, and wait for what will not come until this process ends
        try:
            self._exchange([1, 0, 0])
        except RankError:
            return  # it was this rank that said so, or they have ended already

    def share(self) -> None:
        """Replace every gradient by the mean over the ranks."""
        self._are_buffers_due = True
        if not self._replicas:
            return
        with torch.no_grad(), self._room.retrying():
            used = torch.tensor([parameter.grad is not None for parameter in self._parameters], dtype=torch.uint8)
            self._retry(dist.all_reduce, used, op=dist.ReduceOp.MAX, group=self._group)
            gradients = []
            for parameter in compress(self._parameters, used.tolist()):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
            for bucket in _buckets(gradients):
                self._share_bucket(bucket)

    def _share_bucket(self, bucket: list[torch.Tensor]) -> None:
        if len(bucket) == 1:
            bucket[0].mul_(1 / self._size)
            self._retry(dist.all_reduce, bucket[0], group=self._shared)
            return
        flat = self._flat[bucket[0].device, bucket[0].dtype][: sum(map(torch.numel, bucket))]
        pieces = flat.split([one.numel() for one in bucket])
        views = [piece.view_as(one) for piece, one in zip(pieces, bucket, strict=True)]
        torch._foreach_copy_(views, bucket)
        flat.mul_(1 / self._size)
        self._retry(dist.all_reduce, flat, group=self._shared)
        torch._foreach_copy_(bucket, views)

    def _exchange(self, values: list[int]) -> list[int]:
        with self._room.retrying():
            told = torch.tensor(values)
            self._retry(dist.all_reduce, told, op=dist.ReduceOp.MAX, group=self._group)
            largest: list[int] = told.tolist()
        if largest[_FAILED]:
            raise RankError("a rank has failed in this step, and its own error says why; the others end with it")
        return largest

    def _retry(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a collective; retry it if this rank had no memory to start it.

        Raises:
            RankError: another rank has ended or does not answer.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                collective(*args, **kwargs)
                return
            except RuntimeError as error:
                if read_oom(error, is_on_host=self._room.is_on_host) is None:
                    raise RankError(
                        f"the other ranks did not answer within {self._timeout.total_seconds():g} s, or one has ended "
                        f"({' '.join(str(error).split())[:200]})"
                    ) from None
                if not left:
                    raise
                failure = error
            clear_frames(failure)
            self._room.collect()


def ranks_of(modules: Sequence[nn.Module], room: Room, timeout: timedelta) -> Ranks | None:
    """Return the ranks that train these modules together; None if each rank trains its own model."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    from torch.distributed.fsdp import FSDPModule

    is_shared = any(isinstance(module, DistributedDataParallel) for module in modules) or any(
        isinstance(child, nn.SyncBatchNorm | FSDPModule) for module in modules for child in module.modules()
    )
    return Ranks(modules, room, timeout) if is_shared else None


def _flat_for(parameters: Sequence[nn.Parameter]) -> dict[tuple[torch.device, torch.dtype], torch.Tensor]:
    """Make a flat tensor for each device and type, as large as a bucket can get, in which gradients are gathered."""
    sizes: Counter[tuple[torch.device, torch.dtype]] = Counter()
    for parameter in parameters:
        if parameter.requires_grad and parameter.nbytes <= _BUCKET_BYTES:
            sizes[parameter.device, parameter.dtype] += parameter.nbytes
    return {
        (device, dtype): torch.empty(min(n_bytes, _BUCKET_BYTES) // dtype.itemsize, dtype=dtype, device=device)
        for (device, dtype), n_bytes in sizes.items()
    }


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield gradients of one device and type in groups of up to a bucket's size, the same on every rank."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        if gradient.layout is not torch.strided or gradient.nbytes > _BUCKET_BYTES:
            yield [gradient]
            continue
        group = groups.setdefault((gradient.device, gradient.dtype), [])
        if sum(one.nbytes for one in group) + gradient.nbytes > _BUCKET_BYTES:
            yield list(group)
            group.clear()
        group.append(gradient)
    yield from (group for group in groups.values() if group)
