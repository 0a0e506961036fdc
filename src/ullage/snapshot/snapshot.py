"""Read what torch.cuda.memory._dump_snapshot() wrote, as data: gzipped or not, of any version since 2022.

Forms that are read: a dictionary with `segments` and perhaps `device_traces`; a list of segments
(torch.cuda.memory_snapshot()); without `time_us`, without stacks, without traces; with fields that are not known yet. A
file that names a class or a function, as only programs do, is refused: nothing of it is ever run.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ullage._errors import UsageError
from ullage.history import Action, Annotation, Block, Frame, History, Segment, Stacks
from ullage.program import Column
from ullage.snapshot._pickle import PickleError, read

_GZIP: Final = b"\x1f\x8b"
_ACTIONS: Final = {
    "alloc": Action.ALLOC,
    "free": Action.FREE_COMPLETED,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_map": Action.SEGMENT_MAP,
    "segment_unmap": Action.SEGMENT_UNMAP,
    "oom": Action.OOM,
    "snapshot": Action.SNAPSHOT,
}


class SnapshotError(UsageError):
    """Report a file that is no snapshot, or one that is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a file holds: the history of every device that has one, by number."""

    path: str
    devices: Mapping[int, History]


def load_snapshot(path: Path) -> Snapshot:
    """Read a snapshot.

    Raises:
        SnapshotError: the file cannot be read, is no snapshot, is damaged, or asks for something to be run.
    """
    try:
        data = path.read_bytes()
        if data[:2] == _GZIP:
            data = _unzipped(data)
        return _snapshot_of(read(data), str(path))
    except PickleError as error:
        raise SnapshotError(f"{path} is no snapshot that can be read: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise SnapshotError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except MemoryError:
        raise SnapshotError(f"{path} is larger than this machine's memory; use one with more") from None
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise SnapshotError(
            f"{path} is no snapshot that can be read: it is not put together as PyTorch does it "
            f"({type(error).__name__}: {error})"
        ) from None


def _unzipped(data: bytes) -> bytes:
    import gzip

    return gzip.decompress(data)


def _snapshot_of(found: dict[str, Any], path: str) -> Snapshot:
    root = found["root"]
    if isinstance(root, list):  # torch.cuda.memory_snapshot()
        root = {"segments": root}
    if not isinstance(root, dict) or not ({"segments", "device_traces"} & root.keys()):
        raise SnapshotError(f"{path} is no snapshot: it has neither segments nor device_traces")
    stacks = _stacks_of(found)
    segments: dict[int, list[Segment]] = {}
    for entry in _list_of(root.get("segments")):
        segments.setdefault(_int_of(entry, "device", 0), []).append(_segment_of(entry))
    traces = _list_of(root.get("device_traces"))
    rows = {number: trace for number, trace in enumerate(traces) if len(trace)}
    settings = root.get("allocator_settings")
    annotations = _annotations_of(root.get("external_annotations"))
    actions = _actions_of(found["action"], found["texts"])
    devices = sorted({*segments, *rows} or {0})
    return Snapshot(
        path=path,
        devices={
            device: _history_of(
                found,
                device=device,
                rows=rows.get(device),
                actions=actions,
                stacks=stacks,
                segments=sorted(segments.get(device, ()), key=lambda segment: segment.address),
                annotations=annotations.get(device, ()),
                settings=settings if isinstance(settings, dict) else {},
            )
            for device in devices
        },
    )


def _history_of(
    found: dict[str, Any],
    *,
    device: int,
    rows: Column | None,
    actions: Column,
    stacks: Stacks,
    segments: Sequence[Segment],
    annotations: Sequence[Annotation],
    settings: Mapping[str, Any],
) -> History:
    if rows is None:
        rows = np.zeros(0, np.int64)
    if not isinstance(rows, np.ndarray):
        raise ValueError(f"the trace of device {device} holds what is no entry")
    return History(
        device=device,
        action=actions[rows],
        address=found["address"][rows],
        size=found["size"][rows],
        stream=found["stream"][rows],
        time_us=found["time_us"][rows],
        stack=found["stack"][rows],
        stacks=stacks,
        segments=tuple(segments),
        annotations=tuple(annotations),
        settings=settings,
    )


def _actions_of(texts_of_rows: Column, texts: list[str]) -> Column:
    """Turn the numbers of texts into actions; one that is not known is OTHER."""
    table = np.full(len(texts), Action.OTHER, np.int64)
    for number, text in enumerate(texts):
        table[number] = _ACTIONS.get(text, Action.OTHER)
    return table[texts_of_rows]


def _stacks_of(found: dict[str, Any]) -> Stacks:
    texts = found["texts"]
    return Stacks(
        starts=found["stack_starts"],
        frames=found["stack_frames"],
        table=tuple(
            Frame(texts[name], texts[file], line)
            for name, file, line in zip(
                found["frame_name"].tolist(), found["frame_file"].tolist(), found["frame_line"].tolist(), strict=True
            )
        ),
    )


def _list_of(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("a list is missing")
    return value


def _int_of(entry: Any, *names_and_default: Any) -> int:
    *names, default = names_and_default
    for name in names:
        value = entry.get(name)
        if isinstance(value, int):
            return value
    return int(default)


def _segment_of(entry: dict[str, Any]) -> Segment:
    address = _int_of(entry, "address", 0)
    blocks, at = [], address
    for block in _list_of(entry.get("blocks")):
        at = _int_of(block, "address", at)  # not in files before 2023
        size = _int_of(block, "size", 0)
        state = block.get("state")
        stack = block.get("frames")
        if stack is None:  # 2022: the block's history, newest first
            history = _list_of(block.get("history"))
            stack = history[0].get("frames") if history else None
            requested = _int_of(history[0], "real_size", size) if history else size
        else:
            requested = size
        blocks.append(
            Block(
                address=at,
                size=size,
                requested=_int_of(block, "requested_size", requested),
                state=state if isinstance(state, str) else "inactive",
                stack=stack if isinstance(stack, int) else -1,
            )
        )
        at += size
    pool = entry.get("segment_pool_id")
    return Segment(
        address=address,
        size=_int_of(entry, "total_size", 0),
        stream=_int_of(entry, "stream", 0),
        is_large=entry.get("segment_type") != "small",
        is_expandable=bool(entry.get("is_expandable", False)),
        pool=next((part for part in pool if isinstance(part, int) and part), 0) if isinstance(pool, list) else 0,
        blocks=tuple(blocks),
    )


def _annotations_of(found: Any) -> dict[int, list[Annotation]]:
    """Named ranges by device, in order."""
    annotations: dict[int, list[Annotation]] = {}
    for entry in found if isinstance(found, list) else ():
        name, stage = entry.get("name"), entry.get("stage")
        if isinstance(name, str) and isinstance(stage, str):
            annotations.setdefault(_int_of(entry, "device", 0), []).append(
                Annotation(name=name, stage=stage, time_us=_int_of(entry, "time_us", -1))
            )
    return annotations
