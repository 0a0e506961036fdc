"""What a snapshot itself says of its peaks, read without any of ullage's code: the judge of `run.py`.

A snapshot has the state at its end and the events before it, and no figure of a peak. The state at the beginning is
the end with every event undone; from there the events are done again. An event has the bytes that were asked for, not
those that the block got; what it got follows from the hole in which it lies. A block of before the recording, freed
during it, may have had up to a mebibyte more than is known of it: the peak is then known between two figures.
"""

import pickle
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_STEP_BYTES: Final = 512
_SMALL_BYTES: Final = 1 << 20
"""Requests up to here lie in small segments; in a large one, a rest up to here is not split off."""
_ACTIVE: Final = ("active_allocated", "active_pending_free", "active_awaiting_free")


class _Plain(pickle.Unpickler):
    """An unpickler of numbers, texts, lists and dictionaries: whatever has to be imported is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the file names {module}.{name}: it is no plain data")


def read(path: Path) -> dict[str, Any]:
    """Return a snapshot as plain data; of 2022 it is the list of segments alone."""
    with path.open("rb") as file:
        found = _Plain(file).load()
    return {"segments": found, "device_traces": []} if isinstance(found, list) else found


@dataclass(kw_only=True)
class RawCard:
    """What one card of a snapshot had; sizes in bytes."""

    events: int
    allocated_bytes: int
    """At the end, without what was freed and is waited for."""
    reserved_bytes: int
    """At the end."""
    peak_reserved_bytes: int
    least_peak_bytes: int
    """The peak of what was allocated is at least this..."""
    most_peak_bytes: int
    """...and at most this."""
    failed_bytes: tuple[int, ...]
    """The sizes of the requests that failed."""

    @property
    def is_used(self) -> bool:
        """Whether the card had memory at any time."""
        return bool(self.peak_reserved_bytes or self.failed_bytes)


def cards_of(snapshot: Mapping[str, Any]) -> dict[int, RawCard]:
    """Return what a snapshot says of each of its cards."""
    traces = snapshot.get("device_traces") or []
    segments: dict[int, list[dict[str, Any]]] = {device: [] for device in range(len(traces))}
    for segment in snapshot["segments"]:
        segments.setdefault(segment.get("device", 0), []).append(segment)
    settings = snapshot.get("allocator_settings") or {}
    return {
        device: _card_of(some, traces[device] if device < len(traces) else [], settings)
        for device, some in sorted(segments.items())
    }


def _card_of(segments: list[dict[str, Any]], trace: list[dict[str, Any]], settings: Mapping[str, Any]) -> RawCard:
    card = _Card(is_expandable=any(segment.get("is_expandable") for segment in segments))
    card.is_expandable |= any(entry["action"].startswith("segment_map") for entry in trace)
    card.most_split = settings.get("max_split_size", -1)
    for segment in segments:
        at = segment["address"]
        card.map(at, segment["total_size"])
        for block in segment["blocks"]:
            at = block.get("address", at)
            if block["state"] in _ACTIVE:
                card.put(at, block["size"], waits=block["state"] != _ACTIVE[0])
            at += block["size"]
    ended = (card.allocated, card.reserved)
    card.undo(trace)
    card.peak_reserved, card.peak = card.reserved, (card.allocated, card.allocated + card.doubtful)
    for entry in trace:
        card.do(entry)
    return RawCard(
        events=len(trace),
        allocated_bytes=ended[0],
        reserved_bytes=ended[1],
        peak_reserved_bytes=card.peak_reserved,
        least_peak_bytes=card.peak[0],
        most_peak_bytes=card.peak[1],
        failed_bytes=tuple(entry["size"] for entry in trace if entry["action"] == "oom"),
    )


@dataclass(kw_only=True)
class _Card:
    """The blocks and segments of a card at one moment."""

    is_expandable: bool
    most_split: int = -1
    reserved: int = 0
    allocated: int = 0
    doubtful: int = 0
    """Bytes that blocks of before may have beyond what is known of them."""
    peak_reserved: int = 0
    peak: tuple[int, int] = (0, 0)
    starts: list[int] = field(default_factory=list)
    """The addresses of blocks that are not free, in order."""
    sizes: dict[int, int] = field(default_factory=dict)
    rests: dict[int, int] = field(default_factory=dict)
    """How much larger a block may be."""
    waiting: set[int] = field(default_factory=set)
    """Freed, and not free yet: another stream may use them."""
    edges: dict[int, int] = field(default_factory=dict)
    """Where mapped ranges begin, and their lengths."""

    def map(self, address: int, size: int) -> None:
        self.edges[address] = self.edges.get(address, 0) + size
        self.reserved += size

    def unmap(self, address: int, size: int) -> None:
        """Take a range away: the whole of one, or a part of several that touch."""
        self.reserved -= size
        end = address + size
        touched = [(at, long) for at, long in self.edges.items() if at < end and address < at + long]
        for at, long in touched:
            del self.edges[at]
            if at < address:
                self.edges[at] = address - at
            if at + long > end:
                self.edges[end] = at + long - end

    def put(self, address: int, size: int, *, waits: bool = False) -> None:
        if address not in self.sizes:
            insort(self.starts, address)
        self.sizes[address] = size
        if waits:
            self.waiting.add(address)
        else:
            self.allocated += size

    def take(self, address: int) -> None:
        """Make a block free that was there."""
        size = self.sizes.pop(address)
        del self.starts[bisect_left(self.starts, address)]
        if address in self.waiting:
            self.waiting.discard(address)
        else:
            self.allocated -= size

    def _wait(self, address: int) -> None:
        if address in self.sizes and address not in self.waiting:
            self.waiting.add(address)
            self.allocated -= self.sizes[address]
            self.doubtful -= self.rests.pop(address, 0)

    def _hole(self, address: int) -> int:
        """The bytes from an address to the next block, or to the end of what is mapped there."""
        end = next((at + long for at, long in self._ranges() if at <= address < at + long), address)
        at = bisect_right(self.starts, address)
        return min([end, *self.starts[at : at + 1]]) - address

    def _ranges(self) -> Iterable[tuple[int, int]]:
        if not self.is_expandable:
            return self.edges.items()
        joined: list[tuple[int, int]] = []
        for at, long in sorted(self.edges.items()):
            if joined and sum(joined[-1]) == at:
                joined[-1] = (joined[-1][0], joined[-1][1] + long)
            else:
                joined.append((at, long))
        return joined

    def undo(self, trace: list[dict[str, Any]]) -> None:
        """Go back to the beginning of the trace."""
        unknown = set()  # blocks whose size is that of their free alone
        for entry in reversed(trace):
            action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
            if action == "alloc" and address in self.sizes:
                self.take(address)
                unknown.discard(address)
            elif action == "free_completed":
                self.put(address, _rounded(size), waits=True)
                unknown.add(address)
            elif action == "free_requested" and address in self.waiting:
                self.waiting.discard(address)
                self.allocated += self.sizes[address]
            elif action in ("segment_alloc", "segment_map"):
                self.unmap(address, size)
            elif action in ("segment_free", "segment_unmap"):
                self.map(address, size)
        if not self.is_expandable:
            holes = {at: self._hole(at) - self.sizes[at] for at in unknown if self.sizes[at] > _SMALL_BYTES}
            self.rests = {at: min(_SMALL_BYTES, rest) for at, rest in holes.items() if rest > 0}
        self.doubtful = sum(self.rests.values())

    def do(self, entry: Mapping[str, Any]) -> None:
        """Do what an event tells."""
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        match action:
            case "alloc":
                self.put(address, self._given(address, size))
            case "free_requested":
                self._wait(address)
            case "free_completed" if address in self.sizes:
                self._wait(address)
                self.take(address)
            case "segment_alloc" | "segment_map":
                self.map(address, size)
            case "segment_free" | "segment_unmap":
                self.unmap(address, size)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        least, most = self.peak
        self.peak = max(least, self.allocated), max(most, self.allocated + self.doubtful)

    def _given(self, address: int, requested: int) -> int:
        """What a request for so many bytes got: with the rest of its hole, where that is too small to be split off."""
        size = _rounded(requested)
        hole = self._hole(address)
        if hole <= size:
            return size
        rest = hole - size
        if self.is_expandable or size <= _SMALL_BYTES:
            return size if rest >= _STEP_BYTES else hole
        is_split = rest > _SMALL_BYTES and not 0 < self.most_split <= size
        return size if is_split else hole


def _rounded(size: int) -> int:
    return max(_STEP_BYTES, -(-size // _STEP_BYTES) * _STEP_BYTES)
