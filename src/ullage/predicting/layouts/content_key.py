"""Compute the cache key of a prediction from everything that affects it, such as source files and versions."""

# The key covers the source of the script and of the modules it imports, its arguments, the GPU and all other parts of
# the request, the relevant environment variables, and the versions of Python, torch, all installed packages and ullage.

import hashlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import ullage
from ullage.predicting.layouts.sources import sources_of
from ullage.predicting.prediction.remote import plain_request
from ullage.predicting.prediction.request import Request

_FORMAT: Final = 2
# These options do not change the result of a run.
_NOT_DECISIVE: Final = ("output", "snapshot", "seconds", "request")
_COUNTS: Final = re.compile(
    r"(PYTORCH|TORCH|CUDA|CUBLAS|CUDNN|NCCL|HF|TRANSFORMERS|ACCELERATE|DEEPSPEED|PARALLELISM|FSDP|ULLAGE|XFORMERS)_\w+|"
    r"PYTHON(PATH|HASHSEED|OPTIMIZE)|OMP_NUM_THREADS|MKL_NUM_THREADS|TF32_\w+|DISABLE_\w+"
)
_NAME: Final = re.compile(rb"\b[A-Z][A-Z0-9_]{2,63}\b")


class ContentKeys:
    """Computes the cache keys of many runs of one script. Each file is read once."""

    def __init__(self, request: Request, more_words: Sequence[str] = ()) -> None:
        self._sources = sources_of((str(request.script), *request.arguments, *more_words))
        self.counting = counting_variables(os.environ, self._sources)
        """The environment variables that may affect the script, with their values."""
        self._common = {
            "format": _FORMAT,
            "versions": versions(),
            "environment": self.counting,
            "files": {path: hashlib.sha256(content).hexdigest() for path, content in sorted(self._sources.items())},
        }

    def key_of(self, request: Request) -> str:
        """Return the cache key of a run. Runs with equal keys have equal results."""
        plain: dict[str, Any] = plain_request(request)
        for name in _NOT_DECISIVE:
            del plain["options"][name]
        told = json.dumps({**self._common, "request": plain, "folder": os.getcwd()}, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()


def counting_variables(environment: Mapping[str, str], sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return the environment variables that may affect a script.

    These are the variables of known libraries, and those that the source code names.
    """
    named = {name.decode() for content in sources.values() for name in _NAME.findall(content)}
    return {
        name: value
        for name, value in sorted(environment.items())
        if (_COUNTS.fullmatch(name) and name != "ULLAGE_RUN") or name in named
    }


@cache
def versions() -> dict[str, str]:
    """Return the versions that affect a run: Python, all installed packages, and ullage's files."""
    found = importlib.metadata.distributions(path=_folders_of_packages(sys.path))
    installed = sorted(f"{each.name}=={each.version}" for each in found)
    return {
        "python": sys.version,
        "ullage": f"{ullage.__version__} {_own_record()}",
        "packages": hashlib.sha256("\n".join(installed).encode()).hexdigest(),
    }


# Importing Ray adds a folder inside a package to the module search path.
def _folders_of_packages(path: Sequence[str]) -> list[str]:
    folders = [Path(each or ".").absolute() for each in path]

    def is_inside_a_package(folder: Path) -> bool:
        return any(
            other in folder.parents and (other / folder.relative_to(other).parts[0] / "__init__.py").exists()
            for other in folders
        )

    return [str(folder) for folder in folders if not is_inside_a_package(folder)]


# The digest is computed from the package installer's list of files.
def _own_record() -> str:
    try:
        record = importlib.metadata.distribution("ullage").read_text("RECORD") or ""
    except importlib.metadata.PackageNotFoundError:
        record = ""
    return hashlib.sha256(record.encode()).hexdigest()
