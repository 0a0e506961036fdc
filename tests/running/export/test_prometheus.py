"""Rules of the endpoint: real scrapes over HTTP, read by the parser of Prometheus' own client."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from ullage.base.errors import UsageError
from ullage.running.export.prometheus import Endpoint
from ullage.running.run_files.facts import RunCard, RunFacts, RunPeak
from ullage.running.run_files.live import LiveWriter, Sample

BEGAN = time.time()
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
CARD = RunCard(index=0, name="Tesla T4", uuid="GPU-0", total_bytes=16 << 30, limit_bytes=15 << 30)
Values = dict[tuple[str, ...], float]


def _scrape(url: str) -> tuple[dict[str, str], Values]:
    """Return the type of each family, and each value by its name and labels ("device=0")."""
    request = urllib.request.Request(url, headers={"Accept": OPEN_METRICS})
    with urllib.request.urlopen(request, timeout=900) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        families = list(open_metrics(answer.read().decode()))
    values: Values = {}
    for family in families:
        assert family.documentation.endswith(".")
        assert family.unit in ("", "bytes", "seconds")
        for sample in family.samples:
            key = (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))
            assert key not in values  # a name with the same labels twice would make the whole scrape fail
            values[key] = sample.value
    return {family.name: family.type for family in families}, values


def _one(values: Values, name: str, *labels: str) -> float:
    """The only value of a name, with these labels among its own."""
    [found] = [value for key, value in values.items() if key[0] == name and set(labels) <= set(key)]
    return found


def _process(folder: Path, name: str, **facts: object) -> LiveWriter:
    writer = LiveWriter(folder / f"{name}.live")
    told = RunFacts(pid=os.getpid(), command=(), host="here", started=BEGAN, told=2.0, cards=(CARD,))
    writer.write_facts(told.to_json() | facts)
    return writer


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """One of a folder without processes."""
    endpoint = Endpoint("0")
    endpoint.update(tmp_path)
    yield endpoint
    endpoint.close()


def test_metrics_are_what_the_process_shows(endpoint: Endpoint, tmp_path: Path) -> None:
    """At the moment of each scrape, under names of OpenMetrics; what is not known is left out."""
    assert _scrape(endpoint.url)[1] == {}
    writer = _process(
        tmp_path,
        "rank3-1",
        rank=3,
        roles={"parameters": 40},
        growth=["leak"],
        ooms=2,
        peaks=[asdict(RunPeak(bytes=900, device=0, step=1))],
        step_seconds=0.25,
    )
    writer.add(Sample(7, 1.0, 0, 100, 200, 300, -1, 10, 5, 0))
    writer.add(Sample(7, 1.0, 1, 101, 201, 301, 999, 11, 6, 0))
    kinds, values = _scrape(endpoint.url)
    device = ("device=0", "gpu=Tesla T4", f"pid={os.getpid()}", "rank=3")
    assert kinds["ullage_allocated_bytes"] == kinds["ullage_peak_allocated_bytes"] == "gauge"
    assert kinds["ullage_steps"] == kinds["ullage_alloc_retries"] == kinds["ullage_ooms"] == "counter"
    expected = {
        "ullage_allocated_bytes": 100,
        "ullage_reserved_bytes": 200,
        "ullage_step_peak_allocated_bytes": 300,
        "ullage_peak_allocated_bytes": 900,
        "ullage_inactive_split_bytes": 10,
        "ullage_alloc_retries_total": 5,
        "ullage_limit_bytes": 15 << 30,
    }
    assert {name: values[name, *device] for name in expected} == expected
    assert [key[1] for key in values if key[0] == "ullage_driver_used_bytes"] == ["device=1"]
    assert _one(values, "ullage_driver_used_bytes", "device=1") == 999
    assert _one(values, "ullage_steps_total", "rank=3") == 7
    assert _one(values, "ullage_steps_created", "rank=3") == pytest.approx(BEGAN)
    assert _one(values, "ullage_ooms_total") == 2
    assert _one(values, "ullage_growing") == 1
    assert _one(values, "ullage_role_bytes", "role=parameters") == 40
    assert _one(values, "ullage_step_seconds") == 0.25
    assert _one(values, "ullage_state", "ullage_state=runs") == 1
    writer.add(Sample(8, 1.0, 0, 111, 200, 300, -1, 10, 5, 0))
    _, values = _scrape(endpoint.url)
    assert _one(values, "ullage_allocated_bytes", "device=0") == 111
    assert _one(values, "ullage_steps_total") == 8


@pytest.mark.parametrize(
    ("told", "changes", "state"),
    [
        ("ended", {}, "ended"),
        ("failed", {}, "failed"),
        ("runs", {"pid": 2**22 + 1}, "gone"),
        ("runs", {"started": 1000.0}, "gone"),  # the process that has the number by now began later
    ],
)
def test_what_has_ended_holds_nothing_and_stays_counted(
    endpoint: Endpoint, tmp_path: Path, told: str, changes: dict[str, object], state: str
) -> None:
    """So that a rule on its out-of-memory errors sees them, although the process is gone by the next scrape."""
    writer = _process(tmp_path, "rank0-1", state=told, ooms=1, **changes)
    writer.add(Sample(7, 1.0, 0, 100, 200, 300, 5, 10, 5, 0))
    _, values = _scrape(endpoint.url)
    names = {key[0] for key in values}
    assert names.isdisjoint({"ullage_allocated_bytes", "ullage_reserved_bytes", "ullage_driver_used_bytes"})
    assert _one(values, "ullage_ooms_total") == 1
    assert _one(values, "ullage_peak_allocated_bytes") == 300
    assert {key for key, value in values.items() if key[0] == "ullage_state" and value} == {
        ("ullage_state", f"pid={changes.get('pid', os.getpid())}", "rank=", f"ullage_state={state}")
    }


def test_many_processes_and_an_older_prometheus(endpoint: Endpoint, tmp_path: Path) -> None:
    """Eight ranks are told apart, and who asks for the older text format gets that."""
    for rank in range(8):
        _process(tmp_path, f"rank{rank}-1", rank=rank).add(Sample(1, 1.0, 0, rank, 2, 3, -1, 4, 5, 6))
    (tmp_path / "process-9.live").write_bytes(b"just being made")
    _, values = _scrape(endpoint.url)
    assert sorted(value for key, value in values.items() if key[0] == "ullage_allocated_bytes") == list(range(8))
    with urllib.request.urlopen(endpoint.url, timeout=900) as answer:
        names = {family.name for family in plain_text(answer.read().decode())}
    assert "ullage_allocated_bytes" in names


def test_a_port_is_asked_for_in_words_that_are_checked() -> None:
    """What is no address, what is taken and what is another machine's is refused with a sentence."""
    for text in ("", "port", "-1", "65536", ":9400", "here:"):
        with pytest.raises(UsageError, match=r"is not an address; expected a port, such as 9400, or ADDRESS:PORT"):
            Endpoint(text)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^--prometheus {port} cannot be .*: {os.strerror(errno.EADDRINUSE)}; "):
            Endpoint(str(port))
    with pytest.raises(UsageError, match="cannot be used"):
        Endpoint("192.0.2.1:0")
    endpoint = Endpoint("127.0.0.2:0")
    endpoint.close()
    assert endpoint.url.startswith("http://127.0.0.2:")


