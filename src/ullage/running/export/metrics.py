"""The metrics of a run's processes: their names, types and values at one moment, as prometheus_client's families.

They are read from the processes' live files, which do not notice it. The endpoint for Prometheus answers with them, and
OTLP sends them: each metric is written down once, here. Names and types follow OpenMetrics. The present memory of a
process is there while it runs; its counters, its peak and its state until the run ends.
"""

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

_UNKNOWN_CAUSE: Final = "cannot_tell"
"""The cause of evidence that cannot be read."""
_STATES: Final = ("runs", "ended", "failed", "out of memory", "gone")
_PROCESS: Final = ("rank", "pid")
_CAUSED: Final = (*_PROCESS, "cause")
_DEVICE: Final = (*_PROCESS, "device", "gpu")
_LATEST: Final = 64
"""The number of samples that are read of each process, enough to have one of each of its devices."""
_GAUGES: Final = (
    ("allocated", "allocated_bytes", "Memory in tensors, as PyTorch's allocator counts it, at the latest sample."),
    ("reserved", "reserved_bytes", "Memory that PyTorch's allocator holds of the card: in tensors and cached."),
    ("inactive_split", "split_bytes", "Free parts of segments that are partly in use."),
    ("step_peak_allocated", "peak_bytes", "Most that was allocated between the latest sample and the one before."),
    ("driver_used", "used_bytes", "Memory of the card in use by everybody, as the driver says."),
)


def metrics_of(folder: Path, causes: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the metrics of all processes that have written into a folder.

    Args:
        folder: of the run.
        causes: why memory ran out, by the name of the folder of evidence.
    """
    families = _Families()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            live = read_live(path, most=_LATEST, overview=False)
        except (LiveFileError, OSError):  # it is just being made, or removed
            continue
        facts = RunFacts.from_json(live.facts)
        if facts.pid:  # it has told its facts
            families.add(facts, {sample.device: sample for sample in live.recent}, causes)
    yield from families.all()


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self._now = {
            field: GaugeMetricFamily(f"ullage_{name}", text, labels=_DEVICE, unit="bytes")
            for name, field, text in _GAUGES
        }

        def family(kind: Any, name: str, text: str, labels: tuple[str, ...] = _DEVICE, **unit: str) -> Any:
            return kind(f"ullage_{name}", text, labels=labels, **unit)

        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        left = "What is left of the card for the process, beside what it has reserved, contexts and others."
        self._limit = family(gauge, "limit", "What the process may reserve of the card.", unit="bytes")
        self._headroom = family(gauge, "headroom", left, unit="bytes")
        self._peak = family(gauge, "peak_allocated", "Most that was allocated in the whole run.", unit="bytes")
        self._retries = family(counter, "alloc_retries", "Times that the allocator gave its cache back to go on.")
        self._steps = family(counter, "steps", "Steps that have ended.", _PROCESS)
        self._ooms = family(counter, "ooms", "Times that memory ran out.", _PROCESS)
        by_cause = "Times that memory ran out, by what ullage explain says."
        self._causes = family(counter, "ooms_by_cause", by_cause, _CAUSED)
        self._seconds = family(gauge, "step", "Of a step, the median of the latest.", _PROCESS, unit="seconds")
        roles = (*_PROCESS, "role")
        self._role = family(gauge, "role", "Memory by what it is for, over all devices.", roles, unit="bytes")
        growing = "1 where memory grows from step to step, or falls into pieces."
        self._growing = family(gauge, "growing", growing, _PROCESS)
        self._state = family(StateSetMetricFamily, "state", "What the process does.", _PROCESS)

    def add(self, facts: RunFacts, latest: dict[int, Sample], causes: Mapping[str, str]) -> None:
        """Add a process, with the latest sample of each of its devices, and why its memory ran out."""
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
    """Why memory ran out, of every folder of evidence that a run leaves, read while the run goes on.

    In a thread of its own: to read a snapshot takes a moment, and whoever waits for the command waits for signals too.
    """

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        """The causes that are known by now, by the name of the folder of evidence."""
        self._reading: threading.Thread | None = None

    def look(self, folder: Path) -> None:
        """Begin to read evidence that is new, unless some is being read."""
        if self._reading is not None and self._reading.is_alive():
            return
        new = [path for path in folder.glob("oom-*/snapshot.pickle") if path.parent.name not in self.known]
        if new:
            self._reading = threading.Thread(target=self._read, args=(new,), name="ullage-causes", daemon=True)
            self._reading.start()

    def finish(self, folder: Path) -> None:
        """Read what is left."""
        if self._reading is not None:
            self._reading.join()
        self.look(folder)
        if self._reading is not None:
            self._reading.join()

    def _read(self, snapshots: list[Path]) -> None:
        from ullage.explaining.fleet.rank_summary import summary_of  # numpy is not for runs whose memory never runs out

        for path in snapshots:
            try:
                self.known[path.parent.name] = summary_of(path).cause
            except (UllageError, OSError):
                self.known[path.parent.name] = _UNKNOWN_CAUSE
