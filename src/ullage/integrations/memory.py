"""Shared by the callbacks: a monitor whose phases begin and end in different calls."""

from contextlib import ExitStack
from dataclasses import dataclass, field
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


@dataclass(eq=False, slots=True, kw_only=True)
class LoopMonitor:
    """A monitor for a framework's loop: made when the loop starts, closed when it ends."""

    resets_peak: bool
    """Whether PyTorch's peak is reset each time it has been logged."""
    options: dict[str, Any]
    """The arguments of `ullage.Monitor`."""
    monitor: Monitor | None = None
    _device: torch.device | None = None
    _earlier: list[MonitorFinding] = field(default_factory=list)
    _running: ExitStack = field(default_factory=ExitStack)
    _phase: ExitStack | None = None

    @property
    def findings(self) -> list[MonitorFinding]:
        """All findings, of earlier loops too."""
        return self._earlier + (self.monitor.findings if self.monitor is not None else [])

    def start(self, device: torch.device) -> None:
        """Watch a device; for one that is not a CUDA device, nothing is logged."""
        self.stop()
        self._earlier = self.findings
        self._device = device if device.type == "cuda" else None
        self.monitor = self._running.enter_context(Monitor(**{"device": self._device, **self.options}))

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
        if self.resets_peak and values:
            torch.cuda.reset_peak_memory_stats(self._device)
        return values
