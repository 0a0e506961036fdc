"""What the questions need besides PyTorch: wheels that were brought along, and ullage, installed into build/our_gpus/.

`python -m benchmarks.our_gpus.prepare` runs while the first questions are answered, because building ullage takes up to
a minute. Nothing is downloaded. Wheels come from the folder .wheels/ (`make gpu-wheels` fills it; git ignores it). The
folder has the version of Python and the state of the sources in its name, and gets it when everything is in it: what an
interrupted call has left is not used.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from .process import ROOT

FOLDER = ROOT / "build" / "our_gpus"
WHEELS = ROOT / ".wheels"
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
_SOURCES = ("src/ullage", "CMakeLists.txt", "pyproject.toml")


@cache
def site() -> Path:
    """Return the folder for this Python and these sources; it is there when it is complete."""
    state = hashlib.sha256()
    for source in _SOURCES:
        for path in sorted((ROOT / source).rglob("*")) if (ROOT / source).is_dir() else [ROOT / source]:
            if path.is_file() and "__pycache__" not in path.parts:
                state.update(f"{path.relative_to(ROOT)} {path.stat().st_size} {path.stat().st_mtime_ns}".encode())
    state.update(" ".join(wheel.name for wheel in sorted(WHEELS.glob("*.whl"))).encode())
    return FOLDER / f"site-{sys.version_info[0]}.{sys.version_info[1]}-{state.hexdigest()[:12]}"


def python_path(environment: Mapping[str, str]) -> str:
    """Return PYTHONPATH with the folder behind what is there: what the user has installed counts first."""
    return os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), str(site())]))


def missing(needs: Iterable[str]) -> list[str]:
    """Return which modules are not installed."""
    if site().is_dir() and str(site()) not in sys.path:
        sys.path.append(str(site()))
    importlib.invalidate_caches()
    return [name for name in needs if importlib.util.find_spec(name) is None]


def install() -> int:
    """Install the wheels, each by itself, and build ullage if it is not installed; return an exit code."""
    if site().is_dir():
        return 0
    status = 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="new-") as new:
        target = ("--no-compile", "--upgrade", "--target", f"{new}/site")
        for wheel in sorted(WHEELS.glob("*.whl")):
            status |= _pip(*target, str(wheel))
        if missing(["ullage"]):
            build = f"--config-settings=build-dir={new}/build"
            status |= _pip(*target, "--no-build-isolation", build, str(ROOT))
        if not status:
            for old in FOLDER.glob("site-*"):
                shutil.rmtree(old, ignore_errors=True)
            Path(new, "site").mkdir(exist_ok=True)
            Path(new, "site").rename(site())
    return int(bool(status))


def _pip(*words: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return subprocess.run([*PIP, *words], env=environment | {"PIP_CONFIG_FILE": os.devnull}, check=False).returncode


if __name__ == "__main__":
    sys.exit(install())
