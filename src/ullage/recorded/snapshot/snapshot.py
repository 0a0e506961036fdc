"""Reads memory snapshots written by torch.cuda.memory._dump_snapshot(), from any PyTorch version since 2022.

These formats are read: a dictionary with `segments` and perhaps `device_traces`; a list of segments
(torch.cuda.memory_snapshot()); files without `time_us`, without stacks or without traces; and files with unknown fields
and actions. A file that refers to a class or a function is rejected, because only programs need that; no code from a
file is ever executed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ullage.base.public import public
from ullage.base.source_location import is_python
from ullage.base.units import text_of_bytes
from ullage.base.visible import visible
from ullage.recorded.frame import TOP_LEVEL, Frame
from ullage.recorded.history import ACTIONS, Action, Annotation, History, Labels, PinnedHistory, RecordedStacks, Segment
from ullage.recorded.program import Column
from ullage.recorded.snapshot._pickle import PickleError, read
from ullage.recorded.snapshot.facts import FileFacts
from ullage.recorded.snapshot.file import SnapshotError, read_file
from ullage.recorded.snapshot.segment import (
    MOST_ADDRESS,
    MOST_BYTES,
    MOST_DEVICES,
    Contradiction,
    check,
    int_of,
    list_of,
    segments_of,
)

__all__ = ["Snapshot", "SnapshotError", "load_snapshot"]

_NO_CONTEXT: Final = "N/A"
_MOST_NAME_BYTES: Final = 32 << 20
BOGUS_FROM_BYTES: Final = 1 << 62
"""The upper limit for the size of a failed allocation, in bytes. ullage replaces larger sizes with this limit."""
# The largest number of pairs of stream and private pool. PyTorch itself creates about 200 streams for each device.
_MOST_FREE_LISTS: Final = 1 << 14


class NoSnapshotError(SnapshotError):
    """Raised for a pickle that is not a snapshot. `content` is what the pickle contains."""

    def __init__(self, text: str, content: object) -> None:
        super().__init__(text)
        self.content = content


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The content of a snapshot file: the recording of each device, by device index."""

    path: str
    devices: Mapping[int, History]


@public
def load_snapshot(path: str | Path) -> Snapshot:
    """Read a snapshot file without executing code from it.

    Args:
        path: a file that torch.cuda.memory._dump_snapshot() wrote, or a gzipped one.

    Raises:
        SnapshotError: the file cannot be read, is not a snapshot, is damaged, or would execute code.
    """
    path = Path(path)
    try:
        return _snapshot_of(read(read_file(path)), str(path))
    except Contradiction as error:
        raise SnapshotError(f"{path}: the file contradicts itself: {error}; nothing can be concluded from it") from None
    except PickleError as error:
        raise SnapshotError(f"{path} cannot be read as a snapshot: {error}") from None
    except MemoryError:
        raise SnapshotError(
            f"{path} is larger than the memory this process may use; read it on a machine with more memory"
        ) from None
    except ValueError as error:
        raise SnapshotError(f"{path} cannot be read as a snapshot: {error}") from None
    except (TypeError, KeyError, AttributeError, OverflowError, IndexError):
        raise SnapshotError(
            f"{path} cannot be read as a snapshot: its structure differs from that of PyTorch's snapshots; expected "
            "a file written by torch.cuda.memory._dump_snapshot()"
        ) from None


def _snapshot_of(found: dict[str, Any], path: str) -> Snapshot:
    root = found["root"]
    if isinstance(root, list):  # torch.cuda.memory_snapshot()
        root = {"segments": root}
    if not isinstance(root, dict) or not ({"segments", "device_traces"} & root.keys()):
        raise NoSnapshotError(f"{path} is not a snapshot: it has neither segments nor device_traces", root)
    segments = segments_of(root.get("segments"))
    rows = _rows_by_device(root.get("device_traces"))
    found["texts"] = [visible(text) for text in found["texts"]]
    stacks, labels = _stacks_of(found), _labels_of(found)
    settings = root.get("allocator_settings")
    facts = FileFacts.of(found, root)
    annotations = _annotations_of(root.get("external_annotations"))
    table = np.array([ACTIONS.get(text, Action.OTHER) for text in found["texts"]], np.int64)
    pinned = _pinned_of(found, root, table)
    return Snapshot(
        path=path,
        devices={
            device: _history_of(
                found,
                device=device,
                rows=rows.get(device, slice(0, 0)),
                actions=table,
                stacks=stacks,
                labels=labels,
                segments=segments.get(device, ()),
                annotations=annotations.get(device, ()),
                settings=settings if isinstance(settings, dict) else {},
                facts=facts,
                pinned=pinned,
            )
            for device in sorted({*segments, *rows} or {0})
        },
    )


