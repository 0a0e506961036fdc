"""What the callbacks share: a monitor whose phases begin and end at different calls."""

from contextlib import ExitStack
from typing import Any

import torch

from ullage.monitor.finding import Finding
from ullage.monitor.monitor import Monitor


class Watch:
    """A monitor for a framework's loop: made when the loop begins, put away when it ends."""

    def __init__(self, *, resets_peak: bool, options: dict[str, Any]) -> None:
        """Take options of `ullage.Monitor`.

        Args:
            resets_peak: whether PyTorch's peak begins anew whenever it has been told.
            options: of the monitor.
        """
        self.monitor: Monitor | None = None
        self._resets_peak = resets_peak
        self._options = options
        self._device: torch.device | None = None
        self._earlier: list[Finding] = []
        self._running = ExitStack()
        self._phase: ExitStack | None = None

    @property
    def findings(self) -> list[Finding]:
        """What has been found, in earlier loops too."""
        return self._earlier + (self.monitor.findings if self.monitor is not None else [])

    def begin(self, device: torch.device) -> None:
        """Watch a device; of one that is no CUDA device, nothing is told."""
        self.end()
        self._earlier = self.findings
        self._device = device if device.type == "cuda" else None
        options: dict[str, Any] = {"device": self._device, **self._options}
        self.monitor = Monitor(**options)
        self._running.enter_context(self.monitor)

    def end(self) -> None:
        """Put back what the monitor has set; what it has found stays."""
        self.leave()
        self._running.close()

    def step(self) -> None:
        """Say that a step is over."""
        if self.monitor is not None:
            self.monitor.step()

    def enter(self, phase: str) -> None:
        """Count what comes from now on to a phase of its own, until `leave`."""
        if self.monitor is not None and self._phase is None:
            self._phase = ExitStack()
            self._phase.enter_context(self.monitor.phase(phase))

    def leave(self) -> None:
        """End the phase, if there is one."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.close()

    def tell(self, prefix: str) -> dict[str, int]:
        """Return memory now by name; nothing where the loop does not run on a CUDA device."""
        if self.monitor is None or self._device is None:
            return {}
        values = self.monitor.scalars(prefix)
        if self._resets_peak and values:
            torch.cuda.reset_peak_memory_stats(self._device)
        return values
