"""How long `ullage explain FOLDER` takes for the snapshots of 256, 512 and 1,024 ranks, and in how much memory.

    python -m benchmarks.fleet.measure [--ranks 256,512,1024] [--workers 2] [--folder FOLDER]

The snapshots are those of tests.explaining.fleet.made: one recorded rank at many addresses, and five that differ. Times
are of the processor, of all processes together; memory is what all of them have resident at once, looked at ten times a
second.
Exits 1 where another rank than the five is named, 1,024 ranks take more than three minutes of two cores or 2 GiB, or
twice the ranks take more than two and a half times as long.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.explaining.fleet.made import KINDS, make, record

_MOST_SECONDS: Final = 360.0
"""Of a processor: three minutes of two."""
_MOST_BYTES: Final = 2 << 30
_MOST_TIMES: Final = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    ranks: int
    processor_seconds: float
    resident_bytes: int
    named: bool
    """Whether exactly the five that differ are named."""


def measure(folder: Path, different: dict[int, str], workers: int) -> Measured:
    """Explain a folder, and return what it took."""
    began = os.times()
    command = [sys.executable, "-m", "ullage", "explain", str(folder), "--json", "--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    most, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            most[0] = max(most[0], _resident(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    answer = json.loads(process.communicate()[0])
    is_over.set()
    watcher.join()
    ended = os.times()
    spent = ended.children_user + ended.children_system - began.children_user - began.children_system
    found = {one["rank"] for one in answer["different"]}
    return Measured(
        ranks=len(answer["ranks"]),
        processor_seconds=spent,
        resident_bytes=most[0],
        named=found == different.keys(),
    )


def _resident(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        return total
    return total


def main() -> int:
    """Measure and print, a row for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="256,512,1024")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where recordings are kept and folders are made")
    options = parser.parse_args()
    counts = sorted(int(text) for text in options.ranks.split(","))
    top = options.folder or Path(tempfile.mkdtemp(prefix="ullage-"))
    recorded = top / "recorded"
    recorded.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        if not (recorded / f"{kind}.pickle").exists():
            record(kind, recorded)
    rows: list[Measured] = []
    for ranks in counts:
        folder = top / f"ranks-{ranks}"
        shutil.rmtree(folder, ignore_errors=True)
        different = make(folder, ranks, recorded=recorded)
        rows.append(measure(folder, different, options.workers))
        shutil.rmtree(folder)
        row = rows[-1]
        print(
            f"{row.ranks:,} ranks: {row.processor_seconds:.1f} s of a processor "
            f"({1000 * row.processor_seconds / row.ranks:.0f} ms a rank), {row.resident_bytes / 2**20:.0f} MiB, "
            f"{'the five are named' if row.named else 'OTHERS ARE NAMED'}",
            flush=True,
        )
    if options.folder is None:
        shutil.rmtree(top)
    last = rows[-1]
    linear = all(
        after.processor_seconds <= _MOST_TIMES / 2 * after.ranks / before.ranks * before.processor_seconds
        for before, after in itertools.pairwise(rows)
    )
    is_fast = last.processor_seconds <= _MOST_SECONDS * last.ranks / 1024
    return 0 if linear and is_fast and last.resident_bytes <= _MOST_BYTES and all(row.named for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
