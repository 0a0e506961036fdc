"""An endpoint for Prometheus: the memory of a run's processes, read from their live files at every scrape.

Names and types follow OpenMetrics. The present memory of a process is exported while it runs; its counters, its peak
and its state until the run ends. The recorded processes do not notice a scrape.
"""

import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, StateSetMetricFamily
from prometheus_client.registry import Collector

from ullage._errors import UsageError
from ullage.diagnosis.process import is_alive
from ullage.run_files.facts import RunFacts
from ullage.run_files.live import SUFFIX, LiveFileError, Sample, read_live

_LOCAL: Final = "127.0.0.1"
_STATES: Final = ("runs", "ended", "failed", "out of memory", "gone")
_PROCESS: Final = ("rank", "pid")
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


class Endpoint:
    """Answers scrapes. It takes its port when it is made, and answers from the first `update` on."""

    def __init__(self, address: str) -> None:
        """Take a port.

        Args:
            address: a port, which only this machine can reach; or an address and a port, such as "0.0.0.0:9400". Port 0
                is any free port.

        Raises:
            UsageError: it is not an address, or the port is taken.
        """
        host, port = _address_of(address)
        self._folder: Path | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_RunCollector(self))
        try:
            self._server = _server_kind(host)((host, port), _Quiet)
        except OSError as error:
            raise UsageError(
                f"--prometheus {address} cannot be listened on: {error.strerror or error}; expected an address of this "
                "machine and a free port (0: any)"
            ) from None
        self._server.set_app(make_wsgi_app(registry))

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}/metrics" if ":" in str(host) else f"http://{host!s}:{port}/metrics"

    def update(self, folder: Path) -> None:
        """Answer scrapes from now on, with the present content of a folder."""
        if self._folder is None:
            self._folder = folder
            threading.Thread(target=self._server.serve_forever, name="ullage-prometheus", daemon=True).start()

    def finish(self, folder: Path) -> None:
        """Do nothing: the endpoint stays until this process ends, while it explains what the run has left."""

    def close(self) -> None:
        """Free the port."""
        if self._folder is not None:
            self._server.shutdown()
        self._server.server_close()

    def metrics(self) -> Iterator[Metric]:
        """Yield all metrics with their present values."""
        families = _Families()
        for path in sorted(self._folder.glob(f"*{SUFFIX}")) if self._folder is not None else ():
            try:
                live = read_live(path, most=_LATEST, overview=False)
            except (LiveFileError, OSError):  # it is just being made, or removed
                continue
            facts = RunFacts.from_json(live.facts)
            if facts.pid:  # it has told its facts
                families.add(facts, {sample.device: sample for sample in live.recent})
        yield from families.all()


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self._now = {
            field: GaugeMetricFamily(f"ullage_{name}", text, labels=_DEVICE, unit="bytes")
            for name, field, text in _GAUGES
        }
        self._limit = GaugeMetricFamily(
            "ullage_limit", "What the process may reserve of the card.", labels=_DEVICE, unit="bytes"
        )
        self._peak = GaugeMetricFamily(
            "ullage_peak_allocated", "Most that was allocated in the whole run.", labels=_DEVICE, unit="bytes"
        )
        self._retries = CounterMetricFamily(
            "ullage_alloc_retries", "Times that the allocator gave its cache back to go on.", labels=_DEVICE
        )
        self._steps = CounterMetricFamily("ullage_steps", "Steps that have ended.", labels=_PROCESS)
        self._ooms = CounterMetricFamily("ullage_ooms", "Times that memory ran out.", labels=_PROCESS)
        self._seconds = GaugeMetricFamily(
            "ullage_step", "Of a step, the median of the latest.", labels=_PROCESS, unit="seconds"
        )
        self._role = GaugeMetricFamily(
            "ullage_role", "Memory by what it is for, over all devices.", labels=(*_PROCESS, "role"), unit="bytes"
        )
        self._growing = GaugeMetricFamily(
            "ullage_growing", "1 where memory grows from step to step, or falls into pieces.", labels=_PROCESS
        )
        self._state = StateSetMetricFamily("ullage_state", "What the process does.", labels=_PROCESS)

    def add(self, facts: RunFacts, latest: dict[int, Sample]) -> None:
        """Add a process, with the latest sample of each of its devices."""
        process = ("" if facts.rank is None else str(facts.rank), str(facts.pid))
        is_here = facts.state not in ("ended", "failed") and is_alive(facts.pid, facts.started or None)
        state = facts.state if is_here or facts.state != "runs" else "gone"
        self._state.add_metric(process, {one: one == state for one in _STATES})
        steps = max((facts.steps, *(sample.step for sample in latest.values())))
        self._steps.add_metric(process, steps, created=facts.started)
        self._ooms.add_metric(process, facts.ooms, created=facts.started)
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
        if is_here:
            if facts.step_seconds is not None:
                self._seconds.add_metric(process, facts.step_seconds)
            for role, size in facts.roles.items():
                self._role.add_metric((*process, role), size)

    def all(self) -> Iterator[Metric]:
        yield from self._now.values()
        yield from (self._limit, self._peak, self._role, self._retries, self._steps, self._seconds, self._ooms)
        yield from (self._growing, self._state)


class _RunCollector(Collector):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def collect(self) -> Iterator[Metric]:
        return self._endpoint.metrics()


class _MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Take the port, without looking up this machine's name in the network, as `http.server` does."""
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    timeout = 10
    """The number of seconds that a client may take."""

    def log_message(self, *_: Any) -> None:
        """Log nothing: standard error belongs to the script."""


def _server_kind(host: str) -> type[_MetricsServer]:
    class Server(_MetricsServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore clients that have disconnected."""

    return Server


def _address_of(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else _LOCAL
    if not port.isdecimal() or int(port) > 65_535 or not host:
        raise UsageError(f"--prometheus {text} is not an address; expected a port, such as 9400, or ADDRESS:PORT")
    return host, int(port)
