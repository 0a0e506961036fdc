"""The result of a run, put together in the script's process as plain data for the parent."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage._output import write_whole
from ullage.emulator import library
from ullage.tracing.journal import Journal, Kind

if TYPE_CHECKING:
    from ullage.prediction.observer import Observer


def measure(
    journal: Journal,
    observer: "Observer",
    reserved_at_ends: Sequence[Sequence[int]],
    *,
    snapshot: str | None,
    picture: bool,
) -> dict[str, Any]:
    """Say what a run used.

    Args:
        journal: closed.
        observer: removed.
        reserved_at_ends: for each step's end, the reserved bytes of every card.
        snapshot: where to write PyTorch's memory snapshot.
        picture: whether what a page draws is wanted too.
    """
    import torch

    from ullage.ownership.owners import holder_at
    from ullage.prediction import trace

    entries = journal.entries()
    device = trace.busiest_device(entries)
    result: dict[str, Any] = {
        "device": device,
        "oom_count": len(observer.ooms),
        "unwritten": library.unwritten_functions(),
        "reads": _reads(observer),
        "lost_entries": journal.lost(),
        "compiled_graphs": _compiled_graphs(),
        "architectures": torch.cuda.get_arch_list(),
    }
    if device is None:
        if snapshot:
            result["snapshot_error"] = "the script allocated nothing on the GPU"
        return result
    history = torch.cuda.memory._snapshot(device)["device_traces"][device]
    memory = trace.Memory.of(entries, observer, device, history, journal.stacks)
    levels = trace.levels_of(entries, device)
    if len(memory.requests.bytes_by_index) < int(
        ((entries["kind"] == Kind.ALLOC) & (entries["device"] == device)).sum()
    ):
        result["history_is_partial"] = True
    peak = int(levels.allocated.argmax())
    plans = library.cudnn_plans()
    result |= {
        "peak_allocated_bytes": int(levels.allocated[peak]),
        "peak_reserved_bytes": int(levels.reserved.max()),
        "reserved_at_peak_bytes": int(levels.reserved[peak]),
        "peak": memory.alive_at(int(levels.index[peak])),
        "role_peaks": memory.role_peaks(),
        "steps": trace.steps_of(
            levels,
            observer.step_ends,
            [reserved[device] if device < len(reserved) else 0 for reserved in reserved_at_ends],
            [oom.index for oom in observer.ooms],
            len(entries),
        ),
        "timeline": trace.timeline_of(levels, observer.step_ends),
        "cudnn": {"version": library.cudnn_version(), **asdict(plans)},
        "guesses": {kind: asdict(figures) for kind, figures in library.guesses().items()},
    }
    ends = observer.step_ends
    result["settled"] = trace.is_settled(result["steps"])
    if growth := trace.growth_of(result["steps"]):
        line, blocks = memory.kept_since(ends[-4], ends[-2], ends[-1])
        result["growth"] = {
            "bytes_per_step": growth,
            "file": line.file if line else None,
            "line": line.line if line else None,
            "holder": holder_at(blocks),
        }
    if picture:
        highest = int(levels.index[peak])
        result["picture"] = {
            "by_role": memory.over_time(levels),
            "tree": memory.tree_at(highest, observer.module_names),
            "segments": memory.segments_at(highest, history, entries),
        }
    if observer.ooms:
        moment = observer.ooms[-1].index
        where = trace.device_out_of_memory(entries, moment)
        if where not in (None, device):
            traces = torch.cuda.memory._snapshot(where)["device_traces"][where]
            memory = trace.Memory.of(entries, observer, where, traces, journal.stacks)
        result["at_oom"] = memory.alive_at(moment) | trace.levels_at_oom(entries, moment)
    if snapshot:
        result["snapshot_error"] = _write_snapshot(Path(snapshot))
    return result


def _compiled_graphs() -> int:
    """The graphs that Dynamo made, by its own count (torch._dynamo.utils.counters, torch 2.8 to 2.15)."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def _reads(observer: "Observer") -> list[dict[str, Any]]:
    return [
        {
            "file": line.file if line else None,
            "line": line.line if line else None,
            "op": op,
            "count": count,
            "bytes": observer.read_bytes[line, op, decides],
            "decides_shape": decides,
        }
        for (line, op, decides), count in sorted(observer.reads.items(), key=lambda item: (not item[0][2], -item[1]))
    ]


def _write_snapshot(path: Path) -> str | None:
    """Write PyTorch's snapshot; returns why not."""
    import pickle

    import torch

    try:
        write_whole(path, pickle.dumps(torch.cuda.memory._snapshot()))
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None
