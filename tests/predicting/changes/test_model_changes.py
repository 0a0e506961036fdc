"""Changes to the model and its activations on an emulated card: each lowers the peak as the same lines by hand do."""

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from tests.forked import client
from tests.predicting.changes.runs import bytes_of
from ullage.predicting.changes.all_changes import change_named
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.edit import Recipe, SourceEdit
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request

SCRIPTS = Path(__file__).parent / "scripts"


def peaks(script: str, gpu: str, **options: object) -> Prediction:
    request = replace(Request.of(SCRIPTS / script, gpu=gpu, steps=2), **options)  # type: ignore[arg-type]
    return client.call(predict, request)


@lru_cache
def diagnosed(script: str, gpu: str) -> Prediction:
    return peaks(script, gpu, diagnose=True)


def facts_of(script: str, gpu: str = "H100") -> TrainingFacts:
    facts = diagnosed(script, gpu).training
    assert facts is not None
    return facts


def by_hand(recipe: Recipe) -> dict[str, str]:
    """The user's files with a recipe's edits."""
    by_file: dict[str, list[SourceEdit]] = defaultdict(list)
    for edit in recipe.edits:
        by_file[edit.file].append(edit)
    return {file: edited(Path(file).read_text(), edits, file=file) for file, edits in by_file.items()}


CHANGES = [
    ("gpt.py", "H100", "checkpoint=first:2"),
    ("gpt.py", "H100", "fused_loss=1024"),
    ("gpt.py", "H100", "offload=on"),
    ("gpt.py", "T4", "autocast=float16"),
    ("resnet.py", "H100", "checkpoint=every_second"),
    ("unet.py", "H100", "checkpoint=all"),
    ("unet.py", "H100", "autocast=bfloat16"),
    ("gan.py", "H100", "offload=on"),
    ("gan.py", "H100", "autocast=bfloat16"),
    ("gpt2_transformers.py", "H100", "checkpoint=first:2"),
    ("gpt2_transformers.py", "H100", "sdpa=on"),
    ("llama_trainer.py", "H100", "checkpoint=all"),
    ("llama_trainer.py", "H100", "autocast=bfloat16"),
]


@pytest.mark.parametrize(("script", "gpu", "text"), CHANGES)
def test_a_change_lowers_the_peak_as_its_lines_do(script: str, gpu: str, text: str) -> None:
    change, setting = change_named(text)
    before = diagnosed(script, gpu)
    assert change.settings_for(facts_of(script, gpu)).settings
    made = peaks(script, gpu, changes=(text,))
    assert made.changes_made[text] > 0
    assert made.changes_refused == {}
    assert made.peak_allocated_bytes < before.peak_allocated_bytes
    written = by_hand(change.recipe_for(facts_of(script, gpu), setting))
    assert written
    assert bytes_of(peaks(script, gpu, edited=written)) == bytes_of(made)


@pytest.mark.parametrize("script", ["resnet.py", "gpt2_transformers.py"])
def test_gathering_changes_no_byte(script: str) -> None:
    assert bytes_of(diagnosed(script, "H100")) == bytes_of(peaks(script, "H100"))


def test_operations_are_counted_by_block() -> None:
    counted = peaks("gpt.py", "H100", diagnose=True, changes=("count_flops=on",)).training
    assert counted is not None
    assert counted.model is not None
    [blocks] = counted.model.block_lists
    width, tokens, length = 128, 8 * 256, 256
    products = 2 * tokens * 12 * width * width  # of a multiplication and an addition
    attention = 2 * 2 * 8 * length * length * width
    assert blocks.flops_by_block == [products + attention] * 4
    head = 2 * tokens * width * 1000
    assert counted.step_flops == pytest.approx(3 * (4 * products + head) + 3.5 * 4 * attention)


# ---- what cannot be made


def test_why_a_change_is_not_made_is_said_in_a_sentence() -> None:
    facts = facts_of("unet.py")
    why_not = {key: change_named(key)[0].settings_for(facts).why_not for key in ("sdpa", "fused_loss", "count_flops")}
    assert why_not["sdpa"] == "the model saves no softmax over all pairs of tokens for the backward pass"
    assert why_not["fused_loss"] == "the script computes no cross entropy of large logits"
    assert change_named("checkpoint")[0].settings_for(TrainingFacts()).why_not == (
        "no module was called in training mode with gradients"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("checkpoint=only:down.7", "is out of range"),
        ("checkpoint=half", "names no blocks"),
        ("sdpa=on", "is not a transformers model"),
        ("fused_loss=liger", "is not a transformers model"),
    ],
)
def test_a_change_that_cannot_be_made_leaves_the_run_as_it_is(text: str, why: str) -> None:
    made = peaks("unet.py", "H100", changes=(text,))
    assert why in made.changes_refused[text]
    assert bytes_of(made) == bytes_of(diagnosed("unet.py", "H100"))
