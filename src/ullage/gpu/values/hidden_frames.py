"""Remove ullage's own frames from the stacks in PyTorch's memory snapshots.

ullage's Python kernels run the operators, so PyTorch's memory history would record their frames. A stack would begin
with ullage's lines. A stack of an autograd thread has no Python frames, but would get ullage's.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

_OWN_FOLDER: Final = str(Path(__file__).resolve().parent)
_OPERATORS: Final = str(Path(torch._ops.__file__ or "").resolve())


@cache
def hide_own_frames() -> None:
    """Remove ullage's stack frames from every later memory snapshot of this process, including the script's own
    snapshots.
    """
    original = torch._C._cuda_memorySnapshot
    torch._C._cuda_memorySnapshot = lambda *arguments, **keywords: _hidden(original(*arguments, **keywords))


def _hidden(snapshot: Any) -> Any:
    segments = snapshot.get("segments", [])
    held = (block for segment in segments for block in segment.get("blocks", []))
    traced = (entry for trace in snapshot.get("device_traces", []) for entry in trace)
    for each in (*segments, *held, *traced):
        if each.get("frames"):
            each["frames"] = _without_own(each["frames"])
    return snapshot


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
