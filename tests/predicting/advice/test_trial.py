"""What a change costs in one run: accumulation is dearer where its gradients may be others."""

import pytest

from ullage.predicting.advice.trial import candidates_of
from ullage.predicting.changes.change import ChangeCost
from ullage.predicting.changes.training.facts import LoopFacts, LossForm, ModelFacts, TrainingFacts
from ullage.predicting.prediction.request import Request


def facts(loss: LossForm, batch_norms: int = 0) -> TrainingFacts:
    model = ModelFacts(
        kind="Net", library="", names=[], block_lists=[], parameter_bytes=1, dtypes=["float32"], batch_norms=batch_norms
    )
    return TrainingFacts(model=model, items=8, loop=LoopFacts(uses_loader=True, loss=loss))


@pytest.mark.parametrize(
    ("given", "cost"),
    [
        (facts(LossForm.MEAN), ChangeCost.TIME),
        (facts(LossForm.COUNTED), ChangeCost.TIME),
        (facts(LossForm.OTHER), ChangeCost.NUMERICS),
        (facts(LossForm.MEAN, batch_norms=1), ChangeCost.NUMERICS),
    ],
)
def test_parts_with_other_gradients_are_as_dear_as_other_numbers(given: TrainingFacts, cost: ChangeCost) -> None:
    """A change with the same gradients is chosen before it."""
    settings, _ = candidates_of(given, Request.of("train.py", gpu="T4"))
    found = settings["accumulate"]
    assert [each.setting for each in found] == ["2", "4", "8"]
    assert {each.change.cost for each in found} == {cost}
