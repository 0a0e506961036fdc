"""docs/export.md names what there is."""

import os
import re
import time
from pathlib import Path

import pytest

from ullage.running.export.metrics import metrics_of
from ullage.running.export.table import CsvFile, SampleRow, SampleTable
from ullage.running.run_files.facts import RunCard, RunFacts, RunPeak
from ullage.running.run_files.live import LiveWriter, Sample

PAGE = (Path(__file__).parents[3] / "docs" / "export.md").read_text()


def _named(title: str) -> list[str]:
    """What stands in the first column of the table below a title, in backquotes."""
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0], re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of which everything is known."""
    writer = LiveWriter(tmp_path / "rank0-1.live")
    card = RunCard(index=0, name="Tesla T4", uuid="GPU-0", total_bytes=9, limit_bytes=8)
    facts = RunFacts(
        pid=os.getpid(), command=(), host="here", started=time.time(), told=2.0, rank=0, cards=(card,),
        step_seconds=0.1, ooms=1, evidence=("oom-1-1",),
        roles={"parameters": 1}, peaks=(RunPeak(bytes=9, device=0, step=1),),
    )  # fmt: skip
    writer.write_facts(facts.to_json())
    for step, peak in ((0, 5), (1, 4), (1, 7), (2, 3)):
        writer.add(Sample(step, 1.0, 0, 1, 2, peak, 3, 4, 5, 6))
    return tmp_path


def test_every_column_and_metric_is_on_the_page(run: Path) -> None:
    """In the order of the file, and none is named that is not there."""
    assert _named("Rows: `--csv`, `--parquet`") == list(SampleRow._fields)
    told = {sample.name for metric in metrics_of(run, {"oom-1-1": "leak"}) for sample in metric.samples}
    assert set(_named("An endpoint: `--prometheus`")) == {name for name in told if not name.endswith("_created")}


def test_the_peak_of_each_step_is_as_the_page_computes_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample within a step counts to that step."""
    SampleTable(run / "samples.csv", CsvFile, print).finish(run)
    monkeypatch.chdir(run)
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, dict[tuple[str, int], int]] = {}
    exec(code, names)
    assert names["peaks"] == {("0", 1): 5, ("0", 2): 7}
