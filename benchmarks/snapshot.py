"""How fast snapshots are opened and explained, beside other tools on the same files: `make bench`.

The files are recorded runs of tests/snapshots, the largest that `make snapshots` has fetched, if any, and one that
is made of a million entries: a recorded run is repeated, its times shifted. The others are torch.cuda._memory_viz and
mosaic, which is fetched from GitHub, or from where ULLAGE_REPOSITORIES says.

Like stands beside like: the same question, in a Python that has everything imported (`snapshot_tools`). Below it stand
whole commands, of which `ullage explain` also replays ten settings and tells roles and the cause, and loads numpy for
that: what lists the end of a small file starts sooner, and what only puts a file into a page has nothing to compute
(its page does so later, with scripts of the network). PyTorch's tools run without importing torch, which takes longer
than they do. Times are the processor's, but for that of the whole `ullage explain`, for which somebody waits.

`--make MB FILE` only writes a file. Exits 1 where another tool is faster or smaller at the same question, smaller on
the large file, or past a bound of memory; never for seconds alone.
"""

import argparse
import gzip
import importlib.util
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from figure import Measured

from ullage.recorded.history import History
from ullage.recorded.snapshot.snapshot import load_snapshot

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.snapshot_tools import END, END_OF_VIEWER, KEPT, PEAK, PEAK_OF_MOSAIC, mosaic  # noqa: E402
from tests.recorded.snapshot.writer import plain_of  # noqa: E402

DATA = ROOT / "tests" / "snapshots"
LARGE_BYTES = 50_000_000
MILLION_MEGABYTES = 62
"""So large is a file with a million entries."""
GIB = 1 << 30
ROUNDS = 3
ROUNDS_OF_LARGE = 2

# Each reads argv[1], and prints the bytes that were held and how many lines held them, as JSON.
VIEWER = """
import importlib.util, json, pickle, runpy, sys
from pathlib import Path
viewer = runpy.run_path(str(Path(importlib.util.find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"))
with open(sys.argv[1], "rb") as file:
    lines = viewer["memory"](pickle.load(file), format_flamegraph=lambda lines, script=None: lines).splitlines()
print(json.dumps([sum(int(line.rsplit(" ", 1)[1]) for line in lines), len(lines)]))
"""
PICTURE = """
import importlib.util, runpy, sys
from pathlib import Path
sys.argv = ["_memory_viz", "trace_plot", sys.argv[1], "-o", sys.argv[2]]
viewer = Path(importlib.util.find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"
runpy.run_path(str(viewer), run_name="__main__")
"""
OPEN = """
import sys
from pathlib import Path
from ullage.recorded.snapshot.snapshot import load_snapshot
print(sum(len(history) for history in load_snapshot(Path(sys.argv[1])).devices.values()))
"""


# ---- a large file


class Emitter:
    """Plain data as Python's own pickle writes it: a text or a frame that was written is named again."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self.count = 0

    def _kept(self, value: object = None) -> bytes:
        if value is not None:
            self._numbers[value] = self.count
        self.count += 1
        return b"\x94"

    def _named(self, value: object) -> bytes | None:
        number = self._numbers.get(value)
        if number is None:
            return None
        return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def of(self, value: Any) -> bytes:
        match value:
            case bool():
                return b"\x88" if value else b"\x89"
            case int():
                return pickle.dumps(value, 3)[2:-1]  # without its header and its end
            case float():
                return b"G" + struct.pack(">d", value)
            case str():
                content = value.encode()
                written = b"X" + struct.pack("<I", len(content)) + content
                return self._named(value) or written + self._kept(value)
            case tuple():
                return self.of(value[0]) + self.of(value[1]) + b"\x86" + self._kept()
            case list():
                begun = b"]" + self._kept()
                return begun + b"(" + b"".join(map(self.of, value)) + b"e" if value else begun
        shared = ("frame", id(value)) if "filename" in value else None  # PyTorch gives every entry a list of its own
        begun = self._named(shared)
        if shared and begun:
            return begun
        begun = b"}" + self._kept(shared)
        return begun + b"(" + b"".join(self.of(part) for item in value.items() for part in item) + b"u"

    def entry(self, entry: dict[str, Any]) -> tuple[bytes, int, bytes]:
        """An entry as the bytes before its time, its time, and the bytes behind it."""
        begun, names = b"}" + self._kept() + b"(", list(entry)
        at = names.index("time_us")
        before = b"".join(self.of(part) for name in names[:at] for part in (name, entry[name])) + self.of("time_us")
        behind = b"".join(self.of(part) for name in names[at + 1 :] for part in (name, entry[name]))
        return begun + before, entry["time_us"], behind + b"u"


def closed(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A trace without the request that failed, at the end of which everything is freed and given back."""
    kept = [entry for entry in trace if entry["action"] not in ("oom", "snapshot")]
    live: dict[tuple[bool, int], dict[str, Any]] = {}
    for entry in kept:
        key = (entry["action"].startswith("segment"), entry["addr"])
        if entry["action"] in ("alloc", "segment_alloc"):
            live[key] = entry
        elif entry["action"] in ("free_completed", "segment_free"):
            live.pop(key, None)
    last = kept[-1]["time_us"]
    for (is_segment, _), entry in sorted(live.items()):  # blocks before the segments in which they lie
        for action in ("segment_free",) if is_segment else ("free_requested", "free_completed"):
            kept.append({**entry, "action": action, "time_us": last})
    return kept


