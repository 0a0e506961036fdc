"""Which engine is meant: `--on` as a user writes it."""

import os
from pathlib import Path
from typing import Final

from ullage.base.engines.engine import WorkEngine
from ullage.base.engines.local import LocalEngine
from ullage.base.errors import UsageError, quoted

_WAYS: Final = "local, ray, ray://HOST:PORT, slurm, slurm:partition=NAME,time=MINUTES or submitit-local"
MOST_WORKERS: Final = 1024


def open_engine(on: str | None, *, workers: int | None = None) -> WorkEngine:
    """Return an engine, ready for work.

    Args:
        on: where, as of `--on`; None: on this machine.
        workers: how many pieces of work at once, on this machine; None: one for each core.

    Raises:
        UsageError: there is no such engine, or what it needs is not installed.
        EngineError: it does not answer.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"--workers {workers} is out of range; expected 1 to {MOST_WORKERS}")
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
    raise UsageError(f"--on {quoted(on)} is no engine; expected {_WAYS}")


def default_folder() -> Path:
    """Return the folder through which jobs are told what to do: the user's cache folder, which nodes mostly share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage" / "jobs"


def _settings(on: str, text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name or not value:
            raise UsageError(f"--on {quoted(on)} is no engine with settings; expected {_WAYS}")
        found[name.strip().replace("-", "_")] = value.strip()
    if not found.get("time", "1").isdecimal():
        raise UsageError(f"--on {quoted(on)}: time is in minutes, a whole number")
    return found
