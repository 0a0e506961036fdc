"""What every Python process that one of ours starts does at its beginning: `sitecustomize.py`, found by PYTHONPATH."""

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

FOLDER: Final = str(Path(__file__).parent)


def reach_children(environment: MutableMapping[str, str]) -> None:
    """Have Python processes with this environment, and those that they start, load `sitecustomize.py`."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if FOLDER not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([FOLDER, *filter(None, paths)])
