"""Collect the result of a run as plain data for the parent process."""

import gc
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ullage.base.growth import growing
from ullage.base.own_files import write_whole
from ullage.gpu.emulator import library
from ullage.gpu.emulator.library import GuessFigures
from ullage.gpu.emulator.profile import buffers_of
from ullage.gpu.tracing.compiled import compiled_graphs
from ullage.gpu.tracing.journal import EntryKind, Journal
from ullage.gpu.values.reads import Reads
from ullage.gpu.values.start import Values
from ullage.predicting.prediction.child.context import RunContext
from ullage.predicting.prediction.child.instruments import Instruments
from ullage.predicting.prediction.data.prediction import Growth, HostRead, Picture, Step, ValuesUse
from ullage.predicting.prediction.data.run_result import (
    AtOom,
    Elsewhere,
    Measured,
    OomLevels,
    Outcome,
    RunResult,
    TakenOutside,
)
from ullage.predicting.prediction.measurement import phase_use, placement, trace
from ullage.predicting.prediction.measurement.trace import Memory
from ullage.predicting.prediction.observation.low_bit_states import notes_on_states
from ullage.predicting.prediction.observation.observer import Observer
from ullage.predicting.prediction.phases import spans
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE
from ullage.training.ownership.owners import holder_at


def measure(
    context: RunContext, seen: Instruments, outcome: Outcome, *, began: float, import_seconds: float
) -> RunResult:
    """Stop measuring the script, and return how the run ended and how much memory it used.

    Args:
        context: the objects of the run.
        seen: the objects that measured the script.
        outcome: how the script ended.
        began: when the script was started, in seconds of `time.perf_counter`, later by the time of the import of torch.
        import_seconds: the duration of the import of torch.
    """
    journal, observer, values, snapshot = context.journal, seen.observer, seen.values, context.request.snapshot
    if outcome.kind == "ended":
        observer.end_backward_step()  # no forward pass followed the last backward pass
    context.notes += _notes(seen)
    if observer.largest_input and any(note.startswith("generated: ") for note in context.notes):
        context.notes.append(f"inputs: {observer.largest_input}, the largest input of a forward pass")
    observer.note_everything()
    journal.close()
    gathered = seen.loop.gathered if seen.loop is not None else None
    training = gathered(journal.entries()) if gathered is not None else None
    gc.disable()  # the script is not measured any more, and the result consists of very many small objects
    observer.remove()
    seen.history.give_back()
    # A value that was replaced by zero may have affected a branch or a size, or made the script fail.
    may_have_decided = not values.reads.are_logged_only or (outcome.kind == "error" and bool(values.reads.counts))
    has_missed = values.has_stopped and may_have_decided
    largest_not_asked = values.messages.largest_not_asked if values.messages is not None else 0
    # With "all", the contents of GPU memory are kept in host memory.
    host = None if values.choice.mode == "all" else context.meter.figures()
    if seen.search is not None:
        seen.search.end()
    values.stop()
    device = trace.busiest_device(journal.entries())
    result = RunResult(
        outcome=outcome,
        torch=context.torch.version,
        imported=True,
        import_seconds=import_seconds,
        step_seconds=seen.steps.seconds(began),
        notes=context.notes,
        changes_made=dict(seen.loop.effects) if seen.loop is not None else {},
        changes_refused=seen.loop.refusals if seen.loop is not None else {},
        training=training,
        oom_count=len(observer.ooms),
        reads=_reads(observer.reads),
        values=_values_use(values),
        missed_values=has_missed,
        largest_not_asked=largest_not_asked,
        unwritten=library.unwritten_functions(),
        outside=TakenOutside(
            by_library=library.outside(),
            managed_on_card_bytes=library.managed_peak_on_card_bytes(device or 0),
            peak_used_bytes=library.used_peak_bytes(device or 0),
        ),
        lost_entries=journal.lost(),
        compiled_graphs=compiled_graphs(),
        architectures=torch.cuda.get_arch_list(),
        world_size=context.request.options["world_size"],
        rank=context.request.options["rank"],
        host=host,
        epoch=seen.epoch.use if seen.epoch is not None else None,
        sent_bytes_per_step=seen.steps.sent_bytes_per_step,
        recomputed_share=observer.recomputed_share,
    )
    if device is None:
        return replace(result, snapshot_error="the script allocated nothing on the GPU" if snapshot else None)
    measured = _measured(context, seen, result, device)
    return replace(result, measured=measured, snapshot_error=_write_snapshot(Path(snapshot)) if snapshot else None)