SCRIPT = """
import sys, torch
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    model(torch.ones(8, 256, device="cuda")).sum().backward()
    optimizer.step()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_run_is_scraped_and_written(tmp_path: Path) -> None:
    """The command has its own streams and exit code; each step is a row, in CSV and in Parquet alike."""
    (tmp_path / "train.py").write_text(SCRIPT)
    run = [sys.executable, "-m", "ullage", "run", "--gpu", "T4", "--quiet"]
    options = ["--prometheus", "0", "--csv", "run.csv", "--parquet", "run.parquet"]
    process = subprocess.Popen(
        [*run, *options, "train.py"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    url = process.stderr.readline().removeprefix("ullage: metrics for Prometheus are available at ").strip()
    assert process.stdout.readline() == "ready\n"
    _, values = _scrape(url)
    assert _one(values, "ullage_steps_total", "rank=") == 20
    assert _one(values, "ullage_reserved_bytes", "device=0", "gpu=Tesla T4") >= 2 << 20
    out, err = process.communicate("", timeout=900)
    assert (process.returncode, out, err) == (0, "", "")
    table = pyarrow.parquet.read_table(tmp_path / "run.parquet").to_pylist()
    assert [row["step"] for row in table if row["is_step_end"]] == list(range(1, 21))
    lines = (tmp_path / "run.csv").read_text().splitlines()
    assert len(lines) == 1 + len(table)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["run.csv", "run.parquet", "train.py"]


def test_a_port_that_is_taken_is_said_before_the_command_runs(tmp_path: Path) -> None:
    """With exit code 2, and no folder is left."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "ullage", "run", "--prometheus", port, "sh", "-c", "echo ran"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: --prometheus {port} cannot be used: ")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif("ULLAGE_SLOW" not in os.environ, reason="two more runs")
@pytest.mark.parametrize(("number", "is_whole"), [(signal.SIGTERM, True), (signal.SIGKILL, False)])
def test_what_a_signal_leaves(tmp_path: Path, number: signal.Signals, is_whole: bool) -> None:
    """CSV has whole lines whatever ends it; Parquet is complete unless `ullage run` itself is killed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--csv", "run.csv", "--parquet", "run.parquet", "--folder", "kept", "--prometheus", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ullage", "run", "--gpu", "T4", *options, "train.py"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    path = tmp_path / "run.csv"
    while not path.exists() or path.read_text().count("true") < 20:  # it is written once a second
        assert process.poll() is None
    process.send_signal(number)
    process.communicate()
    assert process.returncode == -number
    text = (tmp_path / "run.csv").read_text()
    assert text.endswith("\n")
    assert {line.count(",") for line in text.splitlines()} == {14}
    assert (tmp_path / "run.parquet").exists() == is_whole
    if is_whole:
        assert pyarrow.parquet.read_table(tmp_path / "run.parquet").num_rows == text.count("\n") - 1
