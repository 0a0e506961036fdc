"""How fast snapshots are opened and explained, against bounds and beside other tools on the same file: `make bench`.

A recorded run of tests/snapshot/data is repeated, its times shifted, until the file is as large as wanted. Beside it
stand mosaic (set MOSAIC to a folder with facebookresearch/mosaic; it is not on PyPI) and torch.cuda._memory_viz, which
does less: it says who holds what at the end, not at the peak. `--make MB FILE` only writes one. Exits 1 past a bound.
"""

import argparse
import importlib.util
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figure import Measured

from ullage.history import History
from ullage.snapshot.snapshot import load_snapshot
from ullage.snapshot.writer import plain_of

DATA = Path(__file__).resolve().parents[1] / "tests" / "snapshot" / "data"
MIB = 1 << 20
GIB = 1 << 30
ROUNDS = 3

# Each reads argv[1], and prints the bytes that were held and how many lines held them, as JSON.
OURS = """
import json, sys
from pathlib import Path
from ullage.difference.holding import holding_at_peak
from ullage.snapshot.snapshot import load_snapshot
holding = holding_at_peak([load_snapshot(Path(sys.argv[1])).devices[0]])
print(json.dumps([holding.allocated_bytes, len(holding.places)]))
"""
MOSAIC = """
import json, os, sys
sys.path.insert(0, os.environ["MOSAIC"])
from mosaic.libmosaic.analyzer.memory_abstract import MemoryAbstract
found = MemoryAbstract(memory_snapshot_file=sys.argv[1])
found.load_memory_snapshot()
found.memory_snapshot.analyze_memory_snapshot(opt="memory_peak")
print(json.dumps([found.memory_snapshot.dynamic_memory_peak, len(found.memory_snapshot.call_stack_hash_set)]))
"""
VIEWER = """
import importlib.util, json, pickle, runpy, sys
from pathlib import Path
viewer = runpy.run_path(str(Path(importlib.util.find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"))
with open(sys.argv[1], "rb") as file:
    lines = viewer["memory"](pickle.load(file), format_flamegraph=lambda lines, script=None: lines).splitlines()
print(json.dumps([sum(int(line.rsplit(" ", 1)[1]) for line in lines), len(lines)]))
"""
OPEN = """
import sys
from pathlib import Path
from ullage.snapshot.snapshot import load_snapshot
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


def run(command: list[str]) -> tuple[float, float, str]:
    """Seconds, the largest memory in GiB and the output of a command."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=answer, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        answer.seek(0)
        errors.seek(0)
        if os.waitstatus_to_exitcode(status):
            sys.exit(f"{' '.join(command[:4])} failed:\n{errors.read().decode()[-2000:]}")
        return seconds, usage.ru_maxrss * 1024 / GIB, answer.read().decode()


def python(code: str, path: Path) -> tuple[float, float, str]:
    return min(run([sys.executable, "-c", code, str(path)]) for _ in range(ROUNDS))


def against(path: Path) -> Iterator[Measured]:
    """Loading and who held what at the peak: the whole process, beside others on the same file."""
    ours, memory, answer = python(OURS, path)
    peak, lines = json.loads(answer)
    yield Measured(f"load and attribute the peak ({peak / MIB:,.0f} MiB, {lines} lines)", ours, "s")
    yield Measured("the same: memory", memory, "GiB")
    others = [("torch.cuda._memory_viz (the end only)", VIEWER)] if importlib.util.find_spec("torch") else []
    if os.environ.get("MOSAIC"):
        others.append(("mosaic", MOSAIC))
    else:
        print("     mosaic is left out: set MOSAIC to a folder with github.com/facebookresearch/mosaic")
    for name, code in others:
        theirs, their_memory, answer = python(code, path)
        yield Measured(
            f"ratio {name} / ullage ({theirs:.2f} s, {their_memory:.2f} GiB; {answer.strip()})", theirs / ours, "x"
        )


def measurements(folder: Path) -> Iterator[Measured]:
    small, large = folder / "small.pickle", folder / "large.pickle"
    make(small, 20)
    explain = [sys.executable, "-m", "ullage", "explain", str(small), "--json"]
    seconds, memory, _ = min(run(explain) for _ in range(ROUNDS))
    yield Measured("explain a snapshot of 20 MB: the whole command", seconds, "s", 3.0)
    yield Measured("the same: memory", memory, "GiB", 1.0)
    yield from against(small)
    make(large, 500)
    seconds, memory, entries = python(OPEN, large)
    yield Measured(f"open a snapshot of 500 MB ({int(entries):,} entries)", seconds, "s", 20.0)
    yield Measured("the same: memory", memory, "GiB", 3.0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--make", nargs=2, metavar=("MB", "FILE"))
    wanted = options.parse_args().make
    if wanted:
        return make(Path(wanted[1]), int(wanted[0]))
    kept = True
    with tempfile.TemporaryDirectory(prefix="ullage-") as folder:
        for measured in measurements(Path(folder)):
            print(measured, flush=True)
            kept = kept and measured.kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
