"""What the adapters share: a framework, found or asked for, and a scaler that the framework scales with itself."""

import sys
from importlib import import_module
from typing import Any

from ullage._errors import UsageError


def framework(*names: str) -> Any:
    """Return the first of these modules that is imported already, or else installed.

    Raises:
        UsageError: none is installed; the text is the install line.
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
    raise UsageError(f"this adapter needs {package}, which is not installed here: pip install {package}")


class OwnScaling:
    """A framework's GradScaler as a guard needs it: the framework's backward has scaled the loss already."""

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler

    def scale(self, loss: Any) -> Any:
        return loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)
