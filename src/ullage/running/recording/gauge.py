"""Measures the memory of each GPU at the end of each training step."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from time import time
from typing import Any, Final

import torch

from ullage.base.driver import DriverSilentError, asked
from ullage.running.recording.peak import PeakMeter, Stats
from ullage.running.run_files.facts import RunCard, RunPeak
from ullage.running.run_files.live import Sample
from ullage.training.ownership.block import line_of

# ullage searches for the source line of a new peak if it is this many times the last searched peak.
_NEW_PEAK_RATIO: Final = 1.01
_MOST_SOUGHT: Final = 4
IN_BACKWARD: Final = "in backward"
"""The text that replaces a source line for allocations without Python stack frames. Nearly all occur in `backward`."""


@dataclass(frozen=True, slots=True)
class Top:
    """The peak of allocated bytes in a memory history, and the source line that reached it."""

    bytes: int
    line: str


def top_of_history(devices: Iterable[int]) -> dict[int, Top]:
    """Return the peak of allocated bytes on each device, and the source line that reached it.

    The history is read backwards, because only its final number of allocated bytes is known.
    """
    traces = torch._C._cuda_memorySnapshot(None)["device_traces"]
    found = {}
    for device in devices:
        level = int(torch._C._cuda_memoryStats(device)["allocated_bytes"]["all"]["current"])
        top = _top_of(traces[device], level) if device < len(traces) else None
        if top is not None:
            found[device] = top
    return found


def _top_of(trace: list[dict[str, Any]], level: int) -> Top | None:
    highest, at = -1, None
    for entry in reversed(trace):
        if entry["action"] == "alloc":
            if level > highest:
                highest, at = level, entry
            level -= entry["size"]
        elif entry["action"] == "free_requested":
            level += entry["size"]
    return Top(highest, line_of(at.get("frames") or ()) or IN_BACKWARD) if at is not None else None


class Gauge:
    """Measures GPU memory. All methods except `ask_driver` must be called in one thread."""

    def __init__(self) -> None:
        self.peaks: dict[int, RunPeak] = {}
        self.share = 0.0
        """The largest share of any GPU's memory that was in use since the previous sample."""
        self.allocations = 0
        """The number of allocations on all GPUs since the previous sample."""
        self._meter = PeakMeter()
        # Maps each GPU to its bytes that are in use but not reserved by this process, as of the last query of the
        # driver.
        self._outside: dict[int, int] = {}
        # Maps each GPU to the memory limit of this process, in bytes. The limit is read only when the driver is
        # queried: scripts set it once, and reading it takes a tenth of the time of a sample.
        self._limits: dict[int, int] = {}
        self._latest: dict[int, Stats] = {}
        self._allocations_before: dict[int, int] = {}
        self._sought_bytes: dict[int, int] = {}
        self._times_sought = 0

    def install(self) -> None:
        """Start to measure GPU memory. Call this method right after CUDA was initialised."""
        self._meter.install()

    def read(self, step: int, *, is_end: bool) -> Iterator[Sample]:
        """Yield a memory sample of each GPU that the process uses.

        Args:
            step: the index of the last completed training step.
            is_end: whether that step has just ended. If True, a new peak belongs to that step. If False, a new peak
                belongs to the next step.
        """
        now = time()
        self.share, self.allocations = 0.0, 0
        for card in cards():
            device = card.index
            stats = self._latest[device] = self._meter.measure(device)
            reserved, allocated = stats["reserved_bytes"]["all"], stats["allocated_bytes"]["all"]
            if not reserved["peak"]:
                continue
            made = stats["allocation"]["all"]["allocated"]
            self.allocations += made - self._allocations_before.get(device, 0)
            self._allocations_before[device] = made
            outside = self._outside.get(device)
            used = -1 if outside is None else reserved["current"] + outside
            if device not in self._limits:
                self._limits[device] = limit_bytes(card)
            self.share = max(self.share, reserved["peak"] / self._limits[device], used / card.total_bytes)
            peak = self.peaks.get(device)
            if peak is None or allocated["peak"] > peak.bytes:
                self.peaks[device] = RunPeak(bytes=allocated["peak"], device=device, step=step if is_end else step + 1)
            yield Sample(
                step=step,
                time=now,
                device=device,
                allocated_bytes=allocated["current"],
                reserved_bytes=reserved["current"],
                peak_bytes=allocated["peak"],
                used_bytes=used,
                split_bytes=stats["inactive_split_bytes"]["all"]["current"],
                retries=stats["num_alloc_retries"],
                ooms=stats["num_ooms"],
            )

    def latest(self, device: int) -> Stats:
        """Return the current memory statistics of a device, with the highest peak of the run."""
        stats = self._latest.get(device)
        if stats is None:
            return self._meter.read(device)
        if device not in self.peaks:
            return stats
        # A copy is changed, because the meter may still use the original statistics for the same step.
        allocated = stats["allocated_bytes"]
        highest = {**allocated["all"], "peak": self.peaks[device].bytes}
        return {**stats, "allocated_bytes": {**allocated, "all": highest}}

    @property
    def seeks(self) -> list[int]:
        """The devices with a new peak whose source line is not yet known."""
        if self._times_sought >= _MOST_SOUGHT:
            return []
        return [
            device
            for device in self._unknown()
            if self.peaks[device].bytes > _NEW_PEAK_RATIO * self._sought_bytes.get(device, 0)
        ]

    def _unknown(self) -> list[int]:
        return [device for device, peak in self.peaks.items() if peak.line is None]

    def seek_lines(self, *, is_last: bool = False) -> None:
        """Look up the source lines of the latest peaks in PyTorch's memory history."""
        devices = self._unknown() if is_last else self.seeks
        if not devices:
            return
        self._times_sought += 1
        tops = top_of_history(devices)
        for device in devices:
            peak, top = self.peaks[device], tops.get(device)
            self._sought_bytes[device] = peak.bytes
            # A top of about this size is the same peak: the history counts requested bytes, the peak rounded bytes.
            if top is not None and abs(top.bytes - peak.bytes) <= (_NEW_PEAK_RATIO - 1) * peak.bytes:
                self.peaks[device] = replace(peak, line=top.line)

    def ask_driver(self) -> None:
        """Read the used memory of each GPU from the driver, without creating a CUDA context."""
        self._limits = {card.index: limit_bytes(card) for card in cards()}
        try:
            with asked() as nvml:
                used = {
                    nvml.call("nvmlDeviceGetUUID", handle): memory.used_bytes
                    for _, handle in nvml.handles()
                    if (memory := nvml.memory_of(handle)) is not None
                }
        except DriverSilentError:
            return
        self._outside = {
            card.index: max(0, used[card.uuid] - self._meter.read(card.index)["reserved_bytes"]["all"]["current"])
            for card in cards()
            if card.uuid in used
        }


@cache
def cards() -> tuple[RunCard, ...]:
    """Return the GPUs of this process, without creating a CUDA context."""
    return tuple(_card(index) for index in range(torch.cuda.device_count()))


def limit_bytes(card: RunCard) -> int:
    """Return the memory that the process may reserve on a GPU, in bytes."""
    fraction: Any = getattr(torch._C, "_cuda_getMemoryFraction", lambda device: 1.0)
    return int(card.total_bytes * fraction(card.index))


def _card(index: int) -> RunCard:
    properties = torch.cuda.get_device_properties(index)
    return RunCard(
        index=index,
        name=properties.name,
        uuid=f"GPU-{properties.uuid}",
        total_bytes=properties.total_memory,
        limit_bytes=properties.total_memory,
    )
