"""Where the driver placed segments: how often the rules foretell the address, with what the process has mapped.

Each segment is foretold with all earlier segments at their real addresses, as benchmarks/placement.py does. The rule of
Linux alone does not know the process's own mappings; here they are added: every 32 MiB of address space that a mapping
touches is taken.
"""

import gzip
import io
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .figure import Figure, recorded

CHUNK_BYTES = 32 << 20
MOST_BYTES = 64 << 20
"""A snapshot that is larger when it is unpacked is not one of ours."""
LARGEST_CHUNKS = 1 << 12
"""A mapping of 128 GiB or more is an arena that a library has reserved, in which there may be room."""
MOST_MAPPINGS = 20_000
USER_SPACE_END = 1 << 47
Taken = list[tuple[int, int]]


def placement_figures(snapshot: bytes, before: Sequence[Any], after: Sequence[Any]) -> list[Figure]:
    """Count the segments that PyTorch got from the driver, and those whose address each variant of the rule foretells.

    Args:
        snapshot: PyTorch's snapshot, compressed with gzip.
        before: mappings before the workload: start, end, permissions, file.
        after: those at its end; what is in both was there all the time.
    """
    address, size, is_new = _events(snapshot)
    placed = int(is_new.sum())
    if max(len(before), len(after)) > MOST_MAPPINGS:
        raise ValueError(f"more than {MOST_MAPPINGS:,} mappings of a process")
    if not placed:  # with expandable segments the driver maps, and places nothing
        return []
    variants = {
        "no mappings": [],
        "mappings before": before,
        "mappings before and after": _in_both(before, after),
    }
    figures = [recorded("segments placed", "placement", placed)]
    for name, mappings in variants.items():
        hits = _hits(address, size, is_new, _taken(mappings, address, size))
        figures.append(recorded(f"foretold with {name}", "placement", f"{hits} of {placed}"))
    return figures


def _events(snapshot: bytes) -> tuple[Any, Any, Any]:
    from benchmarks.placement import events_of
    from ullage.recorded.snapshot.snapshot import load_snapshot

    with gzip.GzipFile(fileobj=io.BytesIO(snapshot)) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"a snapshot of more than {MOST_BYTES >> 20} MiB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        path.write_bytes(data)
        (history,) = load_snapshot(path).devices.values()
    _, address, size, is_new = events_of(history)
    return address, size, is_new


def _in_both(before: Iterable[Any], after: Iterable[Any]) -> list[Any]:
    there = {(one[0], one[1]) for one in after}
    return [one for one in before if (one[0], one[1]) in there]


def _taken(mappings: Iterable[Any], address: Any, size: Any) -> Taken:
    """Merge the chunks that mappings touch, without those in which the driver has put a segment: its own arena."""
    chunks = sorted({
        chunk
        for low, high, *_ in mappings
        for chunk in _chunks(low, high)
    })  # fmt: skip
    own = {int(place) // CHUNK_BYTES for place, n_bytes in zip(address, size, strict=True) if n_bytes > 0}
    merged: Taken = []
    for chunk in chunks:
        if chunk in own:
            continue
        if merged and merged[-1][1] == chunk:
            merged[-1] = (merged[-1][0], chunk + 1)
        else:
            merged.append((chunk, chunk + 1))
    return [(low * CHUNK_BYTES, high * CHUNK_BYTES) for low, high in merged]


def _chunks(low: int, high: int) -> Iterable[int]:
    """Return the chunks that a mapping touches."""
    first, last = low // CHUNK_BYTES, (high - 1) // CHUNK_BYTES
    return range(first, last + 1) if last - first < LARGEST_CHUNKS and high <= USER_SPACE_END else ()


def _hits(address: Any, size: Any, is_new: Any, taken: Taken) -> int:
    from ullage.recorded.allocator.placement import foretell

    low = np.array([low for low, _ in taken], np.int64)
    n_bytes = np.array([high - low for low, high in taken], np.int64)
    everything = np.concatenate([low, address])
    foretold = foretell(
        everything,
        np.concatenate([n_bytes, size]),
        np.concatenate([np.zeros(len(low), np.int64), is_new]),
        "linux",
    )
    return int((foretold == everything)[len(low) :][is_new > 0].sum())
