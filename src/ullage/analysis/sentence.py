"""The headline and the first sentence of an explanation: the cause in words, with its numbers."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ullage._units import text_of_bytes
from ullage.analysis.cause import Cause, Evidence, is_full
from ullage.analysis.growth import Growth
from ullage.analysis.pile import Pile
from ullage.analysis.recording import Held, Recording
from ullage.analysis.remedy import Remedy

_RECORD: Final = (
    "Call torch.cuda.memory._record_memory_history() before the run, and "
    "torch.cuda.memory._dump_snapshot('oom.pickle') where the error is caught."
)


def headline_of(cause: Cause, recording: Recording, evidence: Evidence) -> str:
    """Return the verdict in a word or two."""
    if cause is Cause.PILE:
        return "PILES UP"
    if cause is not Cause.CANNOT_TELL:
        return cause.value.replace("_", " ").upper()
    if not len(recording.history):
        return "CANNOT TELL"
    if not recording.capacity_is_given:
        return "NOTHING FAILED"
    return "FITS" if evidence["peak_reserved_bytes"] <= evidence["room_bytes"] else "DOES NOT FIT"


def sentence_of(
    cause: Cause, recording: Recording, evidence: Evidence, growth: Growth | Pile | None, pinning: Sequence[Held]
) -> str:
    """Return the sentence; `pinning` are the blocks without which the request would have gone through."""
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    match cause:
        case Cause.FRAGMENTED:
            return (
                f"Memory was fragmented: the request needed {size['needed_segment_bytes']} in one piece, with "
                f"{size['free_bytes']} free on the card and {size['cached_bytes']} cached in pieces of at most "
                f"{size['largest_free_block_bytes']}{_pinned(pinning)}."
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
            assert isinstance(growth, Growth)
            ran_out = ", until memory ran out" if "requested_bytes" in evidence else ""
            kept, most = text_of_bytes(growth.bytes_per_step), text_of_bytes(growth.line_bytes_per_step)
            part = "most of it" if 2 * growth.line_bytes_per_step > growth.bytes_per_step else "the largest part"
            alive = (
                f" Of that line {growth.line_blocks:,} blocks are alive, {text_of_bytes(growth.line_bytes)} of the "
                f"{size['allocated_bytes']} allocated."
            )
            return f"Memory grows: every step keeps {kept} more, {part} ({most}) from {growth.line}{ran_out}.{alive}"
        case Cause.PILE:
            assert isinstance(growth, Pile)
            return _piled_up(growth, evidence)
        case Cause.PENDING_FREES:
            return (
                f"Memory was freed but not yet given back: {size['pending_bytes']} wait for other streams that may "
                "still use them (record_stream, NCCL)."
            )
        case Cause.LIMIT:
            return (
                f"A limit, not the card: {text_of_bytes(free_when_refused(evidence))} were free on the card when "
                f"{size['requested_bytes']} were refused; the allocator may not reserve more than "
                f"{size['limit_bytes']} (per_process_memory_fraction, throw_on_cudamalloc_oom, or the system's)."
            )
        case Cause.ADDRESS_SPACE:
            return (
                f"Address space or a limit, not memory: {text_of_bytes(free_when_refused(evidence))} were free on the "
                f"card when expandable_segments could not map {size['requested_bytes']} more."
            )
        case Cause.BOGUS_SIZE:
            asked = evidence["requested_bytes"]
            return f"The request makes no sense: {asked:,} bytes; look at what computes its size."
        case _:
            return _nothing_failed(recording, evidence)


def cure_of(cause: Cause, remedies: Sequence[Remedy], evidence: Evidence, growth: Growth | Pile | None) -> str:
    """Return what to do: the line to paste, where a setting is proved to let the request through for good."""
    best = next((remedy for remedy in remedies if remedy.setting and remedy.proved and remedy.fits), None)
    left = max(0, evidence["room_bytes"] - (best.peak_reserved_bytes or 0)) if best and "room_bytes" in evidence else 0
    if growth is not None and cause in (Cause.LEAK, Cause.PILE) and "requested_bytes" in evidence:
        return _LET_GO + (_put_off(best, left, growth) if best is not None else "")
    if "requested_bytes" not in evidence:
        return ""
    if best is None:
        done = next((remedy for remedy in remedies if remedy.proved and remedy.fits), None)
        return f"\nNo setting lets it through; this does: {done.name}." if done is not None else ""
    thin = " The step was not over: a smaller batch is the surer way." if is_full(evidence["room_bytes"], left) else ""
    if isinstance(growth, Growth):
        thin = (
            f" But every step keeps {text_of_bytes(growth.bytes_per_step)} more, mostly of {growth.line}: this "
            f"only puts the end off, {_by(left, growth)}."
        )
    return (
        f"\n{best.setting} lets it through, with {text_of_bytes(left)} left.{thin} Before the process starts:\n"
        f"  export PYTORCH_ALLOC_CONF={best.setting}"
    )


_LET_GO: Final = (
    "\nLet go of them: evaluate under torch.no_grad(), keep a loss as .item() and an output as .detach().cpu(), "
    "empty the list or cache that holds them; where the loop trains, call backward() more often."
)


def _put_off(setting: Remedy, left_bytes: int, growth: Growth | Pile) -> str:
    return f" A setting only puts the end off: {setting.setting} {_by(left_bytes, growth)}."


def _by(left_bytes: int, growth: Growth | Pile) -> str:
    """For how much longer there is room, where so much is left."""
    each, what = (growth.round_bytes, "block") if isinstance(growth, Pile) else (growth.bytes_per_step, "step")
    more = left_bytes // max(1, each)
    return f"by about {more:,} more {what}{'' if more == 1 else 's'}" if more else f"by less than one {what} more"


def _piled_up(pile: Pile, evidence: Evidence) -> str:
    called = f", called at {pile.called_at}" if pile.called_at != pile.line else ""
    if pile.is_older:
        since = "since before recording began"
    else:
        since = f"in the last {_duration(pile.seconds)}" if pile.seconds is not None else "one after the other"
    others = (
        f", and {pile.other_blocks:,} of other lines with them ({text_of_bytes(pile.other_bytes)})"
        if pile.other_blocks
        else ""
    )
    return (
        f"Blocks pile up: {pile.blocks:,} of {pile.line}{called} are alive, {text_of_bytes(pile.bytes)} of the "
        f"{text_of_bytes(evidence['allocated_bytes'])} allocated; made {since}{others}, and kept."
    )


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def free_when_refused(evidence: Evidence) -> int:
    """Return what the driver had free when it refused, in bytes."""
    return evidence["free_bytes"] + evidence.get("refused_bytes", 0)


def _nothing_failed(recording: Recording, evidence: Evidence) -> str:
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    if not evidence["peak_reserved_bytes"]:
        return f"The snapshot is empty: nothing was recorded. {_RECORD}"
    if not len(recording.history):
        return (
            f"Only the state was recorded, {size['allocated_bytes']} allocated of {size['reserved_bytes']} reserved, "
            f"and not what led to it: whether a request failed is not in it. {_RECORD}"
        )
    if not recording.capacity_is_given:
        return (
            f"No request failed in this recording; at its fullest {size['peak_allocated_bytes']} were allocated "
            f"and {size['peak_reserved_bytes']} reserved. Record until the error, or give --capacity to ask "
            "whether it would fit on a smaller card."
        )
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


def _pinned(blocks: Sequence[Held]) -> str:
    if not blocks:
        return ""
    lines = Counter(block.line for block in blocks)
    count = f"{len(blocks)} live block{'s' if len(blocks) > 1 else ''}"
    held = text_of_bytes(sum(block.size_bytes for block in blocks))
    return f"; {count} from {', '.join(lines)} ({held}) {'keep' if len(blocks) > 1 else 'keeps'} it from being used"
