"""The result of a run, put together in the script's process as plain data for the parent."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ullage.base.growth import growing
from ullage.base.own_files import write_whole
from ullage.gpu.emulator import library
from ullage.gpu.emulator.emulate import Emulation
from ullage.gpu.emulator.library import GuessFigures
from ullage.gpu.emulator.nccl import buffers_of
from ullage.gpu.tracing.compiled import compiled_graphs
from ullage.gpu.tracing.journal import Entries, EntryKind, Journal
from ullage.predicting.prediction.avoidable_memory import Avoidable
from ullage.predicting.prediction.lone_rank import CARDS_OF_A_NODE
from ullage.predicting.prediction.measurement import placement
from ullage.predicting.prediction.observation.ending import SeenOom
from ullage.predicting.prediction.phases import spans
from ullage.predicting.prediction.prediction import Growth, HostRead, Picture, Step, ValuesUse
from ullage.predicting.prediction.result import AtOom, Elsewhere, Measured, RunResult, TakenOutside

if TYPE_CHECKING:
    from ullage.gpu.values.reads import Reads
    from ullage.gpu.values.start import Values
    from ullage.predicting.prediction.measurement.trace import Levels, Memory
    from ullage.predicting.prediction.observation.observer import Observer


class FindsAvoidable(Protocol):
    """What has looked, while the script ran, for memory that it could do without."""

    def found(
        self,
        memory: "Memory",
        levels: "Levels",
        recorded: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]],
        *,
        torch_version: str,
        emulation: Emulation,
    ) -> list[Avoidable]:
        """Return what is avoidable, the largest first."""


def measure(
    result: RunResult,
    journal: Journal,
    observer: "Observer",
    reserved_at_ends: Sequence[Sequence[int]],
    *,
    snapshot: str | None,
    picture: bool,
    emulation: Emulation,
    values: "Values",
    history: Sequence[Mapping[str, Any]] | None = None,
    diagnosis: "FindsAvoidable | None" = None,
) -> RunResult:
    """Say what a run used.

    Args:
        result: how it ended.
        journal: closed.
        observer: removed.
        reserved_at_ends: for each step's end, the reserved bytes of every card.
        snapshot: where to write PyTorch's memory snapshot.
        picture: whether what a page draws is wanted too.
        emulation: the card.
        values: what was read back from it.
        history: all that PyTorch recorded of the device, where it was taken out of PyTorch meanwhile.
        diagnosis: what has looked for what is avoidable, if that is wanted.
    """
    import torch

    from ullage.predicting.prediction.measurement import trace

    device = trace.busiest_device(journal.entries())
    result = replace(
        result,
        oom_count=len(observer.ooms),
        unwritten=library.unwritten_functions(),
        outside=TakenOutside(
            by_library=library.outside(),
            managed_on_card_bytes=library.managed_peak_on_card_bytes(device or 0),
            peak_used_bytes=library.used_peak_bytes(device or 0),
        ),
        reads=_reads(observer.reads),
        values=_values_use(values),
        lost_entries=journal.lost(),
        compiled_graphs=compiled_graphs(),
        architectures=torch.cuda.get_arch_list(),
    )
    if device is None:
        missing = "the script allocated nothing on the GPU" if snapshot else None
        return replace(result, snapshot_error=missing)
    measured = _measured(
        result,
        journal,
        observer,
        device,
        reserved_at_ends,
        with_picture=picture,
        emulation=emulation,
        taken=history,
        diagnosis=diagnosis,
    )
    error = _write_snapshot(Path(snapshot)) if snapshot else None
    return replace(result, measured=measured, snapshot_error=error)


def _measured(
    result: RunResult,
    journal: Journal,
    observer: "Observer",
    device: int,
    reserved_at_ends: Sequence[Sequence[int]],
    *,
    with_picture: bool,
    emulation: Emulation,
    taken: Sequence[Mapping[str, Any]] | None,
    diagnosis: "FindsAvoidable | None",
) -> Measured:
    """Say what was allocated on a device."""
    import torch

    from ullage.predicting.prediction.measurement import phase_use, trace

    entries = journal.entries()
    recorded = torch.cuda.memory._snapshot(device)
    history = recorded["device_traces"][device] if taken is None else taken
    memory = trace.Memory.of(entries, observer, device, history, journal.stacks)
    levels = trace.levels_of(entries, device)
    allocations = int(((entries["kind"] == EntryKind.ALLOC) & (entries["device"] == device)).sum())
    peak, reserved_peak = int(levels.allocated.argmax()), int(levels.reserved.max())
    moment = int(levels.index[peak])
    steps = trace.steps_of(
        levels,
        observer.step_ends,
        [reserved[device] if device < len(reserved) else 0 for reserved in reserved_at_ends],
        [oom.index for oom in observer.ooms],
        len(entries),
    )
    marks = observer.marks
    return Measured(
        device=device,
        peak_allocated_bytes=int(levels.allocated[peak]),
        peak_reserved_bytes=reserved_peak,
        reserved_at_peak_bytes=int(levels.reserved[peak]),
        peak=memory.alive_at(moment),
        role_peaks=memory.role_peaks(),
        steps=steps,
        settled=trace.is_settled(steps),
        growth=_growth(memory, steps, observer.step_ends),
        timeline=trace.timeline_of(levels, observer.step_ends),
        history_is_partial=len(memory.requests.bytes_by_index) < allocations,
        cudnn_version=library.cudnn_version(),
        cudnn=library.cudnn_plans(),
        guesses=library.guesses() | _communicators(result, device),
        elsewhere=_elsewhere(result, recorded, history, reserved_peak, emulation, observer.ooms),
        picture=_picture(memory, levels, moment, observer, history, entries) if with_picture else None,
        at_oom=_at_oom(journal, observer, memory) if observer.ooms else None,
        phases=phase_use.uses_of(marks, entries, levels, memory, ran_out=result.outcome.kind == "oom"),
        bands=phase_use.bands_of(marks, entries, levels, trace.edges_of(levels).tolist()),
        avoidable=diagnosis.found(memory, levels, recorded, history, torch_version=result.torch, emulation=emulation)
        if diagnosis is not None
        else [],
    )


def _elsewhere(
    result: RunResult,
    recorded: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    reserved_peak: int,
    emulation: Emulation,
    ooms: Sequence[SeenOom],
) -> Elsewhere | None:
    """Say what would be reserved elsewhere, where addresses count."""
    if not placement.addresses_count(result.torch):
        return None
    # What libraries took beside PyTorch.
    beside = max(0, result.outside.peak_used_bytes - emulation.context_bytes - reserved_peak)
    room = emulation.total_memory_bytes - emulation.context_bytes - beside
    limit = ooms[-1].limit_bytes if ooms else None
    return placement.reserved_elsewhere(
        history,
        recorded.get("allocator_settings", {}),
        torch_version=result.torch,
        placement=emulation.placement,
        room_bytes=room if limit is None else min(room, limit),
        is_limited=limit is not None,
        reserved_bytes=reserved_peak,
        ran_out=bool(ooms),
    )


def _growth(memory: "Memory", steps: Sequence[Step], ends: Sequence[int]) -> Growth | None:
    from ullage.training.ownership.owners import holder_at

    complete = [step for step in steps if step.complete]
    found = growing(
        memory.step_blocks(ends),
        [step.end_allocated_bytes for step in complete],
        [step.peak_allocated_bytes for step in complete],
    )
    if found is None:
        return None
    return Growth(
        bytes_per_step=found.bytes_per_step,
        file=found.line.file if found.line else None,
        line=found.line.line if found.line else None,
        holder=holder_at([block.key for block in found.kept[found.line]]),
    )


def _picture(
    memory: "Memory",
    levels: "Levels",
    moment: int,
    observer: "Observer",
    history: Sequence[Mapping[str, Any]],
    entries: Entries,
) -> Picture:
    return Picture(
        by_role=memory.over_time(levels),
        tree=memory.tree_at(moment),
        segments=memory.segments_at(moment, history, entries),
    )


def _at_oom(journal: Journal, observer: "Observer", memory: "Memory") -> AtOom:
    """Say what was alive when memory ran out for the last time, on the device on which it did.

    Args:
        journal: closed.
        observer: removed.
        memory: of the device that reserved most.
    """
    import torch

    from ullage.predicting.prediction.measurement import trace

    entries, oom = journal.entries(), observer.ooms[-1]
    where = trace.device_out_of_memory(entries, oom.index)
    if where is not None and where != memory.device:
        traces = torch.cuda.memory._snapshot(where)["device_traces"][where]
        memory = trace.Memory.of(entries, observer, where, traces, journal.stacks)
    return AtOom(
        levels=trace.levels_at_oom(entries, oom.index),
        free_bytes=oom.free_bytes,
        limit_bytes=oom.limit_bytes,
        alive=memory.alive_at(oom.index),
        phase=spans.name_at(observer.marks, entries, oom.index),
    )


def _reads(reads: "Reads") -> list[HostRead]:
    """Return what was read, first what may decide and is least certain."""
    found = [
        HostRead(
            file=read.line.file if read.line else None,
            line=read.line.line if read.line else None,
            op=read.operation,
            count=count,
            bytes=reads.bytes[read],
            kind=read.kind.value,
            certainty=read.certainty.name.lower(),
        )
        for read, count in sorted(reads.counts.items(), key=lambda item: (-item[0].certainty, -item[1]))
    ]
    return sorted(found, key=lambda read: not read.may_decide)


def _values_use(values: "Values") -> ValuesUse:
    choice, evaluation = values.choice, values.evaluation
    return ValuesUse(
        mode=choice.mode,
        seed=choice.seed,
        routing=choice.routing,
        host_bytes=evaluation.peak_bytes,
        failures=values.failures,
        routed=evaluation.routing.chosen,
    )


def _write_snapshot(path: Path) -> str | None:
    """Write PyTorch's snapshot; returns why not."""
    import pickle

    import torch

    try:
        write_whole(path, pickle.dumps(torch.cuda.memory._snapshot()))
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def _communicators(result: RunResult, device: int) -> dict[str, GuessFigures]:
    """Return what NCCL's buffers may take beside all that was counted."""
    import torch

    figures = library.communicators()
    if not figures.communicators:
        return {}
    across = (result.world_size or 1) > CARDS_OF_A_NODE
    low, high = buffers_of(figures, torch.cuda.get_device_capability(device), across=across)
    return {
        "nccl": GuessFigures(
            count=figures.communicators, guessed_bytes=0, below_bytes=-low, above_bytes=high, expected_below_bytes=0
        )
    }
