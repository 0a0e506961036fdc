"""Measures the memory peak of each training step without changing the peak that the user's script sees.

PyTorch keeps only one peak, and the script may read and reset it. So the functions that read and reset it are replaced:
`torch._C._cuda_memoryStats`, `_cuda_resetPeakMemoryStats`, and those of `torch.accelerator`.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

Stats = dict[str, Any]

_PAIRS: Final = (
    ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
    ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
)


class PeakMeter:
    """Measures the allocated memory of a device, and the peak since the last measurement."""

    def __init__(self) -> None:
        # Maps each device to the peak of every statistic since the script last reset the peaks. The statistics are in
        # the order of `_keys`.
        self._peaks: dict[int, list[int]] = {}
        # Maps each device to the peaks that the script has reset since the last measurement.
        self._before_reset: dict[int, list[int]] = {}
        self._keys: list[tuple[str, str]] = []
        self._names: list[str] = []
        self.read: Callable[[int], Stats] = torch._C._cuda_memoryStats
        self._reset: Callable[[int], None] = torch._C._cuda_resetPeakMemoryStats

    def install(self) -> None:
        """Replace PyTorch's functions that read and reset the peak."""
        for read_name, reset_name in _PAIRS:
            read, reset = getattr(torch._C, read_name, None), getattr(torch._C, reset_name, None)
            if read is None or reset is None:
                continue
            setattr(torch._C, read_name, self._reader(read))
            setattr(torch._C, reset_name, self._resetter(reset))

    def measure(self, device: int) -> Stats:
        """Return the memory statistics of a device, with the peaks since the last call."""
        stats = self.read(device)
        self._reset(device)
        peaks = self._peaks_in(stats)
        before = self._peaks.get(device)
        if before is None:
            self._peaks[device] = peaks
        elif peaks != before:  # in most training steps the peaks are equal
            self._peaks[device] = list(map(max, before, peaks))
        # Added last, because peaks that the script has reset count for this step, but are no longer visible to the
        # script.
        for (name, pool), peak in zip(self._keys, self._before_reset.pop(device, ()), strict=False):
            stats[name][pool]["peak"] = max(stats[name][pool]["peak"], peak)
        return stats

    def _peaks_in(self, stats: Stats) -> list[int]:
        if not self._keys:
            # Statistics without pools count allocations larger than max_split_size.
            pools_of = {name: pools for name, pools in stats.items() if type(pools) is dict}
            self._keys = [(name, pool) for name in pools_of for pool, it in pools_of[name].items() if type(it) is dict]
            self._names = list(dict.fromkeys(name for name, _ in self._keys))
        return [values["peak"] for name in self._names for values in stats[name].values()]

    def _reader(self, read: Callable[[int], Stats]) -> Callable[[int], Stats]:
        def read_since_users_reset(device: int, /) -> Stats:
            stats = read(device)
            for (name, pool), peak in zip(self._keys, self._peaks.get(device, ()), strict=False):
                values = stats[name][pool]
                values["peak"] = max(values["peak"], peak)
            return stats

        return read_since_users_reset

    def _resetter(self, reset: Callable[[int], None]) -> Callable[[int], None]:
        def reset_for_user(device: int, /) -> None:
            peaks = self._peaks_in(self.read(device))
            before = self._before_reset.get(device)
            self._before_reset[device] = peaks if before is None else list(map(max, before, peaks))
            reset(device)
            self._peaks.pop(device, None)

        return reset_for_user
