"""Small training scripts, predicted as they are and with a change; and what the same script computes on the CPU."""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from tests.forked import client
from ullage.predicting.changes.training.facts import CodePlace, LoopFacts, OptimizerFacts, TrainingFacts
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request

GPU = "RTX 3060"
Numbers = NDArray[numpy.float64]
ON_CPU = """
import json, sys
import numpy
import ullage
ullage.emulate("T4")
import torch
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
# Where a script asks for the card it gets the CPU.
CHANGES = json.loads(sys.argv[1])
if CHANGES:
    from ullage.predicting.changes.all_changes import install
    LOOP = install(CHANGES)
source = open(sys.argv[2]).read().replace('"cuda"', '"cpu"')
names = {"__name__": "__main__", "__file__": sys.argv[2]}
torch.manual_seed(0)
exec(compile(source, sys.argv[2], "exec"), names)
numpy.savez(sys.argv[3], *(value.double().flatten().numpy() for value in names["told"]))
"""


def peaks(
    script: Path,
    *changes: str,
    edited: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
    diagnose: bool = False,
    **options: Any,
) -> Prediction:
    """Predict a script with changes made from outside, or with edited texts in place of files."""
    request = Request.of(script, arguments, gpu=GPU, **{"steps": 3, **options})
    return client.call(predict, replace(request, changes=changes, edited=edited or {}, diagnose=diagnose))


def bytes_of(prediction: Prediction) -> tuple[int, int]:
    """The peaks that a change and the same lines by hand have to share."""
    return prediction.peak_allocated_bytes, prediction.peak_reserved_bytes


def told_on_cpu(script: Path, *changes: str) -> list[Numbers]:
    """Run a script on the CPU in float64 and return the tensors of its `told`, which it names itself."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "told.npz"
        done = client.run([sys.executable, "-c", ON_CPU, json.dumps(changes), script, file], timeout=900)
        assert done.returncode == 0, done.stderr
        return numbers_in(file)


def numbers_in(file: Path) -> list[Numbers]:
    """The tensors that `ON_CPU` has written."""
    with numpy.load(file) as told:
        return [told[name] for name in told.files]


def difference(one: list[Numbers], other: list[Numbers]) -> float:
    """The largest difference between two lists of tensors; not a number where one of them has such."""
    assert [each.shape for each in one] == [each.shape for each in other]
    return float(numpy.max([abs(first - second).max() for first, second in zip(one, other, strict=True)]))


def line_of(script: Path, text: str) -> int:
    """The number of the one line of a script that holds a text."""
    [number] = [number for number, line in enumerate(script.read_text().splitlines(), 1) if text in line]
    return number


def place(script: Path, text: str, function: str = "<module>") -> CodePlace:
    """The place of the one line of a script that holds a text."""
    return CodePlace(file=str(script), line=line_of(script, text), function=function)


def facts_of(script: Path, *, optimizer: str = "AdamW", items: int | None = 8, **loop: Any) -> TrainingFacts:
    """What a run would tell of a script of ours."""
    made = f"{optimizer}("
    return TrainingFacts(
        loop=LoopFacts(**loop),
        optimizers=[
            OptimizerFacts(
                kind=optimizer,
                module=f"torch.optim.{optimizer.lower()}",
                names=[],
                made=place(script, made) if made in script.read_text() else None,
            )
        ],
        items=items,
    )
