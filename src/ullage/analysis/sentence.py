"""The first sentence of an explanation: the cause in words, with its numbers."""

from collections import Counter
from collections.abc import Sequence

from ullage._units import text_of_bytes
from ullage.analysis.cause import Cause
from ullage.analysis.growth import Growth
from ullage.analysis.recording import Held


def sentence_of(cause: Cause, evidence: dict[str, int], growth: Growth | None, pinning: Sequence[Held]) -> str:
    """Return the sentence; `pinning` are the blocks without which the request would have gone through."""
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    match cause:
        case Cause.FRAGMENTED:
            return (
                f"Memory was fragmented: the request needed {size['needed_segment_bytes']} in one piece, with "
                f"{size['free_bytes']} free on the card and {size['cached_bytes']} cached in pieces of at most "
                f"{size['largest_free_block_bytes']}{_pinned(pinning)}."
            )
        case Cause.TRULY_FULL:
            full = (
                f"Memory was truly full: {size['allocated_bytes']} of {size['room_bytes']} were allocated when "
                f"{size['requested_bytes']} more were asked for"
            )
            if evidence["missing_bytes"]:
                return f"{full}; even with every cached byte, {size['missing_bytes']} are missing."
            return f"{full}; packed without a gap they would just have fitted, and nothing after them."
        case Cause.LEAK:
            assert growth is not None
            ran_out = ", until memory ran out" if "requested_bytes" in evidence else ""
            kept = text_of_bytes(growth.bytes_per_step)
            return f"Memory grows: every step keeps {kept} more, of {growth.line}{ran_out}."
        case Cause.PENDING_FREES:
            return (
                f"Memory was freed but not yet given back: {size['pending_bytes']} wait for other streams that may "
                "still use them (record_stream, NCCL)."
            )
        case Cause.LIMIT:
            return (
                f"A limit, not the card: {text_of_bytes(free_when_refused(evidence))} were free on the card when "
                f"{size['requested_bytes']} were refused; the allocator was held to less than "
                f"{text_of_bytes(evidence['room_bytes'] + 1)} (per_process_memory_fraction, or a limit of the system)."
            )
        case Cause.ADDRESS_SPACE:
            return (
                f"Address space or a limit, not memory: {text_of_bytes(free_when_refused(evidence))} were free on the "
                f"card when expandable_segments could not map {size['requested_bytes']} more."
            )
        case Cause.BOGUS_SIZE:
            asked = evidence["requested_bytes"]
            return f"The request makes no sense: {asked:,} bytes; look at what computes its size."
        case _ if not evidence["peak_reserved_bytes"]:
            return (
                "The snapshot is empty: nothing was recorded. Call torch.cuda.memory._record_memory_history() before "
                "the run, and torch.cuda.memory._dump_snapshot('oom.pickle') where the error is caught."
            )
        case _:
            return (
                f"No request failed in this recording; at its fullest {size['peak_allocated_bytes']} were allocated "
                f"and {size['peak_reserved_bytes']} reserved. Record until the error, or give --capacity to ask "
                "whether it would fit on a smaller card."
            )


def free_when_refused(evidence: dict[str, int]) -> int:
    """Return what the driver had free when it refused, in bytes."""
    return evidence["free_bytes"] + evidence.get("refused_bytes", 0)


def _pinned(blocks: Sequence[Held]) -> str:
    if not blocks:
        return ""
    lines = Counter(block.line for block in blocks)
    count = f"{len(blocks)} live block{'s' if len(blocks) > 1 else ''}"
    held = text_of_bytes(sum(block.size_bytes for block in blocks))
    return f"; {count} from {', '.join(lines)} ({held}) keep it from being used"
