"""`ullage.Monitor`: a training loop's memory, looked at after its steps; what grows is told from what only varies.

A look is one call of the allocator's statistics: nothing waits for the card. Block lists are only made where growth is
suspected (`evidence`). No tensor is held and no counter is reset.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

import torch

from ullage._errors import UsageError
from ullage._units import parse_bytes, text_of_bytes
from ullage.monitor.finding import ENOUGH_STEPS, Finding
from ullage.monitor.judge import Judge, Levels
from ullage.monitor.series import Series

_STRIDE: Final = 2
"""Steps from look to look: one costs some 80 microseconds in a process whose caches hold a model's step."""


class Monitor:
    """Watches what stays on the card after the steps of a loop, and tells a leak from what is none.

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
        """Watch a device; nothing is looked at before the first step.

        Args:
            device: a CUDA device; the current one, if left out.
            min_bytes: growth below this many bytes a step is none; a number, or a text such as "64KiB".
            phase: what steps outside of `phase(...)` are called.
            holders: whether to search who holds what leaks, which stops the loop for a second or so, twice for a leak.
            log: called with one line for each finding; else the logger "ullage.monitor" warns of what grows and
                informs of the rest.

        Raises:
            UsageError: `device` is no CUDA device, or `min_bytes` no size.
        """
        self._index = _index_of(device)
        least = parse_bytes(min_bytes) if isinstance(min_bytes, str) else min_bytes
        if least < 1:
            raise UsageError(f"min_bytes is {least}; expected at least one byte a step, such as '8KiB'")
        self._phase = phase
        self._all_series: dict[str, Series] = {}
        self._series = self._series_of(phase)
        self._judge = Judge(least, _teller(log), searches_holders=holders)
        self._steps = 0
        self._left = _STRIDE
        self._since_look = 0
        self._looks_in_visit = 0
        self._read: Any = None
        self._reader: Callable[[int], Mapping[str, Any]] | None = None

    def read_by(self, reader: Callable[[int], Mapping[str, Any]]) -> None:
        """Take what `torch._C._cuda_memoryStats` would answer from somebody who has read it at this step already.

        Args:
            reader: of a device's number; its peak is the highest since the process began.
        """
        self._reader = reader

    @property
    def findings(self) -> list[Finding]:
        """What has been found, in the order in which it was established; what has changed since is replaced."""
        return list(self._judge.findings)

    @property
    def suspects(self) -> bool:
        """Whether something seems to grow, and is being looked into."""
        return self._judge.suspects

    @property
    def steps(self) -> int:
        """How many steps have been taken, over all phases."""
        return self._steps

    def __enter__(self) -> Self:
        levels = self._look()
        if levels is not None:
            self._judge.begin(levels)
        return self

    def __exit__(self, *raised: object) -> None:
        self._judge.end()

    def step(self) -> None:
        """Say that a step is over. Every second call reads the allocator's statistics."""
        self._steps += 1
        left = self._left - 1
        if left:
            self._left = left
            return
        self._left = _STRIDE
        self._sample(_STRIDE)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside to a phase of its own, which has its own steady state: "eval", "save", ...

        Inside, `step` may be called after each batch; where it is not, the whole is one step.
        """
        outer = self._series, self._phase, self._looks_in_visit, self._left
        self._series, self._phase = self._series_of(name), name
        self._left, self._looks_in_visit = _STRIDE, 0
        levels = self._look()
        if levels is not None:
            self._series.begin(levels.bytes, levels.blocks)
        try:
            yield
        finally:
            if not self._looks_in_visit:
                self._looks_in_visit = 1  # what came since the beginning of the visit is the phase's own
                if self._left == _STRIDE:
                    self._steps += 1
                self._sample(1)
            # A look that follows a visit elsewhere is the first of its own visit: what came in between is not its own.
            self._series, self._phase, _, self._left = outer
            self._looks_in_visit = 0

    def scalars(self, prefix: str = "memory/") -> dict[str, int]:
        """Return memory as it is now by name, for programs that draw numbers; nothing where CUDA has not been used.

        Sizes are in bytes; the peak is PyTorch's, since the process began or it was last reset;
        `growth_bytes_per_step` is what leaks that were found keep, 0 where none is.

        Example:
            wandb.log(monitor.scalars(), step=step)

        Args:
            prefix: put before every name.
        """
        if self._read is None and self._look() is None:
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
        levels = self._look()
        head = f"{self._steps} steps in {len(self._all_series)} phase" + ("s" if len(self._all_series) > 1 else "")
        if levels is not None:
            head += (
                f": {text_of_bytes(levels.bytes)} in {levels.blocks} blocks, "
                f"{text_of_bytes(levels.peak_bytes)} at the peak, {text_of_bytes(levels.reserved_bytes)} reserved"
            )
        nothing = "nothing was found that grows" if self._steps >= ENOUGH_STEPS else "too early to tell what grows"
        findings: list[Finding] | tuple[str] = self._judge.findings or (nothing,)
        return "\n".join([head, *(f"  {one}" for one in findings)])

    def _sample(self, steps: int) -> None:
        levels = self._look()
        if levels is None:
            return
        is_first = self._looks_in_visit == 0
        self._looks_in_visit += 1
        series = self._series
        is_complete = series.add(levels.bytes, levels.blocks, steps, is_first=is_first)
        self._judge.look(series, self._steps)
        if is_complete:
            self._judge.judge(series, self._phase, self._steps, levels, is_alone=len(self._all_series) == 1)

    def _look(self) -> "Levels | None":
        """Read the allocator's statistics; None where CUDA has not been used, and it is not initialised here."""
        if self._read is None:
            if not torch.cuda.is_initialized():
                return None
            if self._index is None:
                self._index = torch.cuda.current_device()
            self._judge.device = self._index
            self._read = self._reader or torch._C._cuda_memoryStats
        return Levels.of(self._read(self._index))

    def _series_of(self, name: str) -> Series:
        return self._all_series.setdefault(name, Series())


def _index_of(device: int | str | torch.device | None) -> int | None:
    if device is None or isinstance(device, int):
        return device
    found: torch.device = torch.device(device)
    if found.type != "cuda":
        raise UsageError(f"device is {str(found)!r}; a monitor watches a CUDA device, such as 'cuda:0'")
    return int(found.index) if found.index is not None else None


def _teller(log: Callable[[str], Any] | None) -> Callable[[Finding], Any]:
    logger = logging.getLogger("ullage.monitor")

    def tell(finding: Finding) -> None:
        if log is not None:
            log(str(finding))
        else:
            logger.log(logging.WARNING if finding.is_urgent else logging.INFO, "%s", finding)

    return tell
