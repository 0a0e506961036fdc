"""The core's replay beside PyTorch's own allocator on the same programs: `make bench`. Exits 1 past a bound.

PyTorch's is the installed torch's libc10_cuda.so alone, called from C++ (real.cpp) over a CUDA that does nothing
(null_cuda.c), both built here. Both get the same operations, one thread each, in processes of their own that take
turns; what is told is each side's median, and their ratio. Time is the thread's own CPU time: others use the machine
too. Ours is all of `replay()`, with its checks and what it hands to Python; PyTorch's is the loop over the operations.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from workload import big, workloads

from ullage.recorded.allocator.replay import ReplayDevice, replay
from ullage.recorded.program import Program
from ullage.recorded.settings import parse_settings, semantics_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from figure import Measured

HERE = Path(__file__).resolve().parent
EVENTS = 1_000_000
ROUNDS = 5
CONFS = ("", "expandable_segments:True")
BIG_EVENTS, BIG_SECONDS, BIG_GIB = 10_000_000, 2.0, 1.0
FIGURES = ("allocated_bytes", "reserved_bytes", "requested_bytes", "peak_allocated_bytes")


def torch_version() -> str:
    """The installed torch's version, without importing it."""
    from importlib.metadata import version

    return version("torch")


def build(folder: Path) -> Path:
    """Build the null CUDA, and PyTorch's allocator with a program reader; return its command."""
    packages = Path(sysconfig.get_path("purelib"))
    torch = packages / "torch"
    needs = subprocess.run(
        ["readelf", "-d", torch / "lib" / "libc10_cuda.so"], capture_output=True, text=True, check=True
    )
    runtime = next(word.strip("[]") for word in needs.stdout.split() if word.startswith("[libcudart.so"))
    (folder / "symbols.map").write_text(f"{runtime} {{ global: *; }};\n")
    for name in (runtime, "libnvidia-ml.so.1"):  # NVML is looked for by name when the allocator wants it
        version = [f"-Wl,--version-script,{folder / 'symbols.map'}"] if name == runtime else []
        command = ["gcc", "-O2", "-fPIC", "-shared", HERE / "null_cuda.c", "-o", folder / name]
        subprocess.run([*command, f"-Wl,-soname,{name}", *version], check=True)
    headers = [torch / "include", packages / "triton" / "backends" / "nvidia" / "include"]
    libraries = [torch / "lib", folder]
    subprocess.run(
        ["g++", "-std=c++20", "-O2", HERE / "real.cpp", "-o", folder / "real"]
        + [f"-I{path}" for path in headers]
        + [word for path in libraries for word in (f"-L{path}", f"-Wl,-rpath,{path}")]
        + ["-lc10_cuda", "-lc10", f"-l:{runtime}", "-Wl,--allow-shlib-undefined"],
        check=True,
    )
    return folder / "real"


def write(program: Program, path: Path) -> None:
    with path.open("wb") as file:
        np.array([len(program), program.key.max() + 1], np.int64).tofile(file)
        for column in (program.op, program.key, program.size, program.stream):
            column.tofile(file)


def theirs(command: Path, program: Path, way: str, conf: str) -> dict[str, Any]:
    """PyTorch's seconds and figures."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    environment |= {"PYTORCH_CUDA_ALLOC_CONF": conf, "LD_LIBRARY_PATH": str(program.parent)}
    done = subprocess.run([command, program, way], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"PyTorch's allocator failed under {conf!r}:\n{done.stderr[:2000]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ours(path: Path, conf: str) -> dict[str, Any]:
    """The core's seconds and figures, in a process of its own as the other side has it."""
    done = subprocess.run([sys.executable, __file__, "--ours", path, conf], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the core failed under {conf!r}:\n{done.stderr[:2000]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_ours(path: Path, conf: str) -> None:
    """What the other process does."""
    columns = np.fromfile(path, np.int64)
    length = int(columns[0])
    op, key, size, stream = columns[2:].reshape(4, length)
    program = Program(op=op, key=key, size=size, stream=stream)
    settings = parse_settings(conf, semantics=semantics_of(torch_version()))
    began = time.thread_time()
    done = replay(program, settings, ReplayDevice(total_bytes=1 << 40, placement="ascending"))
    seconds = time.thread_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    now = {f"{name}_bytes": getattr(done.now, f"{name}_bytes") for name in ("allocated", "reserved", "requested")}
    print(json.dumps({"seconds": seconds, "peak_allocated_bytes": done.peak.allocated_bytes, "host": memory, **now}))


def compare(command: Path, path: Path, length: int, name: str, conf: str) -> bool:
    """Run one program on both sides in turn, print the figures; whether ours is no slower and does the same."""
    found: dict[str, list[dict[str, Any]]] = {"raw": [], "tensor": [], "ours": []}
    for _ in range(ROUNDS):
        for way in ("raw", "tensor"):
            found[way].append(theirs(command, path, way, conf))
        found["ours"].append(ours(path, conf))
    raw, tensor, own = (statistics.median(each["seconds"] for each in runs) for runs in found.values())
    ratio = min(raw, tensor) / own
    is_same = all(found["raw"][0][figure] == found["ours"][0][figure] for figure in FIGURES)
    rates = [length / seconds / 1e6 for seconds in (own, raw, tensor)]
    mark = "ok  " if ratio >= 1 and is_same else "PAST"
    print(
        f"{mark} {rates[0]:9.2f} M/s against {rates[1]:.2f} (tensors: {rates[2]:.2f}), ratio {ratio:.1f}  "
        f"{name}{', ' + conf if conf else ''}{'' if is_same else ': NOT THE SAME RESULT'}",
        flush=True,
    )
    return ratio >= 1 and is_same


def large(folder: Path) -> bool:
    """Ten million events: seconds and host memory of the whole process, its columns included."""
    path = folder / "big"
    write(big(BIG_EVENTS), path)
    runs = [ours(path, "") for _ in range(3)]
    seconds = statistics.median(run["seconds"] for run in runs)
    gib = max(run["host"] for run in runs) / (1 << 30)
    print(Measured(f"{BIG_EVENTS:,} events replayed", seconds, "s", BIG_SECONDS))
    memory = Measured("the same: host memory of the process", gib, "GiB", BIG_GIB)
    print(memory)
    return memory.kept


def main() -> None:
    if sys.argv[1:2] == ["--ours"]:
        return run_ours(Path(sys.argv[2]), sys.argv[3])
    kept = True
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command = build(folder)
        print(f"the core's events (an allocation or a free) a second against torch {torch_version()}'s own allocator")
        for name, program in workloads(EVENTS).items():
            write(program, folder / "program")
            for conf in CONFS:
                kept &= compare(command, folder / "program", len(program), name, conf)
        kept &= large(folder)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
