"""Run a prediction request in another process or on another machine. Requests and results are plain data.

The other machine needs this package, torch, and the script's files under the same paths.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import ullage.base.errors
from ullage.base.errors import ScriptError, ScriptKilledError, UllageError, UsageError
from ullage.predicting.prediction.data.plain_data import from_plain, to_plain
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.draws import predict_with_draws

RUN: Final = "ullage.predicting.prediction.remote:run"
"""The import path of the function that local and remote workers call to run a prediction."""
_AGAIN: Final = "the script's process was killed by a signal from outside; this is the result of a second run"


def plain_request(request: Request) -> dict[str, Any]:
    """Convert a prediction request to plain data."""
    sent = request.with_options(snapshot=None)
    plain = {each.name: to_plain(getattr(sent, each.name)) for each in fields(sent) if each.name != "exchange"}
    return plain | {"script": str(request.script)}


def request_from(plain: Mapping[str, Any]) -> Request:
    """Create a prediction request from the plain data of `plain_request`."""
    return Request(
        **{
            **plain,
            "script": Path(plain["script"]),
            "arguments": tuple(plain["arguments"]),
            "changes": tuple(plain["changes"]),
        }
    )


def payload_of(request: Request) -> dict[str, Any]:
    """Return the argument of the function `run` for a prediction request."""
    return {"request": plain_request(request), "folder": os.getcwd()}


def run(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Run a prediction request. Return the prediction or the script's error as plain data."""
    folder = payload["folder"]
    try:
        if os.getcwd() != folder:
            os.chdir(folder)
    except OSError:
        return _error(
            UsageError(
                f"the folder {folder} does not exist on this machine ({os.uname().nodename}); expected the same paths "
                "as on the machine that sent the request"
            )
        )
    for name, value in payload.get("environment", {}).items():
        if os.environ.get(name) != value:  # on another machine, the variables of the caller are missing
            os.environ[name] = value
    request = request_from(payload["request"])
    try:
        return {"prediction": to_plain(_predicted(request, cancelled))}
    except UllageError as error:
        return _error(error)


# The kernel kills the script if host memory runs out. Another run may succeed.
def _predicted(request: Request, cancelled: Callable[[], bool]) -> Prediction:
    try:
        return predict_with_draws(request, cancelled=cancelled)
    except ScriptKilledError:
        if cancelled():
            raise
    found = predict_with_draws(request, cancelled=cancelled)
    return replace(found, notes=[*found.notes, _AGAIN])


def _error(error: UllageError) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "text": str(error)}}


def answer_of(answer: Mapping[str, Any]) -> Prediction | UllageError:
    """Return the prediction or the error from the plain data that the function `run` returned."""
    if "prediction" in answer:
        return from_plain(Prediction, answer["prediction"])
    told = answer["error"]
    kind: type[UllageError] = getattr(ullage.base.errors, told["type"], ScriptError)
    return kind(told["text"])
