"""The headline and the first sentence of an explanation: the cause in words, with its numbers."""

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


_TOLD_BYTES: Final = 1 << 62
"""The size from which on requests that failed are not told apart."""
_IN_PIECES: Final = (Cause.FRAGMENTED, Cause.PINNED_BY_SPLITS)
_LET_GO: Final = (
    "\nFree them: evaluate under torch.no_grad(), keep a loss as .item() and an output as .detach().cpu(), "
    "empty the list or cache that holds them; where the loop trains, call backward() more often."
)
_HOLDERS_NAMED: Final = 3
_WORTH_NAMING: Final = 0.02
"""The least share of the reserved peak by which a setting has to lower it to be named."""


def headline_of(cause: Cause, recording: Recording, evidence: Evidence, roles: Sequence[RoleShare]) -> str:
    """Return the verdict in a few words."""
    if cause is Cause.ACCUMULATION:
        return "LEAK IN A LOOP"
    if cause in _IN_PIECES and _is_free_elsewhere(evidence):
        return "FREE FOR ANOTHER STREAM OR POOL"
    if cause is not Cause.DID_NOT_FAIL:
        return cause.value.replace("_", " ").upper()
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
    """Return the sentence.

    Args:
        cause: why the request failed, if one did.
        recording: the run.
        evidence: its numbers.
        growth: what grows.
        pinning: the blocks without which the request would have succeeded.
        holders: who held memory at the moment that matters, the largest first.
    """
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    if cause in _IN_PIECES and _is_free_elsewhere(evidence):
        return _free_elsewhere(size, evidence) + _empty_first(recording)
    match cause:
        case Cause.FRAGMENTED:
            return (
                f"Memory was fragmented: the request needed {size['needed_segment_bytes']} in one piece, with "
                f"{size['free_bytes']} free on the card and {_cached(evidence)}{_pinned(pinning)}."
            )
        case Cause.PINNED_BY_SPLITS:
            return (
                f"Memory was cached but pinned: one segment alone had enough of it free for the "
                f"{size['needed_segment_bytes']} that were needed, but in pieces of at most "
                f"{size['largest_free_block_bytes']}{_pinned(pinning)}."
            )
        case Cause.TRULY_FULL:
            full = (
                f"Memory was truly full: {size['allocated_bytes']} of {size['room_bytes']} were allocated when "
                f"{size['requested_bytes']} more were asked for"
            )
            if evidence["missing_bytes"]:
                return f"{full}; even with every cached byte, {size['missing_bytes']} are missing."
            return f"{full}; packed without a gap they would just have fitted, with {size['left_bytes']} left."
        case Cause.LEAK:
            assert isinstance(growth, StepGrowth)
            return _grown(growth, evidence)
        case Cause.ACCUMULATION:
            assert isinstance(growth, Accumulation)
            return _accumulated(growth, evidence)
        case Cause.PENDING_FREES:
            return (
                f"Memory was freed but not yet given back: {size['pending_bytes']} wait for other streams that may "
                "still use them (record_stream, NCCL)."
            )
        case Cause.LIMIT:
            return (
                f"A limit, not the card: {text_of_bytes(free_when_refused(evidence))} were free on the card when "
                f"{size['requested_bytes']} were refused; the allocator could not reserve "
                f"{size['limit_bytes']} (per_process_memory_fraction, throw_on_cudamalloc_oom, or the system's)."
            )
        case Cause.ADDRESS_SPACE:
            return (
                f"Address space or a limit, not memory: {text_of_bytes(free_when_refused(evidence))} were free on the "
                f"card when expandable_segments could not map {size['requested_bytes']} more."
            )
        case Cause.BOGUS_SIZE:
            asked = evidence["requested_bytes"]
            told = f"{asked:,} bytes" if asked < _TOLD_BYTES else "2^62 bytes or more"
            return f"The request makes no sense: {told}; look at what computes its size."
        case _:
            return _nothing_failed(recording, evidence, holders)


def _is_free_elsewhere(evidence: Evidence) -> bool:
    """Tell whether a free block that the request could not use was large enough, or other pools had what it lacked."""
    if evidence["largest_free_block_bytes"] >= evidence["needed_segment_bytes"]:
        return True
    usable = evidence["free_bytes"] + evidence["cached_bytes"] - evidence.get("other_pools_cached_bytes", 0)
    return usable < evidence["needed_segment_bytes"]


