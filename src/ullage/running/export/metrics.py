"""Defines the metrics of a run for Prometheus and OTLP. They are read from files that the run's processes write."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily

from ullage.base.errors import UllageError
from ullage.running.diagnosis.process import is_alive
from ullage.running.run_files.facts import RunFacts
from ullage.running.run_files.folder import headroom_bytes
from ullage.running.run_files.live import SUFFIX, LiveFileError, Sample, read_live

# The cause that the metrics report for an out-of-memory error if its snapshot cannot be read.
_UNKNOWN_CAUSE: Final = "cannot_tell"
_STATES: Final = ("runs", "ended", "failed", "out of memory", "gone")
_PROCESS: Final = ("rank", "pid")
_CAUSED: Final = (*_PROCESS, "cause")
_DEVICE: Final = (*_PROCESS, "device", "gpu")
# The number of samples that are read for each process, the latest first. They are enough to include every device.
_LATEST: Final = 64
_GAUGES: Final = (
    (
        "allocated",
        "allocated_bytes",
        "GPU memory allocated to tensors at the latest sample, as PyTorch's allocator counts it.",
    ),
    (
        "reserved",
        "reserved_bytes",
        "GPU memory that PyTorch's allocator has reserved: allocated memory and cached memory.",
    ),
    ("inactive_split", "split_bytes", "GPU memory in free parts of segments that are partly in use."),
    ("step_peak_allocated", "peak_bytes", "Peak of allocated GPU memory between the last two samples."),
    ("driver_used", "used_bytes", "GPU memory used by all processes, as the driver reports it."),
)


def metrics_of(folder: Path, causes: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the metrics of all processes of a run.

    Args:
        folder: the folder of the run.
        causes: the cause of each out-of-memory error. The keys are the names of the folders that describe the errors.
    """
    families = _Families()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            live = read_live(path, most=_LATEST, overview=False)
        except (LiveFileError, OSError):  # the file is being created or removed
            continue
        facts = RunFacts.from_json(live.facts)
        if facts.pid:  # the process has written its facts
            families.add(facts, {sample.device: sample for sample in live.recent}, causes)
    yield from families.all()


class _Families:
    def __init__(self) -> None:
        self._now = {
            field: GaugeMetricFamily(f"ullage_{name}", text, labels=_DEVICE, unit="bytes")
            for name, field, text in _GAUGES
        }

        def family(kind: Any, name: str, text: str, labels: tuple[str, ...] = _DEVICE, **unit: str) -> Any:
            return kind(f"ullage_{name}", text, labels=labels, **unit)

        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        left = "GPU memory that remains for the process after reserved memory, CUDA contexts and other processes."
        self._limit = family(gauge, "limit", "GPU memory that the process may reserve.", unit="bytes")
        self._headroom = family(gauge, "headroom", left, unit="bytes")
        self._peak = family(gauge, "peak_allocated", "Peak of allocated GPU memory in the whole run.", unit="bytes")
        self._retries = family(
            counter,
            "alloc_retries",
            "Number of times that PyTorch's allocator freed its cache and retried an allocation.",
        )
        self._steps = family(counter, "steps", "Number of completed steps.", _PROCESS)
        self._ooms = family(counter, "ooms", "Number of out-of-memory errors.", _PROCESS)
        by_cause = "Number of out-of-memory errors, by the cause that ullage explain reports."
        self._causes = family(counter, "ooms_by_cause", by_cause, _CAUSED)
        self._seconds = family(gauge, "step", "Median duration of the latest steps.", _PROCESS, unit="seconds")
        roles = (*_PROCESS, "role")
        self._role = family(
            gauge,
            "role",
            "GPU memory by its role (parameters, gradients, ...), summed over all devices.",
            roles,
            unit="bytes",
        )
        growing = "1 if memory grows from step to step or becomes fragmented, otherwise 0."
        self._growing = family(gauge, "growing", growing, _PROCESS)
        self._state = family(StateSetMetricFamily, "state", "State of the process.", _PROCESS)

    def add(self, facts: RunFacts, latest: dict[int, Sample], causes: Mapping[str, str]) -> None:
        process = ("" if facts.rank is None else str(facts.rank), str(facts.pid))
        is_here = facts.state not in ("ended", "failed") and is_alive(facts.pid, facts.started or None)
        state = facts.state if is_here or facts.state != "runs" else "gone"
        self._state.add_metric(process, {one: one == state for one in _STATES})
        steps = max((facts.steps, *(sample.step for sample in latest.values())))
        self._steps.add_metric(process, steps, created=facts.started)
        self._ooms.add_metric(process, facts.ooms, created=facts.started)
        known = [causes[name] for name in facts.evidence if name in causes]
        for cause in dict.fromkeys(known):
            self._causes.add_metric((*process, cause), known.count(cause), created=facts.started)
        self._growing.add_metric(process, int(bool(facts.growth)))
        cards = {card.index: card for card in facts.cards}
        peaks = {peak.device: peak.bytes for peak in facts.peaks}
        for device, sample in sorted(latest.items()):
            card = cards.get(device)
            labels = (*process, str(device), card.name if card is not None else "")
            self._peak.add_metric(labels, max(peaks.get(device, 0), sample.peak_bytes))
            self._retries.add_metric(labels, sample.retries, created=facts.started)
            if is_here:
                for field, family in self._now.items():
                    value = getattr(sample, field)
                    if value >= 0:
                        family.add_metric(labels, value)
                if card is not None:
                    self._limit.add_metric(labels, card.limit_bytes)
                    left = headroom_bytes(card, sample, sample.reserved_bytes)
                    self._headroom.add_metric(labels, max(0, left))
        if is_here:
            if facts.step_seconds is not None:
                self._seconds.add_metric(process, facts.step_seconds)
            for role, size in facts.roles.items():
                self._role.add_metric((*process, role), size)

    def all(self) -> Iterator[Metric]:
        yield from self._now.values()
        yield from (self._limit, self._headroom, self._peak, self._role, self._retries, self._steps, self._seconds)
        yield from (self._ooms, self._causes, self._growing, self._state)


class OomCauses:
    """Finds the causes of a run's out-of-memory errors in a separate thread, because reading a snapshot takes long."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self._reading: threading.Thread | None = None

    def look(self, folder: Path) -> None:
        """Start to read the snapshots of new out-of-memory errors, unless a thread already does so."""
        if self._reading is not None and self._reading.is_alive():
            return
        new = [path for path in folder.glob("oom-*/snapshot.pickle") if path.parent.name not in self.known]
        if new:
            self._reading = threading.Thread(target=self._read, args=(new,), name="ullage-causes", daemon=True)
            self._reading.start()

    def finish(self, folder: Path) -> None:
        """Read the snapshots of the remaining out-of-memory errors."""
        if self._reading is not None:
            self._reading.join()
        self.look(folder)
        if self._reading is not None:
            self._reading.join()

    def _read(self, snapshots: list[Path]) -> None:
        from ullage.explaining.fleet.rank_summary import (
            summary_of,
        )  # imported here, because runs without out-of-memory errors do not need numpy

        for path in snapshots:
            try:
                self.known[path.parent.name] = summary_of(path).cause
            except (UllageError, OSError):
                self.known[path.parent.name] = _UNKNOWN_CAUSE
