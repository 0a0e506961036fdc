"""Remove ullage's own frames from the stacks in PyTorch's memory snapshots.

PyTorch's memory history records the frames of ullage's Python kernels. Without this module, stacks would begin with
ullage's lines. In autograd's threads, they would contain only ullage's lines.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from ullage.gpu.values.faults import Faults

_OWN_FOLDER: Final = str(Path(__file__).resolve().parent)
_OPERATORS: Final = str(Path(torch._ops.__file__ or "").resolve())


@cache
def hide_own_frames(faults: Faults) -> None:
    """Remove ullage's frames from all later memory snapshots of this process.

    Args:
        faults: the collection that stores ullage's own errors.
    """
    original = torch._C._cuda_memorySnapshot

    def without_own_frames(*arguments: Any, **keywords: Any) -> Any:
        snapshot = original(*arguments, **keywords)
        with faults.kept("a memory snapshot"):
            _hide(snapshot)
        return snapshot

    torch._C._cuda_memorySnapshot = without_own_frames


def _hide(snapshot: Any) -> None:
    segments = snapshot.get("segments", [])
    held = (block for segment in segments for block in segment.get("blocks", []))
    traced = (entry for trace in snapshot.get("device_traces", []) for entry in trace)
    for each in (*segments, *held, *traced):
        if each.get("frames"):
            each["frames"] = _without_own(each["frames"])


def _without_own(frames: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    own = [frame["filename"].startswith(_OWN_FOLDER) for frame in frames]
    if not any(own):
        return frames
    outer = [*own[1:], False]
    return [
        frame
        for frame, ours, of_ours in zip(frames, own, outer, strict=True)
        if not ours and not (of_ours and frame["filename"] == _OPERATORS)
    ]
