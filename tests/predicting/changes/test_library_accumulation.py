"""Accumulation by the arguments of transformers, Lightning and Accelerate: bytes of the written lines, same values."""

from functools import lru_cache
from pathlib import Path

import pytest

from tests.predicting.changes.runs import bytes_of, difference, peaks, told_on_cpu
from ullage.predicting.changes.accumulation.accumulate import CHANGE
from ullage.predicting.changes.training.facts import CodePlace, LibraryCall, LoopFacts, TrainingFacts
from ullage.predicting.editing.apply import edited
from ullage.predicting.prediction.data.prediction import Prediction

SCRIPTS = Path(__file__).parent / "scripts"
PARSED = (
    *("--output_dir", "unused", "--per_device_train_batch_size", "8", "--max_steps", "3", "--report_to", "none"),
    *("--save_strategy", "no"),
)
BY_ARGUMENTS = {
    "accumulate_trainer.py": ("per_device_train_batch_size=SIZE // 4,", "gradient_accumulation_steps=4,"),
    "accumulate_lightning.py": ("batch_size=1024", "accumulate_grad_batches=4,"),
    "accumulate_accumulated.py": ("batch_size=1024", "gradient_accumulation_steps=4)"),
}


@lru_cache
def diagnosed(name: str) -> Prediction:
    return peaks(SCRIPTS / name, diagnose=True)


def written(name: str) -> str:
    facts = diagnosed(name).training
    assert facts is not None
    assert "4" in CHANGE.settings_for(facts).settings
    return edited((SCRIPTS / name).read_text(), CHANGE.recipe_for(facts, "4").edits)


@pytest.mark.parametrize("name", BY_ARGUMENTS)
def test_an_argument_given_from_outside_is_the_written_one_to_the_byte(name: str) -> None:
    text = written(name)
    assert all(each in text for each in BY_ARGUMENTS[name])
    made = peaks(SCRIPTS / name, "accumulate=4")
    assert made.changes_made["accumulate=4"] > 0
    assert made.changes_refused == {}
    assert bytes_of(made) == bytes_of(peaks(SCRIPTS / name, edited={str(SCRIPTS / name): text}))
    assert bytes_of(made) < bytes_of(diagnosed(name))


@pytest.mark.parametrize("name", [*BY_ARGUMENTS, "accumulate_accelerate.py"])
def test_steps_are_the_same(name: str, tmp_path: Path) -> None:
    """Three clipped steps, made from outside and as written."""
    script = tmp_path / name
    script.write_text(written(name))
    whole = told_on_cpu(SCRIPTS / name)
    assert difference(whole, told_on_cpu(SCRIPTS / name, "accumulate=4")) < 1e-12
    assert difference(whole, told_on_cpu(script)) < 1e-12


def test_arguments_that_are_parsed_are_written_on_the_command_line() -> None:
    script = SCRIPTS / "accumulate_parsed.py"
    facts = peaks(script, diagnose=True, arguments=PARSED).training
    assert facts is not None
    recipe = CHANGE.recipe_for(facts, "4")
    assert recipe.arguments == ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4")
    made = peaks(script, "accumulate=4", arguments=PARSED)
    assert bytes_of(made) == bytes_of(peaks(script, arguments=(*PARSED, *recipe.arguments)))


def facts_of(script: Path, text: str, library: str, function: str) -> TrainingFacts:
    script.write_text(text)
    call = LibraryCall(function=function, place=CodePlace(file=str(script), line=1, function="<module>"))
    return TrainingFacts(items=8, loop=LoopFacts(library=library, library_call=call))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("TrainingArguments('out')", ()),
        ("TrainingArguments(output_dir='out')", ("per_device_train_batch_size=2", "gradient_accumulation_steps=4")),
        ("TrainingArguments(**given)", ()),
        ("TrainingArguments(per_device_train_batch_size=6)", ()),
        (
            "TrainingArguments(per_device_train_batch_size=a + b, gradient_accumulation_steps=n)",
            ("per_device_train_batch_size=(a + b) // 4", "gradient_accumulation_steps=n * 4"),
        ),
    ],
)
def test_which_calls_of_transformers_are_certain(tmp_path: Path, text: str, after: tuple[str, ...]) -> None:
    facts = facts_of(tmp_path / "a.py", f"{text}\n", "transformers", "TrainingArguments")
    edits = CHANGE.recipe_for(facts, "4").edits
    assert tuple(f"{edit.keyword}={edit.value}" for edit in edits) == after  # type: ignore[union-attr]


def test_a_loader_whose_batch_is_not_said_makes_lightning_uncertain(tmp_path: Path) -> None:
    text = "Trainer()\nDataLoader(data, batch_size=8)\nDataLoader(more, 8)\n"
    assert CHANGE.recipe_for(facts_of(tmp_path / "a.py", text, "lightning", "Trainer"), "4").edits == ()
