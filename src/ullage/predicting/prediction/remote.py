"""A request as plain data, carried out in another process or on another machine, and its prediction as plain data.

Whoever carries it out has this package, torch and the script's files under the same paths, as the nodes of a cluster
with a shared file system do.
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
"""The name of `run` for an engine."""
_AGAIN: Final = "its process was killed from outside once, and it was run again"


def plain_request(request: Request) -> dict[str, Any]:
    """Return a request as plain data; the messages of an exchange do not travel."""
    sent = request.with_options(snapshot=None)
    plain = {each.name: to_plain(getattr(sent, each.name)) for each in fields(sent) if each.name != "exchange"}
    return plain | {"script": str(request.script)}


def request_from(plain: Mapping[str, Any]) -> Request:
    """Return the request that `plain_request` was made of."""
    return Request(
        **{
            **plain,
            "script": Path(plain["script"]),
            "arguments": tuple(plain["arguments"]),
            "changes": tuple(plain["changes"]),
        }
    )


def payload_of(request: Request) -> dict[str, Any]:
    """Return what `run` is called with."""
    return {"request": plain_request(request), "folder": os.getcwd()}


def run(payload: dict[str, Any], cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Carry out a request; what the script failed with is an answer too."""
    folder = payload["folder"]
    try:
        if os.getcwd() != folder:
            os.chdir(folder)
    except OSError:
        return _error(UsageError(f"this machine ({os.uname().nodename}) has no folder {folder}"))
    for name, value in payload.get("environment", {}).items():
        if os.environ.get(name) != value:  # on another machine
            os.environ[name] = value
    request = request_from(payload["request"])
    try:
        return {"prediction": to_plain(_predicted(request, cancelled))}
    except UllageError as error:
        return _error(error)


def _predicted(request: Request, cancelled: Callable[[], bool]) -> Prediction:
    """Predict; a script that was killed from outside, as where the host ran out of memory, is run once more."""
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
    """Return what `run` has answered."""
    if "prediction" in answer:
        return from_plain(Prediction, answer["prediction"])
    told = answer["error"]
    kind: type[UllageError] = getattr(ullage.base.errors, told["type"], ScriptError)
    return kind(told["text"])
