"""Each phase's peak is what the script itself measures around it, to the byte."""

from tests.phases.conftest import Predict

ALL_STEPS = ("--steps", "100")


def test_a_plain_loop(predict: Predict) -> None:
    run = predict("plain.py", options=ALL_STEPS)
    assert run.code == 0, run.error
    assert run.peaks == run.figures
    assert set(run.figures) == {"loading", "first step", "steady step", "evaluation", "saving"}
    again = predict("plain.py", "checkpoint.pt", options=ALL_STEPS)
    assert again.peaks == again.figures
    assert "resuming" in again.figures
