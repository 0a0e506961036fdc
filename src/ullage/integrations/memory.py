"""The base class of ullage's callbacks, which monitor GPU memory in a framework's training loop."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from ullage.training.monitor.finding import MonitorFinding
from ullage.training.monitor.monitor import Monitor


class WatchesMemory:
    """The base class of all callbacks that watch memory."""

    def __init__(self, *, reset_peak: bool = False, **options: Any) -> None:
        """Create the monitor. It watches the GPU that the framework uses.

        Args:
            reset_peak: whether to reset PyTorch's peak statistics each time the peak has been logged. Each logged peak
                is then that of the steps since the last log. Other code that reads the peak
                (`skip_memory_metrics=False`) gets this smaller peak.
            options: arguments of `ullage.Monitor`.
        """
        super().__init__()
        self._watch = LoopMonitor(resets_peak=reset_peak, options=options)

    @property
    def findings(self) -> list[MonitorFinding]:
        """All findings of the monitor, in order."""
        return self._watch.findings


@dataclass(eq=False, slots=True, kw_only=True)
class LoopMonitor:
    """Monitors the memory of a framework's training loop, from its start to its end."""

    resets_peak: bool
    """Whether PyTorch's peak statistics are reset after each logged peak."""
    options: dict[str, Any]
    """The arguments of `ullage.Monitor`."""
    monitor: Monitor | None = None
    _device: torch.device | None = None
    _earlier: list[MonitorFinding] = field(default_factory=list)
    _running: ExitStack = field(default_factory=ExitStack)
    _phase: ExitStack | None = None

    @property
    def findings(self) -> list[MonitorFinding]:
        """All findings of the monitor, including those of earlier training loops."""
        return self._earlier + (self.monitor.findings if self.monitor is not None else [])

    def start(self, device: torch.device) -> None:
        """Start to watch a CUDA device. Other devices are ignored."""
        self.stop()
        self._earlier = self.findings
        self._device = device if device.type == "cuda" else None
        self.monitor = self._running.enter_context(Monitor(**{"device": self._device, **self.options}))

    def stop(self) -> None:
        """Close the monitor and keep its findings."""
        self.leave_phase()
        self._running.close()

    def step(self) -> None:
        """Mark the end of a training step."""
        if self.monitor is not None:
            self.monitor.step()

    def enter_phase(self, phase: str) -> None:
        """Begin a separate phase, such as evaluation, which lasts until `leave_phase` is called."""
        if self.monitor is not None and self._phase is None:
            self._phase = ExitStack()
            self._phase.enter_context(self.monitor.phase(phase))

    def leave_phase(self) -> None:
        """End the current phase, if one has begun."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.close()

    def scalars(self, prefix: str) -> dict[str, int]:
        """Return the current memory figures by name. The result is empty without a CUDA device."""
        if self.monitor is None or self._device is None:
            return {}
        values = self.monitor.scalars(prefix)
        if self.resets_peak and values:
            torch.cuda.reset_peak_memory_stats(self._device)
        return values
