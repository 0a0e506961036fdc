"""Measure the host memory of the script's process without the part that ullage uses.

The kernel reports the highest resident memory but not its time. The meter therefore reads the figure repeatedly. After
each increase, it subtracts the memory that ullage had at that time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ullage.base.units import MIB
from ullage.gpu.emulator import library
from ullage.gpu.tracing.journal import ENTRY, Journal
from ullage.gpu.tracing.journal.host import HostKind, resident
from ullage.predicting.prediction.host.memory import HostFigures, HostLine

if TYPE_CHECKING:
    from ullage.gpu.values.start import Values

MODULES_BYTES: Final = 15 * MIB
"""The host memory in bytes that ullage's modules use before the script starts. A test measures it."""
HISTORY_ENTRY_BYTES: Final = 224
"""The size in bytes of one entry of PyTorch's allocation history (`TraceEntry` in torch 2.11)."""
LINES_KEPT: Final = 20


class HostMeter:
    """Measure the resident memory of this process without the part that ullage uses."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._values: Values | None = None
        self._parts_bytes = MODULES_BYTES
        self._history_entries = 0
        self._own_bytes = 0
        self._high_bytes, self._own_at_peak, self._theirs = 0, 0, -1
        self._file_bytes = self._untouched_bytes = 0

    def open(self) -> None:
        """Start to measure host memory just before the script starts."""
        self._journal.host.open()
        self._own_bytes = self.own_bytes()

    def follow(self, values: "Values | None", *, history_entries: int) -> None:
        """Exclude ullage's tensor values and PyTorch's memory history from the host memory of the script.

        Args:
            values: the tensor values that ullage keeps in this process, or None.
            history_entries: the number of entries that PyTorch's memory history stores for each allocator event.
        """
        self._values, self._history_entries = values, history_entries

    @contextmanager
    def own_part(self) -> Iterator[None]:
        """Exclude host memory that is allocated in this context from the host memory of the script."""
        before = resident().bytes
        yield
        self._parts_bytes += max(0, resident().bytes - before)

    def own_bytes(self) -> int:
        """Return the bytes of host memory that ullage itself uses now."""
        values = self._values
        events = int(self._journal.length())
        return (
            self._parts_bytes
            + self._journal.host.own_bytes()
            + events * (ENTRY.itemsize + self._history_entries * HISTORY_ENTRY_BYTES)
            + (values.resident_bytes + values.evaluation.kept_bytes if values is not None else 0)
        )

    def look(self) -> None:
        """Read the resident memory of this process."""
        now, own = resident(), self.own_bytes()
        # The peak was reached at some time since the last reading. Subtract the smaller of ullage's own sizes at the
        # two
        # readings, so that no byte of the script is left out.
        least = min(self._own_bytes, own)
        of_high, resident_before = library.sent_at_high(now.peak_bytes)
        if now.peak_bytes > self._high_bytes:
            self._take(now.peak_bytes, least + of_high)
        self._take(resident_before, least)
        self._high_bytes = max(self._high_bytes, now.peak_bytes)
        self._own_bytes = own
        self._file_bytes = max(self._file_bytes, now.file_bytes)
        self._untouched_bytes = max(self._untouched_bytes, library.pinned_untouched_bytes())

    def _take(self, resident_bytes: int, own_bytes: int) -> None:
        if resident_bytes - own_bytes > self._theirs:
            self._theirs, self._own_at_peak = resident_bytes - own_bytes, own_bytes

    def figures(self) -> HostFigures:
        """Stop measuring host memory, and return the results."""
        host = self._journal.host
        host.close()
        return HostFigures(
            pinned_peak_bytes=host.peak_bytes(HostKind.PINNED),
            pinned_lines=self._lines(HostKind.PINNED),
            pinned_untouched_bytes=self._untouched_bytes,
            tensors_peak_bytes=host.peak_bytes(HostKind.TENSORS),
            tensor_lines=self._lines(HostKind.TENSORS),
            arrays_peak_bytes=host.peak_bytes(HostKind.ARRAYS),
            array_lines=self._lines(HostKind.ARRAYS),
            high_water_bytes=self._theirs + self._own_at_peak,
            own_bytes=self._own_at_peak,
            file_bytes=self._file_bytes,
        )

    def _lines(self, kind: HostKind) -> list[HostLine]:
        rows = self._journal.host.rows_at_peak(kind)
        lines = [
            HostLine(
                file=row.line.file if row.line else None,
                line=row.line.line if row.line else None,
                function=row.line.function if row.line else None,
                is_users=row.is_users,
                bytes=row.bytes,
                blocks=row.blocks,
            )
            for row in rows
        ]
        kept, rest = lines[:LINES_KEPT], lines[LINES_KEPT:]
        if rest:
            size, blocks = sum(line.bytes for line in rest), sum(line.blocks for line in rest)
            kept.append(HostLine(file=None, line=None, function=None, is_users=False, bytes=size, blocks=blocks))
        return kept
