"""How often the rules of placement foretell where real drivers put segments: `python benchmarks/placement.py FILE...`.

Every file is a memory snapshot with segment events. Each segment is foretold with all before it where they really were
(teacher-forced); a hit is the exact address. The rules are the core's own. Beside the rule of the file's own system
stand the others. Whatever else of the process lay there (pinned memory, libraries, what was reserved before) is not in
the files and counts as misses. A run that is in several files counts once.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ullage.base.errors import UllageError
from ullage.base.units import MIB
from ullage.recorded.allocator.placement import PLACEMENTS, foretell, placement_of
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column
from ullage.recorded.rebuild import program_of
from ullage.recorded.snapshot.snapshot import load_snapshot

PAGE_BYTES = 2 * MIB


def whole_pages(size: Column) -> Column:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def events_of(history: History) -> tuple[str, Column, Column, Column]:
    """The system's rule; address, size (negative: given back) and whether it is new, of every segment in order."""
    program = program_of(history).program
    before = [(segment.address, sum(size for size, *_ in segment.blocks)) for segment in program.start]
    rows = np.isin(history.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    is_new = (history.action[rows] == Action.SEGMENT_ALLOC).astype(np.int64)
    size = whole_pages(history.size[rows]) * np.where(is_new, 1, -1)
    there = np.array(before, np.int64).reshape(-1, 2)
    return (
        placement_of(program),
        np.concatenate([there[:, 0], history.address[rows]]),
        np.concatenate([whole_pages(there[:, 1]), size]),
        np.concatenate([np.zeros(len(there), np.int64), is_new]),
    )


def runs_of(paths: list[Path]) -> Iterator[tuple[str, str, Column, Column, Column]]:
    """Every run that has segment events, once: its name, and its events."""
    seen: set[bytes] = set()
    for path in paths:
        try:
            devices = load_snapshot(path).devices
        except UllageError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        for device, history in devices.items():
            placement, *columns = events_of(history)
            key = b"".join(column.tobytes() for column in columns)
            if columns[2].any() and key not in seen:
                seen.add(key)
                yield f"{path.name}{f' card {device}' if len(devices) > 1 else ''}", placement, *columns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    rules = list(PLACEMENTS)
    totals = {name: [0] * (len(rules) + 2) for name in ("linux", "windows")}
    print(f"{'placed':>7} {'system':>8} " + " ".join(f"{rule:>10}" for rule in rules))
    for name, system, address, size, is_new in runs_of(options.files):
        placed = int(is_new.sum())
        hits = [int((foretell(address, size, is_new, rule) == address)[is_new > 0].sum()) for rule in rules]
        for index, value in enumerate((1, placed, *hits)):
            totals[system][index] += value
        print(f"{placed:7,} {system:>8} " + " ".join(f"{hit:10,}" for hit in hits) + f"  {name}")
    for system, (runs, placed, *hits) in totals.items():
        if placed:
            shares = ", ".join(f"{rule} {hit:,} ({hit / placed:.1%})" for rule, hit in zip(rules, hits, strict=True))
            print(f"{runs} runs with addresses of {system}, {placed:,} segments placed; foretold by {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