def _free_elsewhere(size: Mapping[str, str], evidence: Evidence) -> str:
    if evidence["largest_free_block_bytes"] < evidence["needed_segment_bytes"]:
        return (
            f"Memory was cached, but not for this request: it needed {size['needed_segment_bytes']}, with "
            f"{size['free_bytes']} free on the card, and {size['other_pools_cached_bytes']} were cached in other pools "
            "than its own. What a private pool has (a CUDA graph's, torch.cuda.MemPool) serves only requests of that "
            "pool, and while one asks for more nothing that other pools have is given back."
        )
    return (
        f"Memory was cached, but not for this request: it needed {size['needed_segment_bytes']}, and "
        f"{size['largest_free_block_bytes']} were free in one piece on another stream or in another pool. A request is "
        "served from the cache of its own stream and pool."
    )


def went_on(recording: Recording) -> str:
    """Return what is to be said where the program caught the failure and went on."""
    if not recording.is_recorded_failure or recording.failing_op is None:
        return ""
    later = recording.history.action[recording.rebuilt.row_of_op[recording.failing_op] + 1 :]
    more = int(np.count_nonzero(later == Action.ALLOC))
    if not more:
        return ""
    return f" The program caught this and went on: {more:,} more request{'s' if more > 1 else ''} did not fail."


def cure_of(
    cause: Cause, remedies: Sequence[Remedy], evidence: Evidence, growth: StepGrowth | Accumulation | None
) -> str:
    """Return what to do: the line to paste, where a replay proves that a setting lets the request succeed for good."""
    best = next((remedy for remedy in remedies if remedy.setting and remedy.proved and remedy.fits), None)
    left = max(0, evidence["room_bytes"] - (best.peak_reserved_bytes or 0)) if best and "room_bytes" in evidence else 0
    if growth is not None and cause in (Cause.LEAK, Cause.ACCUMULATION) and "requested_bytes" in evidence:
        put_off = f" A setting only delays the failure: {best.setting} {_by(left, growth)}." if best is not None else ""
        return _LET_GO + put_off
    if cause is Cause.DID_NOT_FAIL and "room_bytes" not in evidence:
        return lower_with(remedies, evidence)
    if "requested_bytes" not in evidence:
        return ""
    if best is None:
        done = next((remedy for remedy in remedies if remedy.proved and remedy.fits), None)
        return f"\nNo setting lets it through, but this does: {done.name}." if done is not None else ""
    thin = " The step was not over: a smaller batch is the surer way." if is_full(evidence["room_bytes"], left) else ""
    if isinstance(growth, StepGrowth):
        thin = (
            f" But every step keeps {text_of_bytes(growth.bytes_per_step)} more, mostly "
            f"{allocated_by(growth.line, 'of')}: this only delays the failure, {_by(left, growth)}."
        )
    return (
        f"\n{best.setting} lets it through, with {text_of_bytes(left)} left.{thin} Before the process starts:\n"
        f"  {line_to_paste(best.alloc_conf or best.setting or '')}"
    )


def _empty_first(recording: Recording) -> str:
    if recording.failing_op is None or not recording.pool_of_ops()[recording.failing_op]:
        return ""
    return " torch.cuda.empty_cache() before the capture gives back what is free as whole segments."


def _by(left_bytes: int, growth: StepGrowth | Accumulation) -> str:
    """Return how many more steps or blocks fit into the bytes that are left, in words."""
    each, what = (growth.round_bytes, "block") if isinstance(growth, Accumulation) else (growth.bytes_per_step, "step")
    more = left_bytes // max(1, each)
    return f"by about {more:,} more {what}{'' if more == 1 else 's'}" if more else f"by less than one {what}"


def _grown(growth: StepGrowth, evidence: Evidence) -> str:
    ran_out = ", until memory ran out" if "requested_bytes" in evidence else ""
    kept, most = text_of_bytes(growth.bytes_per_step), text_of_bytes(growth.line_bytes_per_step)
    such = "such blocks" if growth.line.startswith("(") else "blocks of that line"
    part = "most of it" if 2 * growth.line_bytes_per_step > growth.bytes_per_step else "the largest part"
    return (
        f"Memory grows: every step keeps {kept} more, {part} ({most}) {allocated_by(growth.line)}{ran_out}. "
        f"{growth.line_blocks:,} {such} are alive, {text_of_bytes(growth.line_bytes)} of the "
        f"{text_of_bytes(evidence['allocated_bytes'])} allocated."
    )


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
        f", along with {accumulation.other_blocks:,} blocks of other lines ({text_of_bytes(accumulation.other_bytes)})"
        if accumulation.other_blocks
        else ""
    )
    held = text_of_bytes(accumulation.bytes)
    return (
        f"A loop keeps blocks: {accumulation.blocks:,} blocks allocated {placed(accumulation.line)}{called} are still "
        f"alive, {held} of the "
        f"{text_of_bytes(evidence['allocated_bytes'])} allocated. They were allocated{since}{others}."
    )


