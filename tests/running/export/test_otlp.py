"""Metrics over OTLP, received by a server that reads OpenTelemetry's own protobuf."""

import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ullage.base.errors import UsageError
from ullage.running.export.metrics import metrics_of
from ullage.running.export.otlp import OtlpSender
from ullage.running.run_files.facts import RunCard, RunFacts
from ullage.running.run_files.live import LiveWriter, Sample

BEGAN = time.time()
CARD = RunCard(index=0, name="Tesla T4", uuid="GPU-0", total_bytes=16 << 30, limit_bytes=15 << 30)


class Collector(ThreadingHTTPServer):
    """A collector: what it has received, and the answer that it gives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.received: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.answer = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.headers["Content-Type"] == "application/x-protobuf"
        if self.server.answer == 200:
            self.server.received.append(ExportMetricsServiceRequest.FromString(body))
            self.server.paths.append(self.path)
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def _process(folder: Path) -> None:
    writer = LiveWriter(folder / "rank3-1.live")
    told = RunFacts(
        pid=os.getpid(), command=(), host="here", started=BEGAN, told=2.0, cards=(CARD,), rank=3, ooms=2,
        step_seconds=0.25, state="out of memory",
    )  # fmt: skip
    writer.write_facts(asdict(told))
    writer.add(Sample(7, time.time(), 0, 100, 200, 300, 999, 10, 5, 0))


def _points(request: ExportMetricsServiceRequest) -> dict[str, tuple[str, str, dict[str, str], float]]:
    """Of each metric its kind, unit, and the labels and value of its last point that is not 0."""
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    found = {}
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            value = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
            labels = {one.key: one.value.string_value for one in point.attributes}
            if value or metric.name not in found:
                found[metric.name] = (kind, metric.unit, labels, value)
    return found


def test_what_the_endpoint_answers_is_what_is_sent(collector: Collector, tmp_path: Path) -> None:
    _process(tmp_path)
    said: list[str] = []
    sender = OtlpSender(collector.url, said.append)
    sender.update(tmp_path)
    sender.finish(tmp_path)
    assert said == []
    assert set(collector.paths) == {"/v1/metrics"}
    points = _points(collector.received[-1])
    process = {"rank": "3", "pid": str(os.getpid())}
    device = process | {"device": "0", "gpu": "Tesla T4"}
    assert points["ullage_allocated_bytes"] == ("gauge", "By", device, 100)
    assert points["ullage_limit_bytes"] == ("gauge", "By", device, 15 << 30)
    assert points["ullage_ooms"] == ("sum", "1", process, 2)
    assert points["ullage_alloc_retries"] == ("sum", "1", device, 5)
    assert points["ullage_step_seconds"] == ("gauge", "s", process, 0.25)
    assert points["ullage_state"] == ("gauge", "1", process | {"ullage_state": "out of memory"}, 1)
    families = {family.name for family in metrics_of(tmp_path, {}) if family.samples}
    assert points.keys() == families
    for metric in collector.received[-1].resource_metrics[0].scope_metrics[0].metrics:
        if metric.WhichOneof("data") == "sum":
            assert metric.sum.is_monotonic
            assert {point.start_time_unix_nano for point in metric.sum.data_points} == {int(BEGAN * 1e9)}
    attributes = {
        one.key: one.value.string_value for one in collector.received[-1].resource_metrics[0].resource.attributes
    }
    assert attributes["service.name"] == "ullage"
    assert attributes["service.instance.id"] == tmp_path.name


def test_a_collector_that_does_not_answer_is_one_line(collector: Collector, tmp_path: Path) -> None:
    _process(tmp_path)
    said: list[str] = []
    collector.answer = 400
    sender = OtlpSender(collector.url, said.append)
    sender.update(tmp_path)
    sender.finish(tmp_path)
    [line] = said
    assert line.startswith(f"metrics cannot be sent to {collector.url}/v1/metrics (")


@pytest.mark.parametrize("text", ["", "localhost:4318", "ftp://here", "http://", "4318"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a URL such as http://localhost:4318"):
        OtlpSender(text, print)


def test_a_run_sends_and_its_streams_are_its_own(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(256, 256, device='cuda')\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for step in range(20):\n"
        "    model(torch.ones(8, 256, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    run = [sys.executable, "-m", "ullage", "run", "--gpu", "T4", "--quiet", "--otlp", collector.url, "train.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    points = _points(collector.received[-1])
    assert points["ullage_steps"][3] == 20
    assert points["ullage_peak_allocated_bytes"][3] > 0


def test_a_collector_that_is_not_there_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(8, device='cuda')\n")
    run = [sys.executable, "-m", "ullage", "run", "--gpu", "T4", "--quiet", "--otlp", "http://127.0.0.1:9", "train.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1
    assert "metrics cannot be sent to http://127.0.0.1:9/v1/metrics" in done.stderr
