"""Sends metrics to an OpenTelemetry collector every few seconds (OTLP)."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as SentMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric

from ullage.base.errors import UsageError
from ullage.running.export.metrics import OomCauses, metrics_of

PERIOD_SECONDS: Final = 10.0
_PATH: Final = "/v1/metrics"
_UNITS: Final = {"bytes": "By", "seconds": "s", "": "1"}
# The time limit for sending the last samples after the user's command has ended, in seconds.
_LAST_SECONDS: Final = 5.0


class OtlpSender:
    """Sends metrics to an OpenTelemetry collector. If the collector does not respond, the user gets one message."""

    def __init__(self, url: str, notify: Callable[[str], Any]) -> None:
        """Check the URL without sending anything.

        Args:
            url: the URL of the collector, such as http://localhost:4318; /v1/metrics is appended to a URL without a
                path.
            notify: called with a sentence for the user.

        Raises:
            UsageError: the URL is not that of an HTTP server.
        """
        self.url = _endpoint_of(url)
        self._notify = notify
        self._causes = OomCauses()
        self._folder: Path | None = None
        self._is_over = threading.Event()
        self._has_told = False
        self._exporter = OTLPMetricExporter(endpoint=self.url, timeout=_LAST_SECONDS)
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False  # standard error belongs to the user's script
        self._thread = threading.Thread(target=self._send_always, name="ullage-otlp", daemon=True)

    def update(self, folder: Path) -> None:
        """Start to send the metrics of a run. `folder` is the folder of the run."""
        self._causes.look(folder)
        if self._folder is None:
            self._folder = folder
            self._thread.start()

    def finish(self, folder: Path) -> None:
        """Send the final metrics of the run."""
        self._is_over.set()
        if self._folder is not None:
            self._thread.join(_LAST_SECONDS)
        self._folder = folder
        self._causes.finish(folder)
        self._send()
        self._exporter.shutdown()

    def _send_always(self) -> None:
        while not self._is_over.is_set():
            self._send()
            self._is_over.wait(PERIOD_SECONDS)

    def _send(self) -> None:
        assert self._folder is not None
        data = data_of(list(metrics_of(self._folder, self._causes.known)), run=self._folder.name)
        try:
            is_sent = self._exporter.export(data) is MetricExportResult.SUCCESS
            why = "the collector did not accept them"
        except Exception as error:  # any error of requests or protobuf must not affect the run
            is_sent, why = False, f"{type(error).__name__}: {error}"
        if not is_sent and not self._has_told:
            self._has_told = True
            self._notify(
                f"metrics cannot be sent to {self.url} ({why}); the run continues, and later metrics will be sent "
                "if possible"
            )


def data_of(families: list[Metric], *, run: str) -> MetricsData:
    """Convert Prometheus metrics into OTLP metrics.

    Args:
        families: metric families of prometheus_client.
        run: the name of the run. It distinguishes the run from others on the same machine.
    """
    now = time.time_ns()
    sent = [metric for family in families if family.samples for metric in _converted(family, now)]
    resource = Resource.create({"service.name": "ullage", "service.instance.id": run})
    scope = ScopeMetrics(scope=InstrumentationScope("ullage"), metrics=sent, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _converted(family: Metric, now: int) -> Iterator[SentMetric]:
    # the creation time of a counter becomes the start time of its data points
    is_counter = family.type == "counter"
    created = {
        tuple(sorted(sample.labels.items())): int(sample.value * 1e9)
        for sample in family.samples
        if sample.name.endswith("_created")
    }
    points = [
        NumberDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=created.get(tuple(sorted(sample.labels.items())), now) if is_counter else 0,
            time_unix_nano=now,
            value=sample.value,
        )
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    yield SentMetric(
        name=family.name,
        description=family.documentation,
        unit=_UNITS[family.unit],
        data=Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points),
    )


def _endpoint_of(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--otlp {text} is not the URL of a collector; expected a URL such as http://localhost:4318")
    return text if parts.path.strip("/") else text.rstrip("/") + _PATH
