"""Code that several adapters share: import a framework, and wrap its GradScaler."""

import sys
from importlib import import_module
from typing import Any

from ullage.base.errors import UsageError


def framework(*names: str) -> Any:
    """Return the first of these modules that is imported, or else the first that is installed.

    Raises:
        UsageError: none of the modules is installed; the error contains the install command.
    """
    for name in names:
        if name in sys.modules:
            return sys.modules[name]
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    package = names[0].split(".")[0]
    raise UsageError(f"this adapter needs {package}, which is not installed: pip install {package}")


class OwnScaling:
    """A wrapper around the GradScaler of a framework whose backward pass scales the loss itself.

    `scale` returns the loss unchanged, so that the loss is not scaled twice.
    """

    _scaler: Any

    def __init__(self, scaler: Any) -> None:
        vars(self)["_scaler"] = scaler

    def scale(self, loss: Any) -> Any:
        return loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._scaler, name, value)  # a guard resets a scaler whose first scale() failed