def repeated(history: History, at_least_bytes: int) -> Iterator[bytes]:
    """The run again and again until the file is large enough; the last time it ends as it did."""
    emitter = Emitter()
    plain = plain_of([history])
    trace = [{**entry, "compile_context": "N/A", "user_metadata": ""} for entry in plain["device_traces"][0]]
    yield b"\x80\x04}" + emitter.of("device_traces") + b"]]"
    every_us = trace[-1]["time_us"] - trace[0]["time_us"] + 1000
    written, turn = 0, 0
    while not turn or written + written // turn < at_least_bytes:
        before = emitter.count
        if turn < 2:  # what was written once is only named from then on
            entries = [emitter.entry(entry) for entry in closed(trace)]
            more = emitter.count - before
        emitter.count = before + more
        content = batched(emitter, entries, turn * every_us)
        yield content
        written, turn = written + len(content), turn + 1
    yield batched(emitter, [emitter.entry(entry) for entry in trace], turn * every_us) + b"as"
    for name in ("segments", "allocator_settings", "external_annotations"):
        yield emitter.of(name) + emitter.of(plain[name] if name != "external_annotations" else []) + b"s"
    yield b"."


def batched(emitter: Emitter, entries: list[tuple[bytes, int, bytes]], shift_us: int) -> bytes:
    written = [before + emitter.of(time_us + shift_us) + behind for before, time_us, behind in entries]
    batches = (written[at : at + 1000] for at in range(0, len(written), 1000))
    return b"".join(b"(" + b"".join(batch) + b"e" for batch in batches)


def make(path: Path, megabytes: int) -> None:
    """Write a snapshot of at least so many million bytes."""
    history = load_snapshot(DATA / "variable_length_oom.pickle.gz").devices[0]
    with path.open("wb") as file:
        for piece in repeated(history, megabytes * 1_000_000):
            file.write(piece)


# ---- measuring


class Run(NamedTuple):
    """A command that ended."""

    processor_seconds: float
    """Of all its threads; what other programs do at the same time changes it least."""
    memory_gib: float
    output: str
    seconds: float
    """On the wall: what somebody waits for."""


