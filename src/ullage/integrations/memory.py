"""Shared by the callbacks: a monitor whose phases begin and end in different calls."""

from contextlib import ExitStack
from typing import Any

import torch

from ullage.training.monitor.finding import MonitorFinding
from ullage.training.monitor.monitor import Monitor


class WatchesMemory:
    """What every callback that watches memory has: a monitor of the loop, and its findings."""

    def __init__(self, *, reset_peak: bool = False, **options: Any) -> None:
        """Watch the card of the framework's process.

        Args:
            reset_peak: whether to reset PyTorch's peak each time it has been logged, so that the next one is that of
                the steps in between; other readers of the peak (`skip_memory_metrics=False`) see that, too.
            options: arguments of `ullage.Monitor`.
        """
        super().__init__()
        self._watch = LoopMonitor(resets_peak=reset_peak, options=options)

    @property
    def findings(self) -> list[MonitorFinding]:
        """All findings, in the order in which they were established."""
        return self._watch.findings


class LoopMonitor:
    """A monitor for a framework's loop: made when the loop starts, closed when it ends."""

    def __init__(self, *, resets_peak: bool, options: dict[str, Any]) -> None:
        """Take the options of the monitor.

        Args:
            resets_peak: whether to reset PyTorch's peak each time it has been logged.
            options: arguments of `ullage.Monitor`.
        """
        self.monitor: Monitor | None = None
        self._resets_peak = resets_peak
        self._options = options
        self._device: torch.device | None = None
        self._earlier: list[MonitorFinding] = []
        self._running = ExitStack()
        self._phase: ExitStack | None = None

    @property
    def findings(self) -> list[MonitorFinding]:
        """All findings, of earlier loops too."""
        return self._earlier + (self.monitor.findings if self.monitor is not None else [])

    def start(self, device: torch.device) -> None:
        """Watch a device; for one that is not a CUDA device, nothing is logged."""
        self.stop()
        self._earlier = self.findings
        self._device = device if device.type == "cuda" else None
        options: dict[str, Any] = {"device": self._device, **self._options}
        self.monitor = Monitor(**options)
        self._running.enter_context(self.monitor)

    def stop(self) -> None:
        """Close the monitor; its findings stay."""
        self.leave_phase()
        self._running.close()

    def step(self) -> None:
        """Call this at the end of each step."""
        if self.monitor is not None:
            self.monitor.step()

    def enter_phase(self, phase: str) -> None:
        """Assign steps to a phase of its own from now on, until `leave_phase`."""
        if self.monitor is not None and self._phase is None:
            self._phase = ExitStack()
            self._phase.enter_context(self.monitor.phase(phase))

    def leave_phase(self) -> None:
        """End the phase, if there is one."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.close()

    def scalars(self, prefix: str) -> dict[str, int]:
        """Return the present memory figures by name; empty if the loop does not run on a CUDA device."""
        if self.monitor is None or self._device is None:
            return {}
        values = self.monitor.scalars(prefix)
        if self._resets_peak and values:
            torch.cuda.reset_peak_memory_stats(self._device)
        return values
