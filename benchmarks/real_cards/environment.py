"""The environments that cases run in: one a version of torch and of Python, and packages in folders beside them.

Both are made by the project's own scripts (`tools/environment.sh`, `tools/packages.sh`): PyPI's CUDA build of torch
without NVIDIA's wheels, with this project installed. Where Pythons are is a pattern in the environment variable
ULLAGE_PYTHONS, with {version}: "/opt/python/{version}*/bin/python"; without it `python3.12` is looked for on PATH.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.real_cards.source import SourceError

ROOT: Final = Path(__file__).parents[2]
PYTHONS: Final = "ULLAGE_PYTHONS"


def environment_of(torch: str, python: str, cache: Path) -> Path:
    """Return the folder of an environment, making it or bringing it up to date first.

    Raises:
        SourceError: there is no such Python, or the environment cannot be made.
    """
    folder = cache / f"torch-{torch}-py{python}"
    command = [str(ROOT / "tools" / "environment.sh"), torch, str(folder)]
    _made(command, f"an environment with torch {torch} on Python {python}", {"PYTHON": _interpreter(python)})
    return folder


def packages_of(packages: Sequence[str], beside_torch: Sequence[str], environment: Path, cache: Path) -> list[Path]:
    """Return the folders for PYTHONPATH that hold packages: none where none are asked for.

    Raises:
        SourceError: they cannot be installed.
    """
    if not packages and not beside_torch:
        return []
    key = hashlib.sha256("\n".join([environment.name, *packages, "", *beside_torch]).encode()).hexdigest()[:12]
    folder = cache / f"packages-{key}"
    requirements = cache / f"packages-{key}.requirements"
    requirements.mkdir(parents=True, exist_ok=True)
    (requirements / "requirements.txt").write_text("".join(f"{name}\n" for name in packages))
    (requirements / "requirements-beside-torch.txt").write_text("".join(f"{name}\n" for name in beside_torch))
    command = [str(ROOT / "tools" / "packages.sh"), str(environment), str(folder), str(requirements)]
    _made(command, f"packages {' '.join([*packages, *beside_torch])}", {})
    nvidia = sorted(path.name for path in folder.glob("nvidia*"))
    if nvidia:
        raise SourceError(f"NVIDIA's wheels came with the packages ({nvidia[0]}): name them so that none does")
    return [folder]


def _interpreter(version: str) -> str:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return getattr(sys, "_base_executable", sys.executable)
    pattern = os.environ.get(PYTHONS, "")
    found = sorted(glob.glob(pattern.format(version=version))) if pattern else [shutil.which(f"python{version}")]
    if not found or not found[-1]:
        raise SourceError(f"there is no Python {version} here; {PYTHONS} may say where (with {{version}} in it)")
    return found[-1]


def _made(command: list[str], what: str, variables: dict[str, str]) -> None:
    ended = subprocess.run(command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["nothing was said"]
        raise SourceError(f"{what} could not be made: {said[-1]}")