def free_when_refused(evidence: Evidence) -> int:
    """Return what the driver had free when it refused, in bytes."""
    return evidence["free_bytes"] + evidence.get("refused_bytes", 0)


def _nothing_failed(recording: Recording, evidence: Evidence, holders: Sequence[LineHolder]) -> str:
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    if not evidence["peak_reserved_bytes"]:
        return f"The snapshot is empty: nothing was recorded. {_RECORD}"
    if not len(recording.history):
        return (
            f"Only the state at the end is in it, {size['allocated_bytes']} allocated of {size['reserved_bytes']} "
            f"reserved: no request for memory was recorded, nor whether one failed. {_RECORD}"
        )
    if recording.has_recorded_failure and not recording.capacity_is_given:
        return (
            "A request failed in this recording, and the replay does not show why: there it succeeds. What the file "
            "says contradicts itself, or something in it is not modelled; please report it, with the file if you can."
        )
    if not recording.capacity_is_given:
        return peak_sentence(recording, evidence, holders)
    if evidence["peak_reserved_bytes"] > evidence["room_bytes"]:
        return (
            f"This run does not fit in {size['room_bytes']}: {size['peak_reserved_bytes']} were reserved, most of it "
            "before recording began."
        )
    failed = ", and the request that failed in the recording succeeds" if recording.has_recorded_failure else ""
    return (
        f"This run fits in {size['room_bytes']}, as far as it was recorded: it reserves {size['peak_reserved_bytes']} "
        f"at most{failed}."
    )


def _cached(evidence: Evidence) -> str:
    cached, largest = evidence["cached_bytes"], evidence["largest_free_block_bytes"]
    if not cached or not largest:
        return "nothing cached"
    return f"{text_of_bytes(cached)} cached in pieces of at most {text_of_bytes(largest)}"


def _pinned(blocks: Sequence[HeldBlock]) -> str:
    if not blocks:
        return ""
    lines = Counter(block.line for block in blocks)
    count = f"{len(blocks)} live block{'s' if len(blocks) > 1 else ''}"
    held = text_of_bytes(sum(block.size_bytes for block in blocks))
    where = ", ".join(map(allocated_by, lines))
    return f"; {count} {where} ({held}) {'keep' if len(blocks) > 1 else 'keeps'} it from being used"


def peak_sentence(recording: Recording, evidence: Evidence, holders: Sequence[LineHolder]) -> str:
    """Return what a run that did not fail needed at most, when, and who held it."""
    peak, reserved = evidence["peak_allocated_bytes"], evidence["peak_reserved_bytes"]
    beyond = reserved - peak
    cached = f", {text_of_bytes(beyond)} more than was ever allocated at once" if beyond > 0 else ""
    held = ", ".join(_held(holders, evidence["allocated_bytes"]))
    return (
        f"No request failed. At its fullest, {_when(recording)}, {text_of_bytes(peak)} were allocated"
        f"{': ' + held if held else ''}. At most {text_of_bytes(reserved)} were reserved{cached}."
    )


def _held(holders: Sequence[LineHolder], total_bytes: int) -> Iterator[str]:
    for holder in holders[:_HOLDERS_NAMED]:
        yield f"{text_of_bytes(holder.bytes)} ({100 * holder.bytes / max(1, total_bytes):.0f} %) {placed(holder.line)}"


def _when(recording: Recording) -> str:
    """Say at which moment most was allocated."""
    op = recording.done.peak_allocated_op
    if op < recording.program.setup:
        return "when recording began"
    ends = recording.step_ops()
    if ends:
        step = bisect_left(ends, op) + 1
        return f"in step {step} of {len(ends)}" if step <= len(ends) else f"after step {len(ends)}, the last"
    times = recording.history.time_us
    now = int(times[recording.rebuilt.row_of_op[op]])
    if now >= 0 and times[0] >= 0:
        return f"{text_of_seconds((now - int(times[0])) / 1e6)} after recording began"
    return f"{100 * op / max(1, len(recording.program)):.0f} % into the recording"


def lower_with(remedies: Sequence[Remedy], evidence: Evidence) -> str:
    """Return the setting that would have lowered the reserved peak of a run that did not fail; empty if none does."""
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
