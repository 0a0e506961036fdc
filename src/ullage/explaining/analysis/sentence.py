"""Writes the heading and the first sentence of an explanation."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from ullage.base.units import text_of_bytes, text_of_seconds
from ullage.explaining.analysis.cause import Cause, Evidence, is_full
from ullage.explaining.analysis.growth import Accumulation, StepGrowth
from ullage.explaining.analysis.holder import LineHolder
from ullage.explaining.analysis.recording import HeldBlock, Recording, allocated_by, placed
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.role import RoleShare
from ullage.explaining.analysis.role.share import most_of
from ullage.recorded.history import Action
from ullage.recorded.settings import line_to_paste

_RECORD: Final = (
    "Call torch.cuda.memory._record_memory_history() before the run, and "
    "torch.cuda.memory._dump_snapshot('oom.pickle') where the error is caught."
)


# A size in bytes. The report prints the exact size of a request only if it is smaller than this.
_UNPRINTED_BYTES: Final = 1 << 62
_IN_PIECES: Final = (Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS)
_FREE_THEM: Final = (
    "\nFree these blocks: evaluate under torch.no_grad(), keep a loss as .item() and an output as .detach().cpu(), or "
    "empty the list or cache that holds them. If the loop trains, call backward() more often."
)
_HOLDERS_NAMED: Final = 3
# A share of peak reserved memory. The report advises a setting only if it lowers the peak by at least this share.
_WORTH_NAMING: Final = 0.02


def headline_of(cause: Cause, recording: Recording, evidence: Evidence, roles: Sequence[RoleShare]) -> str:
    """Return the heading of an explanation, such as "NOT ENOUGH GPU MEMORY"."""
    if cause in _IN_PIECES and _is_free_elsewhere(evidence):
        return "FREE MEMORY BELONGS TO ANOTHER STREAM OR POOL"
    if cause is not Cause.DID_NOT_FAIL:
        return cause.heading
    if not recording.capacity_is_given:
        return f"PEAK {text_of_bytes(evidence['peak_allocated_bytes'])}{most_of(roles)}"
    return "FITS" if evidence["peak_reserved_bytes"] <= evidence["room_bytes"] else "DOES NOT FIT"


def sentence_of(
    cause: Cause,
    recording: Recording,
    evidence: Evidence,
    growth: StepGrowth | Accumulation | None,
    pinning: Sequence[HeldBlock],
    holders: Sequence[LineHolder],
) -> str:
    """Return the first sentence of an explanation, which states the cause with its figures.

    Args:
        cause: the reason why the request failed, or `DID_NOT_FAIL`.
        recording: the run.
        evidence: the figures of the run.
        growth: the growth from step to step or the accumulation in a loop, if there is any.
        pinning: the blocks whose absence would have let the request succeed.
        holders: the lines that held memory at the failed request or at the peak, largest first.
    """
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    if cause in _IN_PIECES and _is_free_elsewhere(evidence):
        return _free_elsewhere(size, evidence) + _empty_first(recording)
    match cause:
        case Cause.FRAGMENTED:
            return (
                f"The free memory was fragmented: the request needed {size['needed_segment_bytes']} in one piece; "
                f"{size['free_bytes']} were free on the GPU, and {_cached(evidence)}{_pinned(pinning)}."
            )
        case Cause.PINNED_BY_SPLITS:
            return (
                f"Live blocks pinned the free memory of a segment: a single segment had more than the "
                f"{size['needed_segment_bytes']} needed, but in pieces of at most "
                f"{size['largest_free_block_bytes']}{_pinned(pinning)}."
            )
        case Cause.TRULY_FULL:
            full = (
                f"{size['allocated_bytes']} of {size['room_bytes']} were allocated when a request for "
                f"{size['requested_bytes']} failed"
            )
            if evidence["missing_bytes"]:
                return f"{full}; even after releasing all cached memory, {size['missing_bytes']} are missing."
            return f"{full}; packed without gaps, everything would just fit, with {size['left_bytes']} to spare."
        case Cause.LEAK:
            assert isinstance(growth, StepGrowth)
            return _grown(growth, evidence)
        case Cause.ACCUMULATION:
            assert isinstance(growth, Accumulation)
            return _accumulated(growth, evidence)
        case Cause.PENDING_FREES:
            return (
                f"{size['pending_bytes']} of memory were freed but not reusable yet: other streams may still use them "
                "(record_stream, NCCL)."
            )
        case Cause.LIMIT:
            return (
                "A limit refused the request; the GPU's memory size is not the cause: "
                f"{text_of_bytes(free_when_refused(evidence))} were free on the GPU when {size['requested_bytes']} "
                f"were refused. The allocator could not reserve {size['limit_bytes']} (check "
                "per_process_memory_fraction, throw_on_cudamalloc_oom and the system's limits)."
            )
        case Cause.ADDRESS_SPACE:
            return (
                "The GPU had free memory, but addresses ran out or a limit was reached: "
                f"{text_of_bytes(free_when_refused(evidence))} were free on the GPU when expandable_segments could not "
                f"map {size['requested_bytes']} more."
            )
        case Cause.BOGUS_SIZE:
            asked = evidence["requested_bytes"]
            told = f"{asked:,} bytes" if asked < _UNPRINTED_BYTES else "2^62 bytes or more"
            return f"The requested size is impossible: {told}. Check the code that computes it."
        case _:
            return _nothing_failed(recording, evidence, holders)


def _is_free_elsewhere(evidence: Evidence) -> bool:
    if evidence["largest_free_block_bytes"] >= evidence["needed_segment_bytes"]:
        return True
    usable = evidence["free_bytes"] + evidence["cached_bytes"] - evidence.get("other_pools_cached_bytes", 0)
    return usable < evidence["needed_segment_bytes"]


def _free_elsewhere(size: Mapping[str, str], evidence: Evidence) -> str:
    if evidence["largest_free_block_bytes"] < evidence["needed_segment_bytes"]:
        return (
            f"The free memory belongs to other pools: the request needed {size['needed_segment_bytes']}; "
            f"{size['free_bytes']} were free on the GPU, and other pools had {size['other_pools_cached_bytes']} "
            "cached. Memory of a private pool (a CUDA graph's pool, torch.cuda.MemPool) serves only requests of that "
            "pool. While a private pool requests memory, the caches of other pools are not returned to the driver."
        )
    return (
        f"The free memory belongs to another stream or pool: the request needed {size['needed_segment_bytes']}, and "
        f"{size['largest_free_block_bytes']} were free in one piece on another stream or in another pool. The "
        "allocator serves a request only from the cache of the same stream and pool."
    )


def went_on(recording: Recording) -> str:
    """Return a sentence about allocations that succeeded after the failure. It is empty if the program stopped
    there.
    """
    if not recording.is_recorded_failure or recording.failing_op is None:
        return ""
    later = recording.history.action[recording.rebuilt.row_of_op[recording.failing_op] + 1 :]
    more = int(np.count_nonzero(later == Action.ALLOC))
    if not more:
        return ""
    return f" The program caught the error and continued: {more:,} later request{'s' if more > 1 else ''} succeeded."


def cure_of(
    cause: Cause, remedies: Sequence[Remedy], evidence: Evidence, growth: StepGrowth | Accumulation | None
) -> str:
    """Return a shell command that applies a setting. The setting must be proved to prevent the failure, not only to
    delay it.
    """
    best = next((remedy for remedy in remedies if remedy.setting and remedy.proved and remedy.fits), None)
    left = max(0, evidence["room_bytes"] - (best.peak_reserved_bytes or 0)) if best and "room_bytes" in evidence else 0
    if growth is not None and cause in (Cause.LEAK, Cause.ACCUMULATION) and "requested_bytes" in evidence:
        put_off = (
            f" The setting {best.setting} only delays the failure {_by(left, growth)}." if best is not None else ""
        )
        return _FREE_THEM + put_off
    if cause is Cause.DID_NOT_FAIL and "room_bytes" not in evidence:
        return lower_with(remedies, evidence)
    if "requested_bytes" not in evidence:
        return ""
    if best is None:
        done = next((remedy for remedy in remedies if remedy.proved and remedy.fits), None)
        less = next((remedy for remedy in remedies if not remedy.proved), None)
        if done is None and less is not None and cause is Cause.TRULY_FULL:
            return f"\nThis would be enough: {less.name}."
        return f"\n{_no_setting(cause)}: {done.name} (replayed)." if done is not None else ""
    thin = (
        " The training step had not ended and may need more memory, so a smaller batch is safer."
        if is_full(evidence["room_bytes"], left)
        else ""
    )
    if isinstance(growth, StepGrowth):
        thin = (
            f" But every training step keeps {text_of_bytes(growth.bytes_per_step)} more memory, mostly "
            f"{allocated_by(growth.line, 'at')}. So the setting {best.setting} only delays the failure "
            f"{_by(left, growth)}."
        )
    return (
        f"\n{_this_setting(cause)}: {best.setting}, with {text_of_bytes(left)} left (replayed).{thin} "
        f"Before the process starts:\n  {line_to_paste(best.alloc_conf or best.setting or '')}"
    )


def _no_setting(cause: Cause) -> str:
    return f"No setting is enough, but {'this would be' if cause is Cause.TRULY_FULL else 'this change helps'}"


def _this_setting(cause: Cause) -> str:
    return "This setting would be enough" if cause is Cause.TRULY_FULL else "This setting lets the request succeed"


def _empty_first(recording: Recording) -> str:
    if recording.failing_op is None or not recording.pool_of_ops()[recording.failing_op]:
        return ""
    return " Call torch.cuda.empty_cache() before the capture: it returns completely free segments to the driver."


def _by(left_bytes: int, growth: StepGrowth | Accumulation) -> str:
    each, what = (growth.round_bytes, "block") if isinstance(growth, Accumulation) else (growth.bytes_per_step, "step")
    more = left_bytes // max(1, each)
    return f"by about {more:,} more {what}{'' if more == 1 else 's'}" if more else f"by less than one {what}"


def _grown(growth: StepGrowth, evidence: Evidence) -> str:
    ran_out = ", until memory ran out" if "requested_bytes" in evidence else ""
    kept, most = text_of_bytes(growth.bytes_per_step), text_of_bytes(growth.line_bytes_per_step)
    such = "such blocks" if growth.line.startswith("(") else "blocks of that line"
    part = "most of it" if 2 * growth.line_bytes_per_step > growth.bytes_per_step else "the largest part"
    source = f"{part} ({most}) {allocated_by(growth.line)}{ran_out}"
    held = f"{text_of_bytes(growth.line_bytes)} of the {text_of_bytes(evidence['allocated_bytes'])} allocated"
    grows = f"Memory grows: every step keeps {kept} more, {source}."
    return f"{grows} {growth.line_blocks:,} {such} are alive and hold {held}."


def _accumulated(accumulation: Accumulation, evidence: Evidence) -> str:
    called = f", called {placed(accumulation.called_at)}" if accumulation.called_at != accumulation.line else ""
    if accumulation.is_older:
        since = ", some of them before recording began"
    else:
        since = (
            f" in the last {text_of_seconds(accumulation.seconds)}"
            if accumulation.seconds is not None
            else " one after the other"
        )
    others = (
        f", with {accumulation.other_blocks:,} blocks of other lines ({text_of_bytes(accumulation.other_bytes)})"
        if accumulation.other_blocks
        else ""
    )
    where = f"{placed(accumulation.line)}{called}"
    held = f"{text_of_bytes(accumulation.bytes)} of the {text_of_bytes(evidence['allocated_bytes'])} allocated"
    keeps = (
        f"A loop does not free its memory: {accumulation.blocks:,} blocks that were allocated {where} are still alive. "
        f"These blocks hold {held}."
    )
    return f"{keeps} They were allocated{since}{others}."


def free_when_refused(evidence: Evidence) -> int:
    """Return how many bytes were free on the GPU when the driver refused the allocation."""
    return evidence["free_bytes"] + evidence.get("refused_bytes", 0)


def _nothing_failed(recording: Recording, evidence: Evidence, holders: Sequence[LineHolder]) -> str:
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    if not evidence["peak_reserved_bytes"]:
        return f"The snapshot is empty: it contains no memory. {_RECORD}"
    if not len(recording.history):
        return (
            f"The snapshot has only the final state, {size['allocated_bytes']} allocated of {size['reserved_bytes']} "
            f"reserved; it shows neither the memory requests nor whether one failed. {_RECORD}"
        )
    if recording.has_recorded_failure and not recording.capacity_is_given:
        return (
            "A request failed in this recording, but it succeeds in the replay. The file contradicts itself, or the "
            "replay lacks a feature of the allocator; please report it, with the file if you can."
        )
    if not recording.capacity_is_given:
        return peak_sentence(recording, evidence, holders)
    if evidence["peak_reserved_bytes"] > evidence["room_bytes"]:
        return (
            f"This run does not fit in {size['room_bytes']}: it reserved {size['peak_reserved_bytes']}, most of them "
            "before recording began."
        )
    failed = ", and the request that failed in the recording succeeds" if recording.has_recorded_failure else ""
    return (
        f"The recorded part of this run fits in {size['room_bytes']}: it reserves at most "
        f"{size['peak_reserved_bytes']}{failed}."
    )


def _cached(evidence: Evidence) -> str:
    cached, largest = evidence["cached_bytes"], evidence["largest_free_block_bytes"]
    if not cached or not largest:
        return "nothing cached"
    return f"{text_of_bytes(cached)} were cached in pieces of at most {text_of_bytes(largest)}"


def _pinned(blocks: Sequence[HeldBlock]) -> str:
    if not blocks:
        return ""
    lines = Counter(block.line for block in blocks)
    count = f"{len(blocks)} live block{'s' if len(blocks) > 1 else ''}"
    held = text_of_bytes(sum(block.size_bytes for block in blocks))
    known = ", ".join(line for line in lines if not line.startswith("("))
    unknown = [allocated_by(line) for line in lines if line.startswith("(")]
    where = ", ".join([*([f"from {known}"] if known else []), *unknown])
    return f"; {count} {where} ({held}) {'keep' if len(blocks) > 1 else 'keeps'} that memory from being used"


def peak_sentence(recording: Recording, evidence: Evidence, holders: Sequence[LineHolder]) -> str:
    """Return a sentence about the memory peak of a run that did not fail. It says when the peak occurred and what held
    the memory.
    """
    peak, reserved = evidence["peak_allocated_bytes"], evidence["peak_reserved_bytes"]
    beyond = reserved - peak
    cached = f", {text_of_bytes(beyond)} more than the peak of allocated memory" if beyond > 0 else ""
    held = ", ".join(_held(holders, evidence["allocated_bytes"]))
    return (
        f"No request failed. At the peak, {_when(recording)}, {text_of_bytes(peak)} were allocated"
        f"{': ' + held if held else ''}. At most {text_of_bytes(reserved)} were reserved{cached}."
    )


def _held(holders: Sequence[LineHolder], total_bytes: int) -> Iterator[str]:
    for holder in holders[:_HOLDERS_NAMED]:
        yield f"{text_of_bytes(holder.bytes)} ({100 * holder.bytes / max(1, total_bytes):.0f} %) {placed(holder.line)}"


def _when(recording: Recording) -> str:
    op = recording.done.peak_allocated_op
    if op < recording.program.setup:
        return "when recording began"
    ends = recording.step_ops()
    if ends:
        step = bisect_left(ends, op) + 1
        return f"in step {step} of {len(ends)}" if step <= len(ends) else f"after step {len(ends)}, the last step"
    times = recording.history.time_us
    now = int(times[recording.rebuilt.row_of_op[op]])
    if now >= 0 and times[0] >= 0:
        return f"{text_of_seconds((now - int(times[0])) / 1e6)} after recording began"
    return f"{100 * op / max(1, len(recording.program)):.0f} % into the recording"


def lower_with(remedies: Sequence[Remedy], evidence: Evidence) -> str:
    """Return the advice to use the setting that lowers peak reserved memory most. It is empty if no setting does."""
    now = evidence["peak_reserved_bytes"]
    settings = [remedy for remedy in remedies if remedy.setting and remedy.proved and remedy.fits]
    best = min(settings, key=lambda remedy: remedy.peak_reserved_bytes or now, default=None)
    less = now - (best.peak_reserved_bytes or now) if best is not None else 0
    if best is None or less < _WORTH_NAMING * now:
        return ""
    return (
        f"\n{best.setting} would have reserved {text_of_bytes(less)} less (replayed). Before the process starts:\n"
        f"  {line_to_paste(best.alloc_conf or best.setting or '')}"
    )
