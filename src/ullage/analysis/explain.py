"""Why a recorded run ran out of memory: one cause, the numbers behind it, who held what, and what would have helped."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from ullage._units import GIB, text_of_bytes
from ullage.allocator.replay import Call, Device, State, replay
from ullage.analysis.growth import Growth, growth_of
from ullage.analysis.pinning import Pin, pins_of, smallest_set
from ullage.analysis.recording import Held, Recording
from ullage.analysis.remedy import Remedy, estimates_of, remedies_of
from ullage.history import Action, History
from ullage.rebuild import UNBOUNDED_BYTES, Rebuilt, program_of

SCHEMA: Final = 1
_HOLDERS: Final = 12
_BOGUS: Final = 1 << 44  # 16 TiB: no card has it
_FULL: Final = 0.95
"""From this share of the room on, packed without a gap, memory counts as full: the next request would have failed."""


class Cause(StrEnum):
    """Why a request failed: the whole taxonomy."""

    TRULY_FULL = "truly_full"
    FRAGMENTED = "fragmented"
    LEAK = "leak"
    PENDING_FREES = "pending_frees"
    OTHER_PROCESS = "other_process"
    LIMIT = "limit"
    ADDRESS_SPACE = "address_space"
    BOGUS_SIZE = "bogus_size"
    DISGUISED = "disguised"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A line and what it held at the moment, in bytes after rounding."""

    line: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer; every number in `evidence` in bytes unless its name says otherwise."""

    source: str
    cause: Cause
    sentence: str
    evidence: dict[str, int]
    failing_line: str | None
    holders: tuple[Holder, ...]
    pinning: tuple[Pin, ...]
    pinning_set: tuple[Held, ...]
    """Blocks whose end would have let the request through, each of them needed; proved by replay."""
    growth: Growth | None
    remedies: tuple[Remedy, ...]
    departures: int
    """Operations at which a replay under the run's own settings calls the driver otherwise than was recorded."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with the schema's version first."""
        return {
            "schema": SCHEMA,
            **asdict(self),
            "cause": self.cause.value,
            "pinning": [
                {
                    "segment": pin.address,
                    "size_bytes": pin.size_bytes,
                    "free_bytes": pin.free_bytes,
                    "largest_free_bytes": pin.largest_free_bytes,
                    "blocks": [{"line": block.line, "bytes": block.size_bytes} for block in pin.blocks],
                }
                for pin in self.pinning
            ],
            "pinning_set": [
                {"line": block.line, "bytes": block.size_bytes, "address": block.address} for block in self.pinning_set
            ],
            "remedies": [asdict(remedy) for remedy in self.remedies],
        }


def explain(
    history: History,
    *,
    source: str = "",
    semantics: str = "2.11",
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Explanation:
    """Explain a recorded run.

    Args:
        history: of one device.
        source: what to call it.
        semantics: the allocator's version: "2.11" (and before) or "2.15".
        alloc_conf: the settings in force, where the snapshot does not tell them.
        capacity_bytes: what the allocator could reserve at most, where no request failed.
        progress: called with a short text for every replay.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    progress("rebuilding the run")
    rebuilt = program_of(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    recording = Recording.of(history, rebuilt)
    growth = growth_of(recording)
    evidence = _evidence(recording)
    cause = _cause(recording, evidence, growth)
    pins = tuple(pins_of(recording)) if recording.failing_op is not None else ()
    chosen: tuple[Held, ...] = ()
    if cause is Cause.FRAGMENTED:
        progress("looking for what pins the memory")
        chosen = smallest_set(recording, evidence["needed_segment_bytes"])
    remedies: list[Remedy] = []
    if recording.failing_op is not None or capacity_bytes is not None:
        remedies = remedies_of(recording, progress=progress)
        remedies += estimates_of(recording, evidence.get("missing_bytes", 0))
    return Explanation(
        source=source,
        cause=cause,
        sentence=_sentence(cause, recording, evidence, growth, chosen),
        evidence=evidence,
        failing_line=_failing_line(recording),
        holders=_holders(recording),
        pinning=pins,
        pinning_set=chosen,
        growth=growth,
        remedies=tuple(remedies),
        departures=_departures(rebuilt),
        notes=_notes(recording, rebuilt),
    )


def _evidence(recording: Recording) -> dict[str, int]:
    done, blocks = recording.done, recording.done.blocks
    now = done.now
    found = {
        "allocated_bytes": now.allocated_bytes,
        "reserved_bytes": now.reserved_bytes,
        "cached_bytes": now.reserved_bytes - now.active_bytes,
        "pending_bytes": now.active_bytes - now.allocated_bytes,
        "peak_allocated_bytes": done.peak.allocated_bytes,
        "peak_reserved_bytes": done.peak.reserved_bytes,
        "retries": done.retries,
        "driver_calls": done.driver_calls,
    }
    if recording.rebuilt.room_bytes < UNBOUNDED_BYTES:
        found["room_bytes"] = recording.rebuilt.room_bytes
        found["free_bytes"] = recording.rebuilt.room_bytes - now.reserved_bytes
    if recording.failing_op is None:
        return found
    requested = int(recording.program.size[recording.failing_op])
    free = blocks.size[blocks.state == State.FREE]
    found["requested_bytes"] = requested
    found["needed_segment_bytes"] = _segment_bytes(requested, recording.rebuilt.settings.large_segment_bytes)
    found["largest_free_block_bytes"] = int(free.max()) if len(free) else 0
    found["missing_bytes"] = max(0, found["needed_segment_bytes"] - found["free_bytes"] - found["cached_bytes"])
    return found


def _segment_bytes(requested: int, large: int) -> int:
    """What the driver is asked for (get_allocation_size, torch 2.11 and 2.15)."""
    rounded = max(512, -(-requested // 512) * 512)
    if rounded <= 1 << 20:
        return 2 << 20
    return large if rounded < 10 << 20 else -(-rounded // (2 << 20)) * (2 << 20)


def _cause(recording: Recording, evidence: dict[str, int], growth: Growth | None) -> Cause:
    if recording.failing_op is None:
        return Cause.LEAK if growth else Cause.CANNOT_TELL
    needed, free = evidence["needed_segment_bytes"], evidence["free_bytes"]
    if evidence["requested_bytes"] > _BOGUS or evidence["requested_bytes"] < 0:
        return Cause.BOGUS_SIZE
    if evidence["pending_bytes"] and free + evidence["cached_bytes"] < needed <= (
        free + evidence["cached_bytes"] + evidence["pending_bytes"]
    ):
        return Cause.PENDING_FREES
    if free >= needed:
        expandable = recording.rebuilt.settings.expandable_segments
        return Cause.ADDRESS_SPACE if expandable else Cause.LIMIT
    packed = evidence["allocated_bytes"] + evidence["pending_bytes"] + needed
    if free + evidence["cached_bytes"] >= needed and packed <= _FULL * evidence["room_bytes"]:
        return Cause.FRAGMENTED
    if growth and growth.bytes_per_step * growth.steps * 4 >= evidence["allocated_bytes"]:
        return Cause.LEAK
    return Cause.TRULY_FULL


def _sentence(
    cause: Cause, recording: Recording, evidence: dict[str, int], growth: Growth | None, chosen: tuple[Held, ...]
) -> str:
    size = {name: text_of_bytes(value) for name, value in evidence.items()}
    grows = f"every step keeps {text_of_bytes(growth.bytes_per_step)} more, of {growth.line}" if growth else ""
    match cause:
        case Cause.FRAGMENTED:
            lines = Counter(block.line for block in chosen)
            pinned = (
                f"; {len(chosen)} live block{'s' if len(chosen) > 1 else ''} from {', '.join(lines)} "
                f"({text_of_bytes(sum(block.size_bytes for block in chosen))}) keep it from being used"
                if chosen
                else ""
            )
            return (
                f"Memory was fragmented: the request needed {size['needed_segment_bytes']} in one piece, with "
                f"{size['free_bytes']} free on the card and {size['cached_bytes']} cached in pieces of at most "
                f"{size['largest_free_block_bytes']}{pinned}."
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
            ran_out = ", until memory ran out" if recording.failing_op is not None else ""
            return f"Memory grows: {grows}{ran_out}."
        case Cause.PENDING_FREES:
            return (
                f"Memory was freed but not yet given back: {size['pending_bytes']} wait for other streams that may "
                "still use them (record_stream, NCCL)."
            )
        case Cause.LIMIT:
            return (
                f"A limit, not the card: {size['free_bytes']} were free on the card when {size['requested_bytes']} "
                "were refused (per_process_memory_fraction, or a limit of the system)."
            )
        case Cause.ADDRESS_SPACE:
            return f"Address space ran out, not memory: {size['free_bytes']} were free on the card."
        case Cause.BOGUS_SIZE:
            asked = evidence["requested_bytes"]
            return f"The request makes no sense: {asked:,} bytes; look at what computes its size."
        case _:
            return (
                f"No request failed in this recording; at its fullest {size['peak_allocated_bytes']} were allocated "
                f"and {size['peak_reserved_bytes']} reserved. Record until the error, or give --capacity to ask "
                "whether it would fit on a smaller card."
            )


def _failing_line(recording: Recording) -> str | None:
    if recording.failing_op is None:
        return None
    return recording.line_of(int(recording.program.key[recording.failing_op]))


def _holders(recording: Recording) -> tuple[Holder, ...]:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in recording.held():
        sizes[block.line] += block.size_bytes
        counts[block.line] += 1
    return tuple(Holder(line=line, bytes=size, blocks=counts[line]) for line, size in sizes.most_common(_HOLDERS))


def _departures(rebuilt: Rebuilt) -> int:
    """Operations at which the replay takes or gives back other segments than were recorded."""
    ours: dict[int, list[tuple[str, int]]] = {}
    for op, what, size in _calls_of(rebuilt):
        ours.setdefault(op, []).append((what, size))
    ops = ours.keys() | rebuilt.recorded_calls.keys()
    return sum(tuple(ours.get(op, ())) != rebuilt.recorded_calls.get(op, ()) for op in ops)


def _calls_of(rebuilt: Rebuilt) -> list[tuple[int, str, int]]:
    """What the program takes from the driver and gives back under its own settings: (operation, what, bytes)."""
    done = replay(rebuilt.program, rebuilt.settings, Device(total_bytes=rebuilt.room_bytes), calls=True)
    assert done.calls is not None
    names = {Call.MALLOC: "take", Call.MAP: "take", Call.FREE: "give", Call.UNMAP: "give"}
    kinds = done.calls.call
    wanted = np.isin(kinds, list(names))
    columns = (done.calls.op, kinds, done.calls.size * np.maximum(done.calls.count, 1))
    rows = zip(*(column[wanted].tolist() for column in columns), strict=True)
    return [(op, names[Call(kind)], size) for op, kind, size in rows]


def _notes(recording: Recording, rebuilt: Rebuilt) -> tuple[str, ...]:
    notes = list(rebuilt.notes)
    if not rebuilt.is_whole:
        notes.append("recording began in the middle: what was alive then is there from the start, at its place")
    if not len(recording.history):
        notes.append(
            "there is no trace, only the state at the end: call torch.cuda.memory._record_memory_history() first"
        )
    failures = int(np.count_nonzero(recording.history.action == Action.OOM))
    if failures > 1:
        notes.append(f"{failures} requests failed; this is about the last one")
    if recording.failing_op is not None and failures:
        notes.append("what a replay proves holds up to and including the request that failed")
    elif recording.failing_op is not None:
        notes.append("the run itself went on; the request fails in a replay with the capacity that was given")
    if rebuilt.room_bytes == UNBOUNDED_BYTES and recording.done.peak.reserved_bytes > 100 * GIB:
        notes.append("the run reserved more than most cards have")
    return tuple(notes)
