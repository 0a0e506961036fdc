"""Stacks in PyTorch's snapshots, without the frames of what runs each operator for its values.

An operator whose values are followed is run by a kernel of ours, and PyTorch's history of its allocator records that
with the rest: a stack would begin with our lines, and one of autograd's threads, which has no Python, would have some.
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
    """Have every snapshot of this process be without them from now on, those that a script takes too."""
    original = torch._C._cuda_memorySnapshot
    torch._C._cuda_memorySnapshot = lambda *arguments, **keywords: _hidden(original(*arguments, **keywords))


def _hidden(snapshot: Any) -> Any:
    """Take the frames out of a snapshot, and return it."""
    segments = snapshot.get("segments", [])
    held = (block for segment in segments for block in segment.get("blocks", []))
    traced = (entry for trace in snapshot.get("device_traces", []) for entry in trace)
    for each in (*segments, *held, *traced):
        if each.get("frames"):
            each["frames"] = _without_own(each["frames"])
    return snapshot


def _without_own(frames: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the frames, innermost first, that are neither ours nor PyTorch's call of the operator from one of ours."""
    own = [frame["filename"].startswith(_OWN_FOLDER) for frame in frames]
    if not any(own):
        return frames
    outer = [*own[1:], False]
    return [
        frame
        for frame, ours, of_ours in zip(frames, own, outer, strict=True)
        if not ours and not (of_ours and frame["filename"] == _OPERATORS)
    ]
