"""`ullage.Monitor`: measures the memory of a training loop after its steps, and reports growth.

A measurement reads the allocator's statistics and does not wait for the GPU. The monitor holds no tensors and resets no
counters.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

import torch

from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.base.units import parse_bytes, text_of_bytes
from ullage.training.monitor.finding import ENOUGH_STEPS, MonitorFinding
from ullage.training.monitor.judge import Judge, StepLevels
from ullage.training.monitor.series import Series
from ullage.training.monitor.visits import Visit

# The number of training steps between two samples. A sample takes about 80 microseconds if a model's step has filled
# the CPU caches.
_STRIDE: Final = 2


@public
class Monitor:
    """A leak detector for a training loop. It watches the memory that stays allocated after each step.

    Example:
        with ullage.Monitor() as monitor:
            for batch in loader:
                train(batch)
                monitor.step()
    """

    def __init__(
        self,
        *,
        device: int | str | torch.device | None = None,
        min_bytes: int | str = "8KiB",
        phase: str = "train",
        holders: bool = True,
        log: Callable[[str], Any] | None = None,
    ) -> None:
        """Create a monitor for a device. It reads nothing before the first step.

        Args:
            device: a CUDA device; by default the current device.
            min_bytes: growth of fewer bytes per step is ignored until it has added up to 512 times this size; a number
                of bytes, or a text such as "64KiB".
            phase: the name of the steps outside of `phase(...)`.
            holders: whether to search for the variable that holds a leak. The search stops the loop for about a second,
                twice for each leak.
            log: called with one line for each finding; by default the logger "ullage.monitor" gets leaks and
                fragmentation as warnings, and other findings at level INFO.

        Raises:
            UsageError: `device` is not a CUDA device, or `min_bytes` is not a size.
        """
        self._index = _index_of(device)
        least = parse_bytes(min_bytes) if isinstance(min_bytes, str) else min_bytes
        if least < 1:
            raise UsageError(f"min_bytes={least} is too small; expected at least 1 byte per step, such as '8KiB'")
        self._phase = phase
        self._all_series: dict[str, Series] = {}
        self._added_inside = [0, 0]
        self._series = self._series_of(phase)
        self._judge = Judge(least, _notifier(log), searches_holders=holders)
        self._steps = 0
        self._left = _STRIDE
        self._samples_in_visit = 0
        self._visit: Visit | None = None
        self._read: Any = None
        self._reader: Callable[[int], Mapping[str, Any]] | None = None

    def read_by(self, reader: Callable[[int], Mapping[str, Any]]) -> None:
        """Set a function from which the monitor gets the allocator's statistics, instead of reading them from PyTorch.

        Args:
            reader: returns the statistics of the device with a given index. Peaks must be those since the process
                began.
        """
        self._reader = reader

    @property
    def findings(self) -> list[MonitorFinding]:
        """All reports of the monitor, oldest first. Their figures are up to date."""
        return list(self._judge.findings)

    @property
    def suspects(self) -> bool:
        """Whether the monitor is investigating a possible growth of memory."""
        return self._judge.suspects

    @property
    def steps(self) -> int:
        """The number of training steps so far, counting all phases."""
        return self._steps

    def __enter__(self) -> Self:
        levels = self._read_levels()
        if levels is not None:
            self._judge.start(levels)
        return self

    def __exit__(self, *raised: object) -> None:
        self._judge.stop()

    def step(self) -> None:
        """Count a training step. Call this method at the end of each step."""
        self._steps += 1
        left = self._left - 1
        if left:
            self._left = left
            return
        self._left = _STRIDE
        self._sample(_STRIDE)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the steps inside this context as a separate phase, such as "eval". Each phase is compared only with
        itself.

        You may call `step` after each batch inside the context. Otherwise, the whole context is one step.
        """
        outer = self._series, self._phase, self._samples_in_visit, self._left
        outer_visit, self._visit = self._visit, None
        self._series, self._phase = self._series_of(name), name
        self._left, self._samples_in_visit = _STRIDE, 0
        levels = self._read_levels()
        if levels is not None:
            self._series.begin_visit(levels.bytes, levels.blocks)
            self._visit = Visit(levels.bytes, levels.blocks, self._steps, self._series.steps)
            self._judge.begin_visit(self._series, name, self._visit)
        try:
            yield
        finally:
            if not self._samples_in_visit:
                self._samples_in_visit = 1  # growth since the beginning of this context belongs to this phase
                if self._left == _STRIDE:
                    self._steps += 1
                self._sample(1)
            # The first sample after another phase starts a new visit, because growth in between belongs to the other
            # phase.
            self._series, self._phase, _, self._left = outer
            self._samples_in_visit = 0
            self._end_visit(outer_visit)

    def _end_visit(self, outer: Visit | None) -> None:
        visit, self._visit = self._visit, outer
        levels = self._read_levels()
        if visit is None or levels is None:
            return
        blocks, n_bytes = levels.blocks - visit.blocks, levels.bytes - visit.bytes
        visit.added_blocks += blocks
        visit.added_bytes += n_bytes
        if outer is not None:  # what the inner context has added is not the outer one's
            outer.added_blocks -= blocks
            outer.added_bytes -= n_bytes
        self._judge.end_visit(visit)

    def scalars(self, prefix: str = "memory/") -> dict[str, int]:
        """Return memory figures in bytes for a logger. The result is empty if CUDA has not been used.

        The peak is PyTorch's, since the process began or since it was last reset. `growth_bytes_per_step` is the growth
        of all leaks together.

        Example:
            wandb.log(monitor.scalars(), step=step)

        Args:
            prefix: the text that every name begins with.
        """
        if self._read is None and self._read_levels() is None:
            return {}
        now = self._read(self._index)
        values = {
            "allocated_bytes": now["allocated_bytes"]["all"]["current"],
            "reserved_bytes": now["reserved_bytes"]["all"]["current"],
            "peak_allocated_bytes": now["allocated_bytes"]["all"]["peak"],
            "alloc_retries": now["num_alloc_retries"],
            "growth_bytes_per_step": sum(found.bytes_per_step for found in self._judge.findings if found.is_leak),
        }
        return {prefix + name: value for name, value in values.items()}

    def __str__(self) -> str:
        levels = self._read_levels()
        head = f"{self._steps} steps in {len(self._all_series)} phase" + ("s" if len(self._all_series) > 1 else "")
        if levels is not None:
            head += (
                f": {text_of_bytes(levels.bytes)} in {levels.blocks} blocks, "
                f"{text_of_bytes(levels.peak_bytes)} at the peak, {text_of_bytes(levels.reserved_bytes)} reserved"
            )
        nothing = "no growth was found" if self._steps >= ENOUGH_STEPS else "too early to find growth"
        findings: list[MonitorFinding] | tuple[str] = self._judge.findings or (nothing,)
        return "\n".join([head, *(f"  {one}" for one in findings)])

    def _sample(self, steps: int) -> None:
        levels = self._read_levels()
        if levels is None:
            return
        is_first = self._samples_in_visit == 0
        self._samples_in_visit += 1
        series = self._series
        is_complete = series.add(levels.bytes, levels.blocks, steps, is_first=is_first)
        self._judge.sample_evidence(series, self._steps)
        if is_complete:
            self._judge.judge(series, self._phase, self._steps, levels, is_alone=len(self._all_series) == 1)

    def _read_levels(self) -> "StepLevels | None":
        if self._read is None:
            if not torch.cuda.is_initialized():
                return None
            if self._index is None:
                self._index = torch.cuda.current_device()
            self._judge.device = self._index
            self._read = self._reader or torch._C._cuda_memoryStats
        return StepLevels.of(self._read(self._index))

    def _series_of(self, name: str) -> Series:
        return self._all_series.setdefault(name, Series(self._added_inside))


def _index_of(device: int | str | torch.device | None) -> int | None:
    if device is None or isinstance(device, int):
        return device
    found: torch.device = torch.device(device)
    if found.type != "cuda":
        raise UsageError(f"device={str(found)!r} cannot be monitored; expected a CUDA device, such as 'cuda:0'")
    return int(found.index) if found.index is not None else None


def _notifier(log: Callable[[str], Any] | None) -> Callable[[MonitorFinding], Any]:
    logger = logging.getLogger("ullage.monitor")

    def notify(finding: MonitorFinding) -> None:
        if log is not None:
            log(str(finding))
        else:
            logger.log(logging.WARNING if finding.is_urgent else logging.INFO, "%s", finding)

    return notify
