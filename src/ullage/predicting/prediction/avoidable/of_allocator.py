"""Find avoidable memory in library workspaces and in unused reserved memory."""

import numpy as np

from ullage.base.block_role import Role
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.moment import LEAST_SHARE, PeakMoment
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind
from ullage.predicting.prediction.measurement.trace import Levels


def workspaces(moment: PeakMoment, gains: Gains) -> list[Avoidable]:
    """Return the report rows about large workspaces of libraries such as cuBLAS."""
    blocks = moment.unnamed(role=Role.WORKSPACES)
    if not moment.is_worth(moment.size_of(blocks)):
        return []
    every = [block for block, role in enumerate(moment.memory.roles) if role is Role.WORKSPACES]
    return [
        moment.row(
            AvoidableKind.WORKSPACES,
            blocks,
            gains.without(every),
            evidence=f"libraries have requested {len(blocks)} blocks of scratch memory from PyTorch",
            remedy="set CUBLAS_WORKSPACE_CONFIG=:0:0 (slower) or a smaller size, if cuBLAS has the largest workspaces",
            module="",
        )
    ]


def fragmentation(moment: PeakMoment, gains: Gains, levels: Levels) -> list[Avoidable]:
    """Return the report row about memory that is reserved but not allocated at the peak of reserved memory."""
    at = int(np.argmax(levels.reserved))
    reserved = int(levels.reserved[at])
    # If the peak of reserved memory lasts, the time with the most allocated bytes counts: the rest is never needed at
    # once.
    allocated = int(levels.allocated[levels.reserved == reserved].max())
    free = reserved - allocated
    if free < max(1, LEAST_SHARE * reserved):
        return []
    expandable = gains.reserved_with_expandable_segments()
    gain = None if expandable is None else max(0, reserved - expandable)
    said = "" if gain is None else "; the run was replayed with expandable_segments:True"
    return [
        Avoidable(
            kind=AvoidableKind.FRAGMENTATION,
            peak_bytes=free,
            gain_bytes=0,
            gain_reserved_bytes=gain,
            evidence=f"at the peak of reserved memory, this part of it held no block{said}",
            remedy="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" if gain else "",
        )
    ]