def _pinned_of(found: dict[str, Any], root: Mapping[str, Any], actions: Column) -> PinnedHistory | None:
    traces, segments = root.get("host_traces"), root.get("host_segments")
    traces = traces if isinstance(traces, np.ndarray) else list_of(traces, "the traces of host memory")
    if not len(traces) and not segments:
        return None
    rows = _rows_of(traces, "host memory") if len(traces) else slice(0, 0)
    size = found["size"][rows]
    if ((size < 0) | (size > MOST_BYTES)).any():
        raise ValueError("an entry of host memory has an impossible size")
    return PinnedHistory(
        action=actions[found["action"][rows]],
        size=size,
        segments=segments_of(segments, on_host=True).get(0, ()),
    )


def _rows_by_device(found: Any) -> dict[int, Column | slice]:
    traces = list_of(found, "the traces")
    if len(traces) > MOST_DEVICES:
        raise ValueError(f"it has traces of {len(traces)} devices; expected at most {MOST_DEVICES}")
    filled = {device: trace for device, trace in enumerate(traces) if len(trace)}
    rows = {device: _rows_of(trace, f"device {device}") for device, trace in filled.items()}
    if rows:  # A small file could refer to a large trace, or to one entry, a thousand times.
        every = np.concatenate(list(filled.values()))
        if (np.diff(every) <= 0).any() and len(np.unique(every)) < len(every):
            raise ValueError("it refers to the same entry twice in its traces")
    return rows


def _rows_of(trace: Any, what: str) -> Column | slice:
    if not isinstance(trace, np.ndarray):
        raise ValueError(f"the trace of {what} contains something other than entries")
    first, last = int(trace[0]), int(trace[-1])
    follows = last - first + 1 == len(trace) and bool((np.diff(trace) == 1).all())
    return slice(first, last + 1) if follows else trace


def _history_of(
    found: dict[str, Any],
    *,
    device: int,
    rows: Column | slice,
    actions: Column,
    stacks: RecordedStacks,
    labels: Labels,
    segments: Sequence[Segment],
    annotations: Sequence[Annotation],
    settings: Mapping[str, Any],
    facts: FileFacts,
    pinned: PinnedHistory | None,
) -> History:
    history = History(
        device=device,
        action=actions[found["action"][rows]],
        address=found["address"][rows],
        size=_sizes_of(actions[found["action"][rows]], found["size"][rows]),
        stream=found["stream"][rows],
        time_us=found["time_us"][rows],
        stack=found["stack"][rows],
        stacks=stacks,
        segments=tuple(segments),
        annotations=tuple(annotations),
        settings=settings,
        labels=_labels_at(labels, rows),
        release=facts.release,
        unknown_keys=facts.unknown_keys,
        pinned=pinned,
    )
    _check(history)
    _check_pools(history)
    check(history)
    return history


# A failed request of 2^62 bytes or more is stored as 2^62.
def _sizes_of(action: Column, size: Column) -> Column:
    is_huge = (action == Action.OOM) & ((size < 0) | (size > BOGUS_FROM_BYTES))
    return np.where(is_huge, BOGUS_FROM_BYTES, size) if is_huge.any() else size


# A replay has lists for each pair of stream and private pool and can hold only a limited number.
def _check_pools(history: History) -> None:
    streams = {*np.unique(history.stream).tolist(), *(segment.stream for segment in history.segments)}
    pools = {0, *np.unique(history.labels.pool).tolist(), *(segment.pool for segment in history.segments)}
    if len(streams) * len(pools) > _MOST_FREE_LISTS:
        raise ValueError(
            f"device {history.device} has {len(streams):,} streams and {len(pools):,} pools; expected at most "
            f"{_MOST_FREE_LISTS:,} pairs of them"
        )


