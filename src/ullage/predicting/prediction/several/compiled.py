"""Compares a script with torch.compile and without it: how compiling changes its memory."""

from collections.abc import Callable
from dataclasses import replace

from ullage.base.errors import UllageError
from ullage.predicting.prediction.data.prediction import Peaks, Prediction
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.draws import predict_with_draws


def predict_beside_eager(request: Request, *, progress: Callable[[str], None] = lambda text: None) -> Prediction:
    """Predict a script; if it used torch.compile, predict it once more with torch.compile switched off.

    Raises:
        UllageError: as `predict` does. An eager run that fails is a note of the prediction.
    """
    prediction = predict_with_draws(request, progress=progress)
    if not prediction.compiled_graphs:
        return prediction
    try:
        eager = predict(
            replace(
                request,
                values=replace(request.values, seed=prediction.values.seed),
                eager=True,
                snapshot=None,
                picture=False,
                echo=False,
            ),
            progress=lambda text: progress(f"without torch.compile: {text}"),
        )
    except UllageError as error:
        note = f"without torch.compile the script fails: {str(error).splitlines()[0]}"
        return replace(prediction, notes=[*prediction.notes, note])
    return replace(prediction, eager=Peaks.of(eager))
