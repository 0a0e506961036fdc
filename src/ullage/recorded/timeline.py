"""Reads the memory timeline that PyTorch's profiler exports: the bytes of each category of memory over time.

`torch.profiler.profile.export_memory_timeline(path, device=...)` writes one of these forms (torch 2.1 to 2.15,
torch/profiler/_memory_profiler.py: `MemoryProfileTimeline`), as a .json file or compressed as .json.gz:

* `[times, sizes]`: the times in microseconds, and for each time the bytes of nine columns. The first is always 0, the
  others are categories in the order of `_CATEGORY_TO_INDEX`.
* From a path that ends in .raw.json.gz, a list of events: the time in nanoseconds, or -1 for memory that existed
  before; the action; the change in bytes; the index of the category.

The form .html contains a picture instead of figures.
"""

import json
import re
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from ullage.base.foreign_files import is_far_larger_in_memory
from ullage.recorded.program import Column

CATEGORIES: Final = (
    *("parameters", "optimizer state", "inputs", "temporary", "activations", "gradients", "autograd detail"),
    "unknown",
)
"""The categories of a timeline, in the order in which PyTorch numbers them."""
_BEGINNING: Final = re.compile(rb"\s{0,40}\[\s{0,40}\[\s{0,40}(?:-?\d{1,20}\s{0,40}[,\]]|\]\s{0,40},\s{0,40}\[)")
_MOST_BYTES: Final = 1 << 50
_EVENT_FIELDS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """The memory of one device over time, by category. The file does not say which device it is."""

    time_us: Column
    """The time of each row in microseconds, counted from the first one."""
    size_bytes: Column
    """The bytes at each time (rows) of each category (columns, in the order of `CATEGORIES`)."""

    @property
    def total_bytes(self) -> Column:
        """The bytes of all categories at each time."""
        return np.asarray(self.size_bytes.sum(axis=1), np.int64)

    @property
    def peak(self) -> int:
        """The index of the first row with the most bytes."""
        return int(self.total_bytes.argmax())


def is_timeline(beginning: bytes) -> bool:
    """Return whether a file begins like a memory timeline that PyTorch's profiler exports as JSON."""
    return _BEGINNING.match(beginning) is not None


def timeline_of(content: bytes) -> MemoryTimeline:
    """Return the timeline in a JSON file.

    Raises:
        ValueError: the content is damaged, is not a timeline, or has no events. The text says what is wrong.
    """
    if is_far_larger_in_memory(content):
        raise ValueError("it would take many times its own size in memory, which is not the case for a timeline")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("its JSON is damaged or incomplete") from None
    if not isinstance(found, list) or not any(found):
        raise ValueError("it has no events: export it for the device that the program used (device=)")
    try:
        is_of_levels = len(found) == 2 and all(isinstance(row, list) for row in found[1])
        times, sizes = _levels(*found) if is_of_levels else _of_events(found)
    except (TypeError, IndexError, OverflowError):
        raise ValueError("its structure differs from that of the profiler's timelines") from None
    totals = sizes.sum(axis=1)
    if (sizes < 0).any() or not 0 < totals.max(initial=0) < _MOST_BYTES:
        raise ValueError("its sizes are impossible")
    known = times[times >= 0]
    first = int(known.min()) if len(known) else 0
    return MemoryTimeline(time_us=np.maximum(times - first, 0), size_bytes=sizes)


def _levels(times: list[Any], rows: list[list[Any]]) -> tuple[Column, Column]:
    if len(times) != len(rows):
        raise ValueError("it has not as many times as sizes")
    _check_numbers(chain(times, *rows))
    if len({len(row) for row in rows}) != 1:
        raise ValueError("its times do not all have the same categories")
    sizes = np.array(rows, np.int64)
    if (sizes < 0).any():
        raise ValueError("its sizes are impossible")
    if sizes.shape[1] == len(CATEGORIES) + 1:
        return np.array(times, np.int64), sizes[:, 1:]
    # Another version of the profiler may have other categories, whose names the file does not contain.
    unknown = np.zeros((len(sizes), len(CATEGORIES)), np.int64)
    unknown[:, CATEGORIES.index("unknown")] = sizes.sum(axis=1)
    return np.array(times, np.int64), unknown


def _of_events(events: list[Any]) -> tuple[Column, Column]:
    if any(not isinstance(event, list) or len(event) != _EVENT_FIELDS for event in events):
        raise ValueError("its structure differs from that of the profiler's timelines")
    _check_numbers(chain(*events))
    rows = np.array(events, np.int64)
    category = rows[:, 3]
    if ((category < 0) | (category >= len(CATEGORIES)) | (abs(rows[:, 2]) > _MOST_BYTES)).any():
        raise ValueError("its events have impossible sizes or categories")
    change = np.zeros((len(rows), len(CATEGORIES)), np.int64)
    change[np.arange(len(rows)), category] = rows[:, 2]
    return np.where(rows[:, 0] < 0, -1, rows[:, 0] // 1000), np.cumsum(change, axis=0)


def _check_numbers(values: "chain[Any]") -> None:
    if any(type(value) is not int for value in values):
        raise ValueError("it contains something other than whole numbers")