def _check(history: History) -> None:
    actions, known, failed = history.action, history.action != Action.OTHER, history.action == Action.OOM
    room = np.where(failed, history.address, 0)  # In these entries, the free bytes are stored in place of an address.
    for what, values, asked, most in (
        ("size", history.size, known & ~failed, MOST_BYTES),
        ("free memory", room, failed, MOST_BYTES),
        ("address", history.address, known & ~failed, MOST_ADDRESS),
    ):
        odd = np.flatnonzero(asked & ((values < 0) | (values > most)))
        if len(odd):
            name, value = Action(actions[odd[0]]).name.lower(), values[odd[0]]
            where = f"entry {odd[0]} of device {history.device}, {name}"
            raise ValueError(f"{where}, has the {what} {value}, which is impossible")


def _labels_of(found: dict[str, Any]) -> Labels:
    texts = found["texts"]
    columns = {name: found[name] for name in ("metadata", "context")}
    used = np.zeros(len(texts) + 1, np.bool_)  # An additional text, for the index -1 of entries without a label.
    for column in columns.values():
        used[column] = True
    used &= np.array([*(text not in ("", _NO_CONTEXT) for text in texts), False])
    number_of = np.full(len(used), -1, np.int64)
    number_of[used] = np.arange(np.count_nonzero(used))
    kept = {name: number_of[column] for name, column in columns.items() if used[column].any()}
    if found["pool"].any():
        kept["pool"] = found["pool"]
    return Labels(**kept, texts=tuple(texts[number] for number in np.flatnonzero(used).tolist()))


def _labels_at(labels: Labels, rows: Column | slice) -> Labels:
    none = {"metadata": -1, "context": -1, "pool": 0}
    columns = {name: getattr(labels, name) for name in none}
    taken = {name: column[rows] for name, column in columns.items() if len(column)}
    kept = {name: column for name, column in taken.items() if (column != none[name]).any()}
    return Labels(**kept, texts=labels.texts)


def _stacks_of(found: dict[str, Any]) -> RecordedStacks:
    texts = found["texts"]
    _check_names(found, texts)
    names, files = found["frame_name"].tolist(), found["frame_file"].tolist()
    scripts = {file for name, file in zip(names, files, strict=True) if texts[name] == TOP_LEVEL}
    scripts = {file for file in scripts if not is_python(texts[file])}
    return RecordedStacks(
        starts=found["stack_starts"],
        frames=found["stack_frames"],
        table=tuple(
            Frame(texts[name], texts[file], line, file in scripts)
            for name, file, line in zip(names, files, found["frame_line"].tolist(), strict=True)
        ),
    )


# The text of each frame repeats the names, so all texts would take far more memory than the file.
def _check_names(found: dict[str, Any], texts: Sequence[str]) -> None:
    letters = np.array([len(text) for text in texts], np.int64)
    made_bytes = int(letters[found["frame_name"]].sum() + letters[found["frame_file"]].sum())
    if made_bytes > _MOST_NAME_BYTES + 4 * found["file_bytes"]:
        raise ValueError(
            f"the names of its {len(found['frame_name']):,} frames would take {text_of_bytes(made_bytes)}, "
            "many times the size of the file, which is not the case for a snapshot"
        )


def _annotations_of(found: Any) -> dict[int, list[Annotation]]:
    annotations: dict[int, list[Annotation]] = {}
    drawn: dict[str, str] = {}  # A small file could contain a long name a million times.
    for entry in found if isinstance(found, list) else ():
        name, stage = entry.get("name"), entry.get("stage")
        if isinstance(name, str) and isinstance(stage, str):
            if name not in drawn:
                drawn[name] = visible(name)
            annotations.setdefault(int_of(entry, "device", 0), []).append(
                Annotation(name=drawn[name], stage=stage, time_us=int_of(entry, "time_us", -1))
            )
    return annotations