def _notes(seen: Instruments) -> list[str]:
    notes = []
    if len(seen.steps) and not seen.observer.has_optimizer:
        notes.append("the script created no optimizer of torch.optim, so each backward pass counts as a step")
    if seen.post is not None:
        notes += seen.post.notes()
    return [*notes, *notes_on_states(seen.observer.live_optimizers())]


def _measured(context: RunContext, seen: Instruments, result: RunResult, device: int) -> Measured:
    journal, observer, emulation = context.journal, seen.observer, context.emulation
    entries, marks = journal.entries(), observer.marks
    recorded = torch.cuda.memory._snapshot(device)
    taken = seen.epoch.watch.ledger.history() if seen.epoch is not None else None
    history = recorded["device_traces"][device] if taken is None else taken
    memory = Memory.of(entries, observer, device, history, journal.stacks)
    levels = trace.levels_of(entries, device)
    allocations = int(((entries["kind"] == EntryKind.ALLOC) & (entries["device"] == device)).sum())
    peak, reserved_peak = int(levels.allocated.argmax()), int(levels.reserved.max())
    moment, oom_indices = int(levels.index[peak]), [oom.index for oom in observer.ooms]
    steps = trace.steps_of(levels, observer.step_ends, seen.steps.reserved_bytes(device), oom_indices, len(entries))
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
        elsewhere=_elsewhere(context, seen, result, recorded, history, reserved_peak),
        picture=Picture(
            by_role=memory.over_time(levels),
            tree=memory.tree_at(moment),
            segments=memory.segments_at(moment, history, entries),
        )
        if context.request.picture
        else None,
        at_oom=_at_oom(journal, observer, memory) if observer.ooms else None,
        phases=phase_use.uses_of(marks, entries, levels, memory, ran_out=result.outcome.kind == "oom"),
        bands=phase_use.bands_of(marks, entries, levels, trace.edges_of(levels).tolist()),
        avoidable=seen.search.found(memory, levels, recorded, history, torch_version=result.torch, emulation=emulation)
        if seen.search is not None
        else [],
    )


def _elsewhere(
    context: RunContext,
    seen: Instruments,
    result: RunResult,
    recorded: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    reserved_peak: int,
) -> Elsewhere | None:
    if not placement.addresses_count(result.torch):
        return None
    emulation, ooms = context.emulation, seen.observer.ooms
    # The memory that libraries took outside PyTorch's allocator.
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


def _growth(memory: Memory, steps: Sequence[Step], ends: Sequence[int]) -> Growth | None:
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


def _at_oom(journal: Journal, observer: Observer, memory: Memory) -> AtOom:
    entries, oom = journal.entries(), observer.ooms[-1]
    failed = trace.failed_request(entries, oom.index)
    where = int(failed["device"]) if failed is not None else memory.device
    if where != memory.device:
        traces = torch.cuda.memory._snapshot(where)["device_traces"][where]
        memory = Memory.of(entries, observer, where, traces, journal.stacks)
    requested, allocated, reserved = (
        int(failed[column]) if failed is not None else 0 for column in ("size", "allocated", "reserved")
    )
    return AtOom(
        levels=OomLevels(requested_bytes=requested, allocated_bytes=allocated, reserved_bytes=reserved),
        free_bytes=oom.free_bytes,
        limit_bytes=oom.limit_bytes,
        alive=memory.alive_at(oom.index),
        phase=spans.name_at(observer.marks, entries, oom.index),
    )


def _reads(reads: Reads) -> list[HostRead]:
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


def _values_use(values: Values) -> ValuesUse:
    choice, evaluation = values.choice, values.evaluation
    return ValuesUse(
        mode=choice.mode,
        seed=choice.seed,
        routing=choice.routing,
        host_bytes=evaluation.peak_bytes,
        failures=values.failures,
        faults=values.faults.by_place,
        routed=evaluation.routing.chosen,
    )


def _write_snapshot(path: Path) -> str | None:
    try:
        write_whole(path, pickle.dumps(torch.cuda.memory._snapshot()))
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


# The peak of reserved memory does not include NCCL's buffers.
def _communicators(result: RunResult, device: int) -> dict[str, GuessFigures]:
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
