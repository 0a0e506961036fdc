"""Write histories as a snapshot that PyTorch's own viewers open: pytorch.org/memory_viz, torch.cuda._memory_viz.

What a `History` does not hold is not written: the stacks of segments, and the names of actions that are not known.
Pinned host memory is not written either.
"""

import gzip
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ullage.base.own_files import write_whole
from ullage.recorded.history import Action, History, Segment, SnapshotBlock

_ACTIONS: Final = {action: action.name.lower() for action in Action}
_PROTOCOL: Final = 4  # what memory_viz reads too


def write_snapshot(histories: Iterable[History], path: Path) -> None:
    """Write a snapshot whole or not at all; gzipped where the name ends in .gz.

    Raises:
        OSError: it cannot be written; the error names the file.
    """
    content = pickle.dumps(plain_of(list(histories)), _PROTOCOL)
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def plain_of(histories: Sequence[History]) -> dict[str, Any]:
    """Return histories in PyTorch's form: a trace for every device up to the last, the segments of all in one list."""
    traces: list[list[dict[str, Any]]] = [[] for _ in range(1 + max((one.device for one in histories), default=0))]
    segments: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for history in histories:
        frames = _Frames(history)
        traces[history.device] = _trace_of(history, frames)
        segments += [_plain_segment(segment, history.device, frames) for segment in history.segments]
        annotations += [
            {"stage": one.stage, "name": one.name, "device": history.device, "time_us": one.time_us}
            for one in history.annotations
        ]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": dict(histories[0].settings) if histories else {},
        "external_annotations": annotations,
    }


class _Frames:
    """Stacks as lists of frames: each is built once, so that the pickle refers to it instead of repeating it."""

    def __init__(self, history: History) -> None:
        self._stacks = history.stacks
        self._frame: dict[int, dict[str, Any]] = {}
        self._lists: dict[int, list[dict[str, Any]]] = {-1: []}

    def of(self, stack: int) -> list[dict[str, Any]]:
        if stack not in self._lists:
            starts = self._stacks.starts
            rows = self._stacks.frames[starts[stack] : starts[stack + 1]].tolist()
            self._lists[stack] = [self._one(row) for row in rows]
        return self._lists[stack]

    def _one(self, row: int) -> dict[str, Any]:
        if row not in self._frame:
            frame = self._stacks.table[row]
            self._frame[row] = {"name": frame.name, "filename": frame.file, "line": frame.line}
        return self._frame[row]


def _trace_of(history: History, frames: _Frames) -> list[dict[str, Any]]:
    columns = (history.action, history.address, history.size, history.stream, history.time_us, history.stack)
    entries: list[dict[str, Any]] = []
    for action, address, size, stream, time_us, stack in zip(*(column.tolist() for column in columns), strict=True):
        place = "device_free" if action == Action.OOM else "addr"
        entry = {"action": _ACTIONS[action], place: address, "size": size, "stream": stream}
        if time_us >= 0:
            entry["time_us"] = time_us
        entry["frames"] = frames.of(stack)
        entries.append(entry)
    labels = history.labels
    for name, column in (("user_metadata", labels.metadata), ("compile_context", labels.context)):
        for entry, number in zip(entries, column.tolist(), strict=False):
            if number >= 0:
                entry[name] = labels.texts[number]
    for entry, pool in zip(entries, labels.pool.tolist(), strict=False):
        entry["pool_id"] = (0, pool)
    return entries


def _plain_segment(segment: Segment, device: int, frames: _Frames) -> dict[str, Any]:
    def total(state: str) -> int:
        return sum(block.size for block in segment.blocks if block.state.startswith(state))

    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": total("active_allocated"),
        "active_size": total("active"),
        "requested_size": sum(block.requested for block in segment.blocks if block.state == "active_allocated"),
        "stream": segment.stream,
        "segment_type": "large" if segment.is_large else "small",
        "segment_pool_id": (0, segment.pool),
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": [_plain_block(block, frames) for block in segment.blocks],
    }


def _plain_block(block: SnapshotBlock, frames: _Frames) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": block.state,
        "frames": frames.of(block.stack),
    }
