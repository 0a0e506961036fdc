"""deploy/: a dashboard and alert rules name only what is exported, and a real Prometheus takes them.

Prometheus is looked for in ULLAGE_PROMETHEUS, or on the path (`make deploy` fetches Debian's).
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.core import Metric

from ullage.running.export.metrics import metrics_of
from ullage.running.export.prometheus import Endpoint
from ullage.running.run_files.facts import RunCard, RunFacts, RunPeak
from ullage.running.run_files.live import LiveWriter, Sample

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = DEPLOY / "ullage-alerts.yml"
DASHBOARD = json.loads((DEPLOY / "ullage-dashboard.json").read_text())
TARGET = {"job", "instance"}
"""The labels that Prometheus itself adds."""
CARD = RunCard(index=0, name="H100", uuid="GPU-0", total_bytes=80 << 30, limit_bytes=80 << 30)


def binary(name: str) -> str | None:
    """A program of Prometheus, where it is installed."""
    return shutil.which(name, path=os.environ.get("ULLAGE_PROMETHEUS", os.environ["PATH"]))


needs_prometheus = pytest.mark.skipif(binary("promtool") is None, reason="Prometheus is not here: make deploy")


def fill(folder: Path, **facts: object) -> LiveWriter:
    """Write a process of a run that has every metric."""
    writer = LiveWriter(folder / "rank3-1.live")
    told = RunFacts(
        pid=os.getpid(), command=(), host="here", started=time.time(), told=2.0, cards=(CARD,), rank=3, steps=7,
        step_seconds=0.25, roles={"parameters": 40}, growth=("leak",), ooms=1, evidence=("oom-1-1",),
        peaks=(RunPeak(bytes=900, device=0, step=1),),
    )  # fmt: skip
    writer.write_facts(asdict(told) | facts)
    writer.add(Sample(7, time.time(), 0, 100, 200, 300, 999, 10, 5, 0))
    return writer


def exported(folder: Path) -> dict[str, set[str]]:
    """The labels of every series that an endpoint answers with, by its name."""
    fill(folder)
    families: list[Metric] = list(metrics_of(folder, {"oom-1-1": "fragmented"}))
    found: dict[str, set[str]] = {}
    for family in families:
        assert family.samples, f"{family.name} is not filled: no test could see that it is used"
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[tuple[str, str]]:
    """All that is asked of Prometheus: by the rules, the dashboard's panels, and its variables."""
    rules = yaml.safe_load(RULES.read_text())
    found = [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]
    found += [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return found


def selectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield every metric of an expression, with the labels that it is selected by."""
    if isinstance(node, promql_parser.VectorSelector):
        assert node.name is not None
        yield node.name, {matcher.name for matcher in node.matchers.matchers}
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from selectors(node.vector_selector)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif not isinstance(node, promql_parser.NumberLiteral | promql_parser.StringLiteral):
        yield from selectors(node.expr)


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_only_what_is_exported_is_asked_for(tmp_path: Path, where: str, expression: str) -> None:
    there = exported(tmp_path)
    found = list(selectors(promql_parser.parse(expression)))
    assert found, where
    for name, labels in found:
        assert name in there, f"{where} asks for {name}"
        assert labels <= there[name] | TARGET, f"{where}: {name} has no {labels - there[name] - TARGET}"


def test_legends_and_texts_name_labels_that_are_there(tmp_path: Path) -> None:
    """{{rank}} of a series without a rank would stay empty, and {{ $labels.x }} too."""
    there = exported(tmp_path)
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            names = [name for name, _ in selectors(promql_parser.parse(target["expr"]))]
            labels = set().union(*(there[name] for name in names)) | TARGET
            for word in target["legendFormat"].split("{{")[1:]:
                assert word.partition("}}")[0] in labels, panel["title"]
    for rule in (rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]):
        labels = set().union(*(there[name] for name, _ in selectors(promql_parser.parse(rule["expr"])))) | TARGET
        for text in rule["annotations"].values():
            for word in text.split("$labels.")[1:]:
                assert word.partition(" ")[0] in labels, rule["alert"]


def test_everything_that_is_exported_is_shown_or_watched(tmp_path: Path) -> None:
    used = {name for _, expression in expressions() for name, _ in selectors(promql_parser.parse(expression))}
    assert {name for name in exported(tmp_path) if not name.endswith("_created")} == used


def test_the_dashboard_has_what_grafana_asks_of_one() -> None:
    """Its panels have numbers of their own, lie beside each other, and ask the data source that is chosen above."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "job", "instance", "rank"}
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}


@needs_prometheus
def test_promtool_takes_the_rules_and_their_tests() -> None:
    for words in (["check", "rules", RULES.name], ["check", "config", "prometheus.yml"],
                  ["test", "rules", "ullage-alerts-test.yml"]):  # fmt: skip
        done = subprocess.run([binary("promtool") or "", *words], cwd=DEPLOY, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_a_real_prometheus_scrapes_and_fires(tmp_path: Path) -> None:
    """A rank that has run out of memory: its series are there, every panel has an answer, and the alerts fire."""
    runs = tmp_path / "run"
    (runs / "oom-1-1").mkdir(parents=True)
    writer = fill(runs)
    shutil.copy(Path(__file__).parents[2] / "snapshots/oom.pickle.gz", runs / "oom-1-1" / "snapshot.pickle")
    endpoint = Endpoint("0")
    with _prometheus(tmp_path, endpoint.url) as ask:
        until = time.monotonic() + 900  # it is scraped every second: this is for a machine that has stopped
        step = 7
        while time.monotonic() < until:
            endpoint.update(runs)
            step += 1
            writer.add(Sample(step, time.time(), 0, 100, 200, 300, 999, 10, 5, 0))
            fired = {row["metric"]["alertname"] for row in ask('ALERTS{alertstate="firing"}')}
            if fired >= {"UllageOutOfMemory", "UllageOutOfMemoryCause"} and ask("rate(ullage_steps_total[5m]) > 0"):
                break
            time.sleep(1)
        assert fired >= {"UllageOutOfMemory", "UllageOutOfMemoryCause"}
        [cause] = ask("ullage_ooms_by_cause_total")
        assert cause["metric"]["cause"] == "truly_full"
        assert cause["metric"]["job"] == "training"
        for panel in DASHBOARD["panels"]:
            for target in panel["targets"]:
                expression = target["expr"]
                for name in ("job", "instance", "rank"):
                    expression = expression.replace(f"${name}", ".*")
                assert ask(expression), f"{panel['title']}: {expression}"
    endpoint.close()


@contextmanager
def _prometheus(folder: Path, url: str) -> Iterator[Any]:
    """Prometheus with the deployed files, but for the target and how often it looks."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [urllib.parse.urlsplit(url).netloc]}]
    config["rule_files"] = [str(RULES)]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    process = subprocess.Popen(
        [binary("prometheus") or "", *words, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(expression: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=900) as answer:
                data = json.loads(answer.read())
        except OSError:  # it is just starting
            return []
        found: list[dict[str, Any]] = data["data"]["result"]
        return found

    try:
        yield ask
    finally:
        process.terminate()
        process.wait()
