"""Shows how much memory each label held. A label is a name that the program gave to memory while it was recorded.

Three functions of PyTorch record labels. `torch.cuda.memory._annotate_tensor(tensor, text)` labels one tensor (torch
2.14). `torch.cuda.memory._set_memory_metadata(text)` labels all later allocations of the thread; since torch 2.15, it
also takes a dictionary, which is recorded as JSON. A range of `torch.profiler.record_function(name)`, and the step of
an optimizer, label the allocations during that time. If a block has several labels, the first of these kinds counts.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.base.source_location import shortened
from ullage.explaining.analysis.recording import Recording
from ullage.recorded.history import Action, History

_NUMBER: Final = re.compile(r"#\d{1,20}\Z")  # For example "ProfilerStep#12", whose number differs in every step.
# Ranges that PyTorch itself records, in every run with a profiler.
_OF_PYTORCH: Final = re.compile(r"Optimizer\.\w+#|ProfilerStep")
_MOST_JSON: Final = 10_000
UNNAMED: Final = "(no annotation)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelHolder:
    """A label and the memory that it held when the allocation failed, or at the memory peak. Sizes are in bytes."""

    label: str
    bytes: int
    blocks: int


class RecordedLabels:
    """The labels that a program gave to its memory."""

    def __init__(self, history: History) -> None:
        self._metadata, self._times = history.labels.metadata, history.time_us
        self._texts = [_shown(text) for text in history.labels.texts]
        self._begins, self._names = _ranges(history)
        self._notes = _notes(history)

    @property
    def are_any(self) -> bool:
        """Whether the recording has any label."""
        return bool(self._texts or self._names)

    def of_block(self, row: int, address: int) -> str:
        """Return the label of a block, or `UNNAMED`.

        Args:
            row: the index of the trace entry that allocated the block; -1 if the block is older than the recording.
            address: the recorded address of the block.
        """
        noted = self._notes.get((address, row), -1)
        if noted >= 0:
            return self._texts[noted]
        if row < 0:
            return UNNAMED
        if len(self._metadata) and self._metadata[row] >= 0:
            return self._texts[int(self._metadata[row])]
        at = bisect_right(self._begins, int(self._times[row])) - 1
        return self._names[at] if at >= 0 and self._times[row] >= 0 else UNNAMED


def label_holders(recording: Recording) -> tuple[LabelHolder, ...]:
    """Return the labels that held memory when the allocation failed, or at the memory peak. The largest comes first.

    The result is empty if the program gave none of this memory a label. Ranges that PyTorch itself records, such as an
    optimizer's step, are labels only next to those of the program.
    """
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    labels = RecordedLabels(recording.history)
    rows, addresses = recording.rebuilt.row_of_key, recording.history.address
    for block in recording.held():
        row = int(rows[block.key]) if block.key >= 0 else -1
        label = labels.of_block(row, int(addresses[row]) if row >= 0 else block.address)
        sizes[label] += block.size_bytes
        counts[label] += 1
    if all(label == UNNAMED or _OF_PYTORCH.match(label) for label in sizes):
        return ()
    return tuple(LabelHolder(label=label, bytes=size, blocks=counts[label]) for label, size in sizes.most_common())


# The index of the text of the last annotation of each block. A block is identified by its address and the trace entry
# that allocated it, or -1.
def _notes(history: History) -> dict[tuple[int, int], int]:
    rows = np.flatnonzero(history.action == Action.ANNOTATE)
    if not len(rows) or not len(history.labels.metadata):
        return {}
    made = np.flatnonzero(history.action == Action.ALLOC)
    made = made[np.argsort(history.address[made], kind="stable")]
    addresses, noted = history.address[rows], history.labels.metadata[rows]
    first, last = (np.searchsorted(history.address[made], addresses, side=side) for side in ("left", "right"))
    found = {}
    columns = (rows, addresses, noted, first, last)
    for row, address, text, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        before = begin + int(np.searchsorted(made[begin:end], row)) - 1
        found[address, int(made[before]) if before >= begin else -1] = text
    return found


def _ranges(history: History) -> tuple[list[int], list[str]]:
    begins, names, opened = [], [], list[str]()
    for note in sorted(history.annotations, key=lambda note: note.time_us):
        name = _NUMBER.sub("", note.name)
        if note.stage == "START":
            opened.append(name)
        elif name in opened:
            del opened[len(opened) - 1 - opened[::-1].index(name)]
        begins.append(note.time_us)
        names.append(opened[-1] if opened else UNNAMED)
    return begins, names


# A dictionary of labels is recorded as JSON.
def _shown(text: str) -> str:
    if text.startswith("{") and len(text) <= _MOST_JSON:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return shortened(text)
        if isinstance(found, dict) and found:
            return shortened(", ".join(f"{key}: {value}" for key, value in found.items()))
    return shortened(text)
