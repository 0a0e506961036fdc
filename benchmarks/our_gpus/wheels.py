"""Download what a machine with a GPU but without a network lacks: `make gpu-wheels`, on a machine with a network.

    python -m benchmarks.our_gpus.wheels [--python 3.12]

bitsandbytes goes into .wheels/ (git ignores it), with its library for one CUDA version only: its wheel has a dozen, and
what travels to the GPU machine should be small. `measure.py` installs what lies there.
"""

import argparse
import csv
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from .prepare import WHEELS
from .process import ROOT

REQUIREMENTS = ROOT / "benchmarks" / "our_gpus" / "requirements-beside-torch.txt"
NAME = "bitsandbytes"
CUDA = "cuda130"
"""The library for torch 2.11.0+cu130."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")


def requirement() -> str:
    """Return the pinned version."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{NAME}=="))


def slim(wheel: Path, target: Path) -> None:
    """Copy a wheel without its libraries for other versions of CUDA, ROCm and XPU."""
    with zipfile.ZipFile(wheel) as full, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as small:
        kept = [one for one in full.namelist() if _is_kept(one)]
        for name in kept:
            data = full.read(name)
            if name.endswith(".dist-info/RECORD"):
                data = _rows(data.decode(), kept).encode()
            small.writestr(name, data)


def _is_kept(name: str) -> bool:
    return not name.endswith(".so") or name.endswith((f"_{CUDA}.so", "_cpu.so"))


def _rows(record: str, kept: list[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(row for row in csv.reader(io.StringIO(record)) if row[0] in kept)
    return text.getvalue()


def main() -> int:
    """Download and copy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the GPU machine's Python (default: 3.12)")
    options = parser.parse_args()
    WHEELS.mkdir(exist_ok=True)
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
                *("--implementation", "cp", "--python-version", options.python, *platforms),
                *("--dest", folder, requirement()),
            ],
            check=False,
        )
        if done.returncode:
            print(f"error: pip could not download {requirement()}", file=sys.stderr)
            return 1
        (wheel,) = Path(folder).glob("*.whl")
        slim(wheel, WHEELS / wheel.name)
    size = (WHEELS / wheel.name).stat().st_size
    print(f"{WHEELS.name}/{wheel.name}: {size / (1 << 20):.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
