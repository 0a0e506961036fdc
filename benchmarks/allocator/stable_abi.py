"""The core built for Python's stable ABI beside itself without it: wheels from Python 3.12 on are of the first kind.

    PYTHON benchmarks/allocator/stable_abi.py

PYTHON is 3.12 or newer and has ullage, nanobind, cmake and torch. Both are built here and replay the same programs in
processes that take turns; told is the median of each round's ratio. Exits 1 past the bound.
"""

import importlib.machinery
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EVENTS = 1_000_000
ROUNDS = 9
BOUND = 1.1


def build(folder: Path, abi: str) -> Path:
    """Build the core with the stable ABI ("ON") or without ("OFF"); return the module."""
    defines = [f"-DULLAGE_STABLE_ABI={abi}", f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *defines], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder, "--target", "_allocator"], check=True, capture_output=True)
    (module,) = folder.glob("_allocator*.so")
    if (".abi3." in module.name) != (abi == "ON"):
        sys.exit(f"a Python from 3.12 on is needed to build for the stable ABI; this is {sys.version.split()[0]}")
    return module


def seconds(module: Path, program: Path, conf: str) -> float:
    """CPU seconds of one replay by one of the two."""
    command = [sys.executable, __file__, "--with", module, program, conf]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["seconds"])


def replay_with(module: str, program: str, conf: str) -> None:
    """What the other process does: the benchmark's own replay, with the given module as the core."""
    name = "ullage.recorded.allocator._allocator"
    loader = importlib.machinery.ExtensionFileLoader(name, module)
    spec = importlib.util.spec_from_file_location(name, module, loader=loader)
    assert spec is not None
    core = importlib.util.module_from_spec(spec)
    loader.exec_module(core)
    sys.modules[name] = core
    from run import run_ours

    run_ours(Path(program), conf)


def main() -> None:
    if sys.argv[1:2] == ["--with"]:
        return replay_with(*sys.argv[2:])
    from run import CONFS, write
    from workload import workloads

    sys.path.insert(0, str(HERE.parent))
    from figure import Measured

    kept = True
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        stable, plain = build(folder / "stable", "ON"), build(folder / "plain", "OFF")
        for name, program in workloads(EVENTS).items():
            write(program, folder / "program")
            for conf in CONFS:
                rounds = [[seconds(each, folder / "program", conf) for each in (stable, plain)] for _ in range(ROUNDS)]
                ratio = statistics.median(one / other for one, other in rounds)
                what = f"stable ABI's time over the other's: {name}{', ' + conf if conf else ''}"
                print(figure := Measured(what, ratio, "x", BOUND), flush=True)
                kept &= figure.kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
