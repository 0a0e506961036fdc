"""What in a snapshot cannot be true, found from its plain values alone: the product has another way to look for it."""

import gzip
import pickle
import zlib
from itertools import pairwise
from typing import Any

_ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")


def contradiction_in(data: bytes) -> str | None:
    """Return a contradiction of a snapshot that this package has changed itself, or None.

    Only what no allocator can do counts: sizes of nothing, blocks that do not fill their segment, segments that
    overlap, a block that is allocated where one is, or freed twice.
    """
    try:
        whole = pickle.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        # Of several cards one is explained, which may be another than the one whose recording cannot be.
        recorded = [trace for trace in whole["device_traces"] if trace]
        return _of_segments(whole["segments"]) or (_of_trace(recorded[0]) if len(recorded) == 1 else None)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OSError, EOFError, zlib.error):
        return None  # of another shape: whether it is refused is judged elsewhere


def _of_segments(segments: list[dict[str, Any]]) -> str | None:
    for segment in segments:
        blocks, total = segment["blocks"], segment["total_size"]
        if total <= 0 or any(block["size"] <= 0 for block in blocks):
            return "a segment or a block of nothing"
        if blocks and sum(block["size"] for block in blocks) != total:
            return "blocks that do not fill their segment"
        if any(block["state"] in _ACTIVE and block["requested_size"] > block["size"] for block in blocks):
            return "a block that is smaller than what it was asked for"
    for device in {segment["device"] for segment in segments}:
        places = sorted((one["address"], one["total_size"]) for one in segments if one["device"] == device)
        if any(start + size > other for (start, size), (other, _) in pairwise(places)):
            return "segments that overlap"
    return None


def _of_trace(entries: list[dict[str, Any]]) -> str | None:
    alive: dict[int, int] = {}
    freed: set[int] = set()
    for entry in entries:
        action = entry["action"]
        if action in ("alloc", "segment_alloc", "segment_map") and entry["size"] <= 0:
            return f"{action} of {entry['size']} bytes"
        if action == "alloc":
            if entry["addr"] in alive:
                return "a block that is allocated twice"
            alive[entry["addr"]] = entry["size"]
            freed.discard(entry["addr"])
        elif action in ("free", "free_completed"):
            if entry["addr"] in freed:
                return "a block that is freed twice"
            alive.pop(entry["addr"], None)
            freed.add(entry["addr"])
    return None
