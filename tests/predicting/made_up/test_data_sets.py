"""Generated rows with the columns that a script names or reads: their peaks are those of real rows of the same size."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.commands import Predict, environment_of

from .conftest import SCRIPTS, offline

REASON = "datasets is not in the test environment: give its folder in PYTHONPATH, as `make made-up` does"
pytest.importorskip("datasets", reason=REASON)

PAIRS = "columns=sentence1:text,sentence2:text,label:int:3,rows=8,length=20"
STEPS = ("peak_allocated_bytes", "peak_reserved_bytes", "steps", "roles")


@pytest.mark.parametrize(
    ("arguments", "data"),
    [
        (("hub", "someone/pairs"), PAIRS),
        (("asked", "someone/pairs"), "text:length=20,rows=8,classes=3"),
        (("hub", "glue", "mnli"), "text:length=20,rows=8,classes=3,column=sentence1"),
    ],
    ids=["named", "read", "one named"],
)
def test_the_peaks_are_those_of_real_rows(
    predict: Predict, workplace: Path, arguments: tuple[str, ...], data: str
) -> None:
    code = (
        "import ullage, runpy, sys; ullage.emulate('T4'); sys.argv = ['', 'real', '8', '20']; "
        f"runpy.run_path({str(SCRIPTS / 'saves_rows.py')!r})"
    )
    environment = environment_of(workplace, **offline(workplace))
    subprocess.run([sys.executable, "-c", code], cwd=workplace, env=environment, check=True)
    options = ("--json", "--random-weights", "--made-up-data", data)
    real = predict("trains_on_rows.py", "folder", "real", options=options)
    made = predict("trains_on_rows.py", *arguments, options=options)
    assert (real.code, made.code) == (0, 0), real.error + made.error
    assert {name: made.json[name] for name in STEPS} == {name: real.json[name] for name in STEPS}
    assert "inputs: 4 x 40 (int64), the largest input of a forward pass" in made.json["notes"]


def test_columns_are_added_where_the_script_reads_them(predict: Predict) -> None:
    ended = predict("reads_columns.py", options=("--json", "--made-up-data", "text:length=20,rows=8"))
    assert ended.code == 0, ended.error
    notes = " ".join(ended.json["notes"])
    for column in ("labels:int:2", "premise:text", "score:float", "ner_tags:list:int:2", "tokens:list:text:1"):
        assert f"generated: the column {column}, because the script reads it" in notes


def test_added_labels_have_the_classes_of_the_labels_next_to_them(predict: Predict) -> None:
    """Not the ten classes of images."""
    ended = predict("reads_columns.py", "labels", options=("--json", "--made-up-data", "image:32,rows=8"))
    assert ended.code == 0, ended.error
    assert "generated: the column labels:int:2, because the script reads it" in ended.json["notes"]


def test_streamed_rows_have_the_named_columns(predict: Predict) -> None:
    ended = predict("streams_rows.py", options=("--json", "--made-up-data", PAIRS))
    assert ended.code == 0, ended.error
    failed = predict("streams_rows.py", options=("--json", "--made-up-data", "text:length=20"))
    assert failed.code == 3
    assert "--made-up-data columns=sentence1:text,label:int:2 names the columns of streamed rows)" in failed.error
