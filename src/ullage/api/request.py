"""The request of a run, from the options of a question about it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ullage.base.options import options_of
from ullage.predicting.options import RunOptions
from ullage.predicting.prediction.request import Request


def request_of(
    script: str | Path, arguments: Sequence[str], options: Mapping[str, object], *, picture: bool = False
) -> Request:
    """Return what to run, on which GPU and for how long; options of the question that no run has are left out.

    Raises:
        UsageError: an option is not what is expected.
    """
    chosen: dict[str, Any] = {name: options[name] for name in options_of(RunOptions) if name in options}
    return Request.of(script, arguments, picture=picture, **chosen)
