"""Let packages that lie in PYTHONPATH, and are not installed, ask for their own version when they are imported."""

import importlib.metadata

_version = importlib.metadata.version


def _version_or_none(name: str) -> str:
    try:
        return _version(name)
    except importlib.metadata.PackageNotFoundError:
        return "0"


importlib.metadata.version = _version_or_none
