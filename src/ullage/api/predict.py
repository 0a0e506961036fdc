"""`ullage.predict`: find out whether a script fits on a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ullage.api.values import check_page, request_of, with_page
from ullage.base.option import takes
from ullage.base.public import public
from ullage.options import PredictOptions
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.several.draws import predict_with_draws
from ullage.predicting.prediction.several.every_rank import predict_all_ranks
from ullage.predicting.prediction.several.twice import predict_beside_eager, predict_resumed


@public
@takes(PredictOptions)
def predict(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    progress: Callable[[str], None] = lambda text: None,
    **options: Unpack[PredictOptions],
) -> Prediction:
    """Run a script for a few steps on an emulated GPU, in a separate process, and return whether it fits.

    Args:
        script: the path of a Python file or a notebook, which runs unmodified; or the first word of a command: "-m",
            "torchrun" or any program. Of a command's processes, the one that uses the GPU most is predicted.
        arguments: the arguments of the script.
        progress: a function that is called with a short text whenever the run advances.

    Returns:
        A `Prediction`: the verdict, the peak memory in bytes, and the source lines that hold memory at the peak.

    Raises:
        ScriptError: the script failed for another reason than memory, or could not be stopped.
        TorchMissingError: torch is not installed, or was built without CUDA.
        EmulationError: the GPU cannot be emulated on this machine.
        UnknownGpuError, UsageError: an argument is not valid.

    Example:
        >>> prediction = ullage.predict("train.py", ["--batch-size", "8"], gpu="RTX 3060")
        >>> print(prediction.verdict)
        >>> ullage.show(prediction)
    """
    every_rank = options["rank"] == "all"
    html, snapshot = options["html"], options["snapshot"]
    is_drawn = options["picture"] or html is not None
    request = request_of(script, arguments, {**options, "rank": 0 if every_rank else options["rank"]}, picture=is_drawn)
    check_page(html, script, *([snapshot] if snapshot is not None else []))
    if every_rank and request.is_command:
        request, every_rank = replace(request, each_rank=True), False
    beside_eager = options["beside_eager"]
    work = predict_all_ranks if every_rank else predict_beside_eager if beside_eager else predict_with_draws
    prediction = predict_resumed(request, options["resume"], work, progress=progress)
    return with_page(prediction, html)
