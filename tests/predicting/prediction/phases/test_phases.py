"""Each phase's peak is what the script itself measures around it, to the byte."""

import pytest

from tests.predicting.prediction.phases.conftest import SCRIPTS, Predict
from tests.shared.commands import SCRIPTS as SHARED

TO_THE_END = ("--until", "end")
EVERYTHING = {"loading", "first step", "steady step", "evaluation", "saving"}


def test_a_plain_loop_that_is_resumed(predict: Predict) -> None:
    run = predict("plain.py", options=TO_THE_END)
    assert run.code == 0, run.error
    assert run.peaks == run.figures
    assert set(run.figures) == EVERYTHING
    assert run.phases["evaluation"]["count"] == run.phases["saving"]["count"] == 2
    assert run.phases["evaluation"]["first_step"] == 2
    assert run.phases["steady step"]["count"] == 3
    code = (SCRIPTS / "plain.py").read_text().splitlines()
    assert "logits = [model(" in code[run.phases["evaluation"]["line"] - 1]
    assert "clone()" in code[run.phases["saving"]["line"] - 1]
    assert "torch.empty(2**24" in code[run.phases["loading"]["line"] - 1]
    # What is written to a disk decides nothing.
    assert run.prediction["reads"] == []
    again = predict("plain.py", "checkpoint.pt", options=TO_THE_END)
    assert again.peaks == again.figures
    assert set(again.figures) == {*EVERYTHING, "resuming"}


@pytest.mark.parametrize(
    ("script", "checkpoint"),
    [
        ("with_trainer.py", "out/checkpoint-4"),
        ("with_lightning.py", "out/step=4.ckpt"),
        ("with_accelerate.py", "out"),
    ],
)
def test_a_framework(predict: Predict, script: str, checkpoint: str) -> None:
    run = predict(script, options=TO_THE_END)
    assert run.code == 0, run.error
    assert run.peaks == run.figures
    assert set(run.figures) == EVERYTHING
    again = predict(script, checkpoint, options=TO_THE_END)
    assert again.code == 0, again.error
    assert again.peaks == again.figures
    assert {"loading", "resuming", "first step"} <= set(again.figures)


@pytest.mark.parametrize("way", ["gathered", "module", "sharded"])
def test_what_fsdp_gathers_to_save_is_of_saving(predict: Predict, way: str) -> None:
    run = predict("with_fsdp.py", way, options=(*TO_THE_END, "--world-size", "4"))
    assert run.code == 0, run.error
    assert run.peaks == run.figures
    assert set(run.figures) == EVERYTHING - {"evaluation"}


def test_generate_inside_an_evaluation(predict: Predict) -> None:
    outer, inner = predict("generates.py", "outer", options=TO_THE_END), predict("generates.py", "inner")
    assert outer.peaks == outer.figures
    assert set(outer.figures) == {"evaluation"}
    assert {"generate", "evaluation"} <= set(outer.phases)
    assert inner.peaks == inner.figures
    assert set(inner.figures) == {"generate"}


@pytest.mark.parametrize(
    ("which", "line"), [("evaluation", "model(torch.empty(TOO_MUCH"), ("saving", "torch.empty(TOO_MUCH, dev")]
)
def test_memory_that_runs_out_is_named_with_its_phase(predict: Predict, which: str, line: str) -> None:
    run = predict("runs_out.py", which, options=("--total-memory", "1GiB"))
    assert run.code == 1, run.error
    number = 1 + next(at for at, text in enumerate((SCRIPTS / "runs_out.py").read_text().splitlines()) if line in text)
    wanted = f"the script ran out of memory in {which}, at line {number} of runs_out.py: it requested 1.00 GiB"
    assert run.prediction["reason"].startswith(wanted)


def test_a_thread_that_saves_leaves_the_steps_whole(predict: Predict) -> None:
    run = predict("saves_in_a_thread.py")
    saving, steps = run.phases["saving"], run.prediction["steps"]
    assert saving["count"] == 1
    assert saving["peak_allocated_bytes"] == steps[1]["peak_allocated_bytes"]
    assert run.phases["steady step"]["peak_allocated_bytes"] == steps[2]["peak_allocated_bytes"]


def test_a_run_without_other_phases_says_nothing_of_phases(predict: Predict) -> None:
    run = predict(SHARED / "train.py")
    assert set(run.phases) == {"loading", "first step", "steady step"}
    assert run.prediction["bands"] == run.prediction["runs"] == []


@pytest.mark.parametrize("script", ["with_trainer.py", "with_lightning.py"])
def test_an_evaluation_that_comes_at_once_is_part_of_the_run(predict: Predict, script: str) -> None:
    run = predict(script, options=("--steps", "2"))
    assert run.phases["evaluation"]["peak_allocated_bytes"] == run.figures["evaluation"][0]
    assert run.prediction["ended"] == "steps"
    none = predict(script, options=("--steps", "1"))
    assert none.phases.get("evaluation", {"first_step": 0})["first_step"] == 0
    assert len(none.prediction["steps"]) == 1


def test_until(predict: Predict) -> None:
    run = predict("plain.py", options=("--steps", "1", "--until", "eval"))
    assert [step["step"] for step in run.prediction["steps"]] == [1, 2, 3]
    assert run.phases["evaluation"]["first_step"] == 2
    run = predict("generates.py", "outer", options=("--until", "save"))
    assert "the script ended before it reached saving" in run.prediction["notes"]
    wrong = predict("plain.py", options=("--until", "lunch"))
    assert wrong.code == 2
    assert "--until 'lunch' is not known; expected one of eval, save, end" in wrong.error


def test_resume_runs_the_script_twice(predict: Predict) -> None:
    run = predict("plain.py", options=("--resume", "checkpoint.pt"))
    assert run.code == 0, run.error
    first, resumed = run.prediction["runs"]
    assert first["arguments"] == []
    assert resumed["arguments"] == ["checkpoint.pt"]
    assert "resuming" not in {phase["name"] for phase in first["phases"]}
    [loaded] = [phase for phase in resumed["phases"] if phase["name"] == "resuming"]
    assert [loaded["peak_allocated_bytes"], loaded["peak_reserved_bytes"]] == run.figures["resuming"]
    assert run.phases["resuming"]["peak_allocated_bytes"] == resumed["peak_allocated_bytes"]
    assert run.phases["saving"]["count"] == 1
    for text, said in (("", "--resume has no arguments"), ("'a", "cannot be read: no closing quotation")):
        wrong = predict("plain.py", options=("--resume", text))
        assert wrong.code == 2
        assert said in wrong.error
