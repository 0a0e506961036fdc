"""Lets the ranks of distributed training agree whether a step succeeded, so that no rank waits for a failed one.

With DistributedDataParallel, forward and backward run without communication (`no_sync`). Then the ranks agree in a
separate gloo process group, and reduce the gradients. With FSDP or SyncBatchNorm, forward and backward contain
collectives, so the ranks agree on the number of parts before each step.
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
# The DistributedDataParallel models of this process whose gradients the guard reduces instead of DDP.
_REPLICAS: Final[WeakSet[DistributedDataParallel]] = WeakSet()


@public
class RankError(RuntimeError):
    """Another rank has failed, has ended, or does not respond."""


class Ranks:
    """Coordinates one rank with the other ranks that train the same model."""

    def __init__(self, modules: Sequence[nn.Module], room: Room, timeout: timedelta) -> None:
        """Create a process group for the communication of the ranks. Every rank has to call this.

        Raises:
            UsageError: the DDP model has a communication hook, or was created with static_graph=True. Neither works,
                because the guard reduces the gradients itself.
        """
        self._room = room
        self._timeout = timeout
        self._replicas = [module for module in modules if isinstance(module, DistributedDataParallel)]
        if any(getattr(replica, "_comm_hooks", None) for replica in self._replicas):
            raise UsageError(
                "the DistributedDataParallel model has a communication hook, which a guard would bypass because it "
                "reduces gradients itself; remove the call of register_comm_hook"
            )
        if any(replica.static_graph for replica in self._replicas):
            raise UsageError(
                "the DistributedDataParallel model was created with static_graph=True, which requires that every "
                "backward reduces gradients, but a guard reduces them itself; create it with static_graph=False"
            )
        _REPLICAS.update(self._replicas)
        self.in_lockstep = not self._replicas or any(
            isinstance(child, nn.SyncBatchNorm) for module in modules for child in module.modules()
        )
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
        # Allocated now: a rank that cannot allocate it later would keep the other ranks waiting.
        self._flat = _flat_for(self._parameters)
        self._are_buffers_due = True

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Turn off the collectives of DDP inside this context. Collectives that the model's own code calls stay on."""
        # The DDP models of other guards too: the collective of a discriminator in the generator's loss would wait for
        # ranks that run fewer parts.
        replicas = list(_REPLICAS)
        before = [(one.require_backward_grad_sync, one.require_forward_param_sync) for one in replicas]
        for replica in replicas:
            replica.require_backward_grad_sync = False
            replica.require_forward_param_sync = False  # `begin_step` broadcasts buffers
        try:
            yield
        finally:
            for replica, (gradients, buffers) in zip(replicas, before, strict=True):
                replica.require_backward_grad_sync = gradients
                replica.require_forward_param_sync = buffers

    def begin_step(self, parts: int) -> int:
        """Prepare a training step, and return in how many parts this rank has to run its batch.

        Broadcast the buffers of rank 0 if necessary. If all ranks have to run equally many parts, return the largest
        `parts` of any rank.

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
        """Broadcast the buffers of rank 0 again in the next step."""
        self._are_buffers_due = True

    def agree(self, split: int) -> int:
        """Wait until all ranks have finished forward and backward.

        Args:
            split: the number of parts into which this rank had to split its batch in this step; 0 if it did not split.

        Returns:
            The largest `split` of all ranks.

        Raises:
            RankError: another rank has failed, has ended or does not respond.
        """
        return self._exchange([0, split, 0])[_SPLIT]

    def announce_failure(self) -> None:
        """Tell the other ranks that this rank has failed."""
        if self.in_lockstep:
            return  # the other ranks are inside the step, and wait in a collective until this process ends
        try:
            self._exchange([1, 0, 0])
        except RankError:
            return  # the error is this rank's own announcement, or the other ranks have already ended

    def share(self) -> None:
        """Average each gradient over the ranks."""
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
            raise RankError(
                "a rank failed in this step, so all ranks stop; the error of the failed rank gives the reason"
            )
        return largest

    def _retry(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                collective(*args, **kwargs)
                return
            except RuntimeError as error:
                if read_oom(error, is_on_host=self._room.is_on_host) is None:
                    raise RankError(
                        f"the other ranks did not answer within {self._timeout.total_seconds():g} s, or a rank has "
                        "ended "
                    ) from None
                if not left:
                    raise
                failure = error
            clear_frames(failure)
            self._room.collect()


def ranks_of(modules: Sequence[nn.Module], room: Room, timeout: timedelta) -> Ranks | None:
    """Return the ranks that train these modules together. None if each rank trains a separate model."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    from torch.distributed.fsdp import FSDPModule

    is_shared = any(isinstance(module, DistributedDataParallel) for module in modules) or any(
        isinstance(child, nn.SyncBatchNorm | FSDPModule) for module in modules for child in module.modules()
    )
    return Ranks(modules, room, timeout) if is_shared else None


def _flat_for(parameters: Sequence[nn.Parameter]) -> dict[tuple[torch.device, torch.dtype], torch.Tensor]:
    sizes: Counter[tuple[torch.device, torch.dtype]] = Counter()
    for parameter in parameters:
        if parameter.requires_grad and parameter.nbytes <= _BUCKET_BYTES:
            sizes[parameter.device, parameter.dtype] += parameter.nbytes
    return {
        (device, dtype): torch.empty(min(n_bytes, _BUCKET_BYTES) // dtype.itemsize, dtype=dtype, device=device)
        for (device, dtype), n_bytes in sizes.items()
    }


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
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
