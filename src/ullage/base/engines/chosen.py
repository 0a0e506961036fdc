"""Create the engine that runs parallel work, as chosen with `--on`: local, ray, slurm or submitit-local."""

import os
from pathlib import Path
from typing import Final

from ullage.base.engines.engine import WorkEngine
from ullage.base.engines.local import LocalEngine
from ullage.base.errors import UsageError, quoted

_WAYS: Final = "local, ray, ray://HOST:PORT, slurm, slurm:partition=NAME,time=MINUTES or submitit-local"
MOST_WORKERS: Final = 1024


def open_engine(on: str | None, *, workers: int | None = None) -> WorkEngine:
    """Return an engine that is ready to run work in parallel.

    Args:
        on: the engine, as written after `--on`; None: this machine.
        workers: the number of work items that run at once on this machine; None: one for each CPU core.

    Raises:
        UsageError: the engine does not exist, or a package that it needs is not installed.
        EngineError: the engine does not respond.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"workers={workers} is out of range; expected 1 to {MOST_WORKERS}")
    count = workers or len(os.sched_getaffinity(0))
    if on in (None, "local"):
        return LocalEngine(count)
    assert on is not None
    kind, _, rest = on.partition(":")
    if kind == "ray":
        from ullage.base.engines.on_ray import RayEngine

        return RayEngine((on if rest.startswith("//") else rest) or None)
    if kind in ("slurm", "submitit-local"):
        from ullage.base.engines.on_submitit import SubmititEngine

        settings = _settings(on, rest)
        folder = Path(settings.pop("folder", "") or default_folder()).absolute()
        name = "slurm" if kind == "slurm" else "local"
        return SubmititEngine(name, folder=folder, settings=settings, workers=count)
    raise UsageError(f"on={quoted(on)} is not an engine; expected {_WAYS}")


def default_folder() -> Path:
    """Return the folder for the files of cluster jobs. It is in the user's cache folder, which most clusters share
    between nodes.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage" / "jobs"


def _settings(on: str, text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"on={quoted(on)} is not an engine with settings; expected {_WAYS}")
        found[name.strip().replace("-", "_")] = value.strip()
    if not found.get("time", "1").isdecimal():
        raise UsageError(f"on={quoted(on)}: time is not a whole number of minutes")
    return found
