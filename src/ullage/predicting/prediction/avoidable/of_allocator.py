"""Scratch memory of libraries, and what the allocator has reserved and nothing lies in."""

import numpy as np

from ullage.base.block_role import Role
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.moment import LEAST_SHARE, PeakMoment
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind
from ullage.predicting.prediction.measurement.trace import Levels


def workspaces(moment: PeakMoment, gains: Gains) -> list[Avoidable]:
    """Return the row of workspaces."""
    blocks = moment.unnamed(role=Role.WORKSPACES)
    if not moment.is_worth(moment.size_of(blocks)):
        return []
    every = [block for block, role in enumerate(moment.memory.roles) if role is Role.WORKSPACES]
    return [
        moment.row(
            AvoidableKind.WORKSPACES,
            blocks,
            gains.without(every),
            evidence=f"libraries have asked PyTorch for {len(blocks)} blocks to work in",
            remedy="set CUBLAS_WORKSPACE_CONFIG=:0:0 (slower), or a smaller size, where cuBLAS's are the largest",
            module="",
        )
    ]


def fragmentation(moment: PeakMoment, gains: Gains, levels: Levels) -> list[Avoidable]:
    """Return the row of what is reserved and not allocated at the peak of reserved memory."""
    at = int(np.argmax(levels.reserved))
    reserved = int(levels.reserved[at])
    # Of equally full moments the one with the most in use: the rest of the segments is not needed for what is there.
    allocated = int(levels.allocated[levels.reserved == reserved].max())
    free = reserved - allocated
    if free < max(1, LEAST_SHARE * reserved):
        return []
    expandable = gains.reserved_with_expandable_segments()
    gain = None if expandable is None else max(0, reserved - expandable)
    said = "" if gain is None else "; a replay with expandable_segments:True was made"
    return [
        Avoidable(
            kind=AvoidableKind.FRAGMENTATION,
            peak_bytes=free,
            gain_bytes=0,
            gain_reserved_bytes=gain,
            evidence=f"so much was reserved and held no block when the most was reserved and in use{said}",
            remedy="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" if gain else "",
        )
    ]
