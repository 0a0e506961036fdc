"""What a run shows of itself that is avoidable: found with its holder, its gain to the byte, and nothing invented."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.forked import client
from tests.predicting.prediction.avoidable.corpora import CORPUS, marked_lines, mended, names_in
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.predict import Request, predict

SLOW = "ULLAGE_SLOW" in os.environ
HELD = {
    "outputs_of_model": "outputs['logits']",
    "list_of_hidden": "hidden_states[*]",
    "attribute_of_trainer": "self.last_features",
    "exception_kept": "failures",
    "losses_with_graphs": "history[*]",
    "bar_with_postfix": "bar.postfix['scores']",
    "batches_kept": "previous",
    "closure_of_hook": "features",
    "dict_of_metrics": "metrics['scores']",
    "garbage_of_cycle": "a reference cycle",
    "gradients_copied": "copies[*]",
    "last_few": "queue[*]",
    "micro_batches": "scores",
    "predictions": "predictions[*]",
    "tuple_of_outputs": "output.hidden_states[*]",
}
"""For each script that holds something over: a name that holds it, or how that begins."""
KINDS = {
    "lists_of_optimizer": AvoidableKind.OPTIMIZER_TEMPORARIES,
    "gradients_until_loss": AvoidableKind.GRADIENTS_KEPT_ZEROED,
    "gradients_set_to_zero": AvoidableKind.GRADIENTS_KEPT_ZEROED,
    "gradients_in_two_types": AvoidableKind.GRADIENTS_BESIDE_COPIES,
    "copy_of_weights": AvoidableKind.SECOND_COPY_OF_WEIGHTS,
    "scores_of_vocabulary": AvoidableKind.LOGITS_IN_FP32,
    "scores_of_attention": AvoidableKind.ATTENTION_SCORES,
    "nested_padding": AvoidableKind.NESTED_PADDING,
}
MEND_TAKES = {"lists_of_optimizer": 16 * 512}
"""The bytes that the mended script takes in turn: fused optimizers count steps on the card, a block a parameter."""
ALWAYS_HELD, ALWAYS_CLEAN, ALWAYS_KINDS = 2, 2, 1
"""So many of each run always, the others with ULLAGE_SLOW."""


def request(script: Path, *, diagnose: bool) -> Request:
    return replace(Request.of(script, gpu="A100", steps=3), diagnose=diagnose)


@cache
def diagnosed(script: Path) -> Prediction:
    return client.call(predict, request(script, diagnose=True))


def mended_run(script: Path, folder: Path) -> Prediction:
    path = folder / script.name
    path.write_text(mended(script.read_text()))
    return client.call(predict, request(path, diagnose=False))


def rows(prediction: Prediction, kind: AvoidableKind) -> list[Avoidable]:
    return [row for row in prediction.avoidable if row.kind is kind]


def assert_adds_up(prediction: Prediction) -> None:
    """No more than the peak, and nothing of less than 1 % of it."""
    inside = [row for row in prediction.avoidable if row.kind is not AvoidableKind.FRAGMENTATION]
    assert sum(row.peak_bytes for row in inside) <= prediction.peak_allocated_bytes
    assert all(row.peak_bytes >= prediction.peak_allocated_bytes / 100 for row in inside)
    assert all(row.evidence for row in prediction.avoidable)


def test_every_script_of_the_corpus_has_a_test() -> None:
    assert names_in("held") == sorted(HELD)
    assert names_in("kinds") == sorted(KINDS)
    assert len(HELD) >= 15
    assert len(names_in("clean")) >= 10


@pytest.mark.parametrize("name", list(HELD) if SLOW else list(HELD)[:ALWAYS_HELD])
def test_what_is_held_over_is_found(name: str, tmp_path: Path) -> None:
    """With who holds it and where that is assigned; and without it the peaks are lower by just what was said."""
    script = CORPUS / "held" / f"{name}.py"
    found = diagnosed(script)
    held = rows(found, AvoidableKind.HELD_OVER)
    assert len(held) == 1, found.avoidable
    [row] = held
    assert any(one.startswith(HELD[name]) for one in row.names), row.names
    assert row.file == str(script)
    lines = marked_lines(script.read_text())
    if lines and row.hold_line is not None and not HELD[name].startswith("a cycle"):
        assert row.hold_file == str(script)
    without = mended_run(script, tmp_path)
    assert found.peak_allocated_bytes - without.peak_allocated_bytes == row.gain_bytes
    assert found.peak_reserved_bytes - without.peak_reserved_bytes == row.gain_reserved_bytes
    assert row.gain_bytes
    assert_adds_up(found)


@pytest.mark.parametrize("name", names_in("clean") if SLOW else names_in("clean")[:ALWAYS_CLEAN])
def test_what_is_wanted_is_not_called_held_over(name: str) -> None:
    found = diagnosed(CORPUS / "clean" / f"{name}.py")
    assert not rows(found, AvoidableKind.HELD_OVER)
    assert_adds_up(found)


@pytest.mark.parametrize("name", list(KINDS) if SLOW else list(KINDS)[:ALWAYS_KINDS])
def test_other_kinds_are_found_by_what_the_run_shows(name: str, tmp_path: Path) -> None:
    script = CORPUS / "kinds" / f"{name}.py"
    found = diagnosed(script)
    [row] = rows(found, KINDS[name])
    assert_adds_up(found)
    if marked_lines(script.read_text()):
        without = mended_run(script, tmp_path)
        assert found.peak_allocated_bytes - without.peak_allocated_bytes == row.gain_bytes - MEND_TAKES.get(name, 0)


@pytest.mark.parametrize("name", list(HELD) if SLOW else ["outputs_of_model"])
def test_a_run_that_is_watched_is_the_same_run(name: str) -> None:
    """To the byte, at every moment."""
    script = CORPUS / "held" / f"{name}.py"
    watched, plain = diagnosed(script), client.call(predict, request(script, diagnose=False))
    assert not plain.avoidable
    for field in ("peak_allocated_bytes", "peak_reserved_bytes", "timeline", "steps", "roles", "lines"):
        assert getattr(watched, field) == getattr(plain, field), field
    assert replace(watched, avoidable=[]).to_json().keys() == plain.to_json().keys()