def run(command: list[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command to its end."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=answer, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        answer.seek(0)
        errors.seek(0)
        if os.waitstatus_to_exitcode(status):
            sys.exit(f"{' '.join(command[:4])} failed:\n{errors.read().decode()[-2000:]}")
        return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / GIB, answer.read().decode(), seconds)


def rounds(path: Path) -> range:
    """How often each tool reads a file; the least counts."""
    return range(ROUNDS_OF_LARGE if path.stat().st_size > LARGE_BYTES else ROUNDS)


def python(code: str, path: Path, *arguments: str) -> Run:
    return min(run([sys.executable, "-c", code, str(path), *arguments]) for _ in rounds(path))


def mosaic_peak(path: Path, folders: list[str]) -> Run:
    command = [sys.executable, "-m", "mosaic.cmd.get_memory_usage_peak", "--snapshot", str(path)]
    return min(run(command, os.environ | {"PYTHONPATH": ":".join(folders)}) for _ in rounds(path))


def others(folder: Path, folders: list[str]) -> dict[str, Callable[[Path], Run]]:
    """The other tools' commands that are here, each as what measures it on a file."""
    picture = str(folder / "picture.html")
    found: dict[str, Callable[[Path], Run]] = {}
    if importlib.util.find_spec("torch"):
        found["_memory_viz, the end as lines"] = lambda path: python(VIEWER, path)
        found["_memory_viz, its picture"] = lambda path: python(PICTURE, path, picture)
    if folders:
        found["mosaic, the peak"] = lambda path: mosaic_peak(path, folders)
    return found


def alone(code: str, path: Path, folders: list[str]) -> tuple[float, float, Any]:
    """Seconds and MiB of the work alone, and its figure; of several processes the least."""
    command = [sys.executable, "-c", code, str(path)]
    found = [json.loads(run(command, os.environ | {"PYTHONPATH": ":".join(folders)}).output) for _ in rounds(path)]
    return min(one[0] for one in found), min(one[1] for one in found), found[0][2]


def same_question(path: Path, name: str, folders: list[str]) -> Iterator[Measured]:
    """The time and memory of the work alone, beside those of others for the same answer."""
    pairs = []
    if importlib.util.find_spec("torch"):
        pairs.append((f"{name}: who held what at the end: ullage / _memory_viz", END, END_OF_VIEWER))
    if folders:
        pairs.append((f"{name}: when most was held, and who held it: ullage / mosaic", PEAK, PEAK_OF_MOSAIC))
    for what, own, theirs in pairs:
        seconds, memory, figure = alone(own, path, [])
        their_seconds, their_memory, their_figure = alone(theirs, path, folders)
        if figure != their_figure:
            sys.exit(f"{what}: {figure} and {their_figure} are not the same answer")
        yield Measured(f"{what}, time ({their_seconds * 1e3:.1f} ms)", seconds / their_seconds, "x", 1.0)
        yield Measured(f"{what}, memory ({their_memory:.1f} MiB)", memory / their_memory, "x", 1.0)


def beside(path: Path, name: str, rivals: dict[str, Callable[[Path], Run]]) -> Iterator[Measured]:
    """The whole `ullage explain` of a file, and what it takes of what each other tool does."""
    explain = [sys.executable, "-m", "ullage", "explain", str(path)]
    own = [run(explain) for _ in range(ROUNDS)]
    seconds, memory, *_ = min(own)
    yield Measured(f"explain {name}: the whole command", min(each.seconds for each in own), "s", 3.0)
    yield Measured("the same: of the processor, all threads", seconds, "s")
    yield Measured("the same: memory", memory, "GiB", 0.5, digits=3)
    for rival, measure in rivals.items():
        their_seconds, their_memory, *_ = measure(path)
        # What reads a file and lists its end starts sooner; in a large one ten settings are replayed, and time is told.
        is_large, tells_peak = path.stat().st_size > LARGE_BYTES, "peak" in rival
        time_bound = 1.0 if tells_peak and not is_large else None
        memory_bound = 1.0 if tells_peak or is_large else None
        yield Measured(f"time: ullage / {rival} ({their_seconds:.2f} s)", seconds / their_seconds, "x", time_bound)
        yield Measured(f"memory: ullage / {rival} ({their_memory:.3f} GiB)", memory / their_memory, "x", memory_bound)


def files(folder: Path, only: str) -> Iterator[tuple[Path, str]]:
    """The files that all tools read, as the others can: not compressed."""
    for name in filter(lambda name: only in name, ("normal", "variable_length_oom")):
        path = folder / f"{name}.pickle"
        path.write_bytes(gzip.decompress((DATA / f"{name}.pickle.gz").read_bytes()))
        yield path, f"a recorded run ({name}, {path.stat().st_size / 1e6:.1f} MB)"
    public = sorted(KEPT.glob("snapshots/*/*/**/*.pickle"), key=lambda path: path.stat().st_size)
    for path in public[-2:] if only in "public" else ():
        yield path, f"a public snapshot ({path.name}, {path.stat().st_size / 1e6:.1f} MB)"
    if only not in "million":
        return
    large = folder / "million.pickle"
    make(large, MILLION_MEGABYTES)
    entries = run([sys.executable, "-c", OPEN, str(large)]).output
    yield large, f"{int(entries):,} entries ({large.stat().st_size / 1e6:.0f} MB)"


def measurements(folder: Path, only: str) -> Iterator[Measured]:
    folders = mosaic()
    rivals = others(folder, folders)
    for path, name in files(folder, only):
        yield from same_question(path, name, folders)
        yield from beside(path, name, rivals)
    if only not in "huge":
        return
    huge = folder / "huge.pickle"
    make(huge, 500)
    seconds, memory, entries, _ = python(OPEN, huge)
    yield Measured(f"open a snapshot of 500 MB ({int(entries):,} entries)", seconds, "s", 20.0)
    yield Measured("the same: memory", memory, "GiB", 3.0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--make", nargs=2, metavar=("MB", "FILE"))
    options.add_argument("--only", default="", help="normal, variable_length_oom, public, million or huge: that alone")
    wanted = options.parse_args()
    if wanted.make:
        return make(Path(wanted.make[1]), int(wanted.make[0]))
    kept = True
    with tempfile.TemporaryDirectory(prefix="ullage-") as folder:
        for measured in measurements(Path(folder), wanted.only):
            print(measured, flush=True)
            kept = kept and measured.kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
