"""What the questions need besides PyTorch, put into build/our_gpus/site: wheels that were brought along, and ullage.

`python -m benchmarks.our_gpus.prepare` runs while the first questions are answered, because building ullage takes up to
a minute. Nothing is downloaded. Wheels come from the folder .wheels/ (`make gpu-wheels` fills it; git ignores it).
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterable

from .process import ROOT

SITE = ROOT / "build" / "our_gpus" / "site"
WHEELS = ROOT / ".wheels"
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")


def use_site() -> None:
    """Let this process import what was put there."""
    if str(SITE) not in sys.path:
        sys.path.insert(0, str(SITE))
    importlib.invalidate_caches()


def missing(needs: Iterable[str]) -> list[str]:
    """Return which modules are not installed."""
    use_site()
    return [name for name in needs if importlib.util.find_spec(name) is None]


def install() -> int:
    """Install the wheels and build ullage; return an exit code."""
    SITE.mkdir(parents=True, exist_ok=True)
    status = 0
    wheels = sorted(WHEELS.glob("*.whl"))
    target = ("--no-compile", "--upgrade", "--target", str(SITE))
    if wheels:
        status |= subprocess.run([*PIP, *target, *map(str, wheels)], check=False).returncode
    if missing(["ullage"]):
        build = f"--config-settings=build-dir={SITE.parent / 'build'}"
        status |= subprocess.run([*PIP, *target, "--no-build-isolation", build, str(ROOT)], check=False).returncode
    return int(bool(status))


if __name__ == "__main__":
    sys.exit(install())
