"""Snapshots with odd names, stacks and archives: reading each takes at most 20 times the time of a plain one.

`python -m tests.fuzzing.hostile` reads 3,000 of them, and prints how many times the plain time the slowest took;
`--part 2/4` reads a quarter. Number N is always the same snapshot: `--only N` reads it again.
"""

import argparse
import copy
import gzip
import io
import lzma
import pickle
import random
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.fuzzing.campaign import environment_is_clean
from tests.fuzzing.mutation import long_name
from tests.fuzzing.readers import CORPUS, command

COUNT: Final = 3_000
MOST_TIMES: Final = 20
_SIZES: Final = (20_000, 60_000, 200_000, 600_000)  # bytes
_TRIES: Final = 3
"""A snapshot that took too long is read again: another process may have taken the time."""
_COMMANDS: Final = (
    ("explain",), ("explain", "--json"), ("explain", "--all", "--device", "all"), ("explain", "--html", "{}/page.html"),
    ("diff", "{}/plain.pickle"), ("repro", "-o", "{}/repro.py", "--budget", "0.1"), ("tune", "--budget", "0.1"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hostile:
    """A snapshot that is made to take long."""

    number: int
    kind: str
    data: bytes
    unpacked_bytes: int


def hostile(number: int) -> Hostile:
    """Return a snapshot by its number."""
    chance = random.Random(f"hostile {number}")
    kinds = list(_KINDS)
    kind = kinds[number % len(kinds)]
    whole = copy.deepcopy(_base(chance.choice(("expandable", "no_failure", "out_of_memory", "pools", "two_cards"))))
    _KINDS[kind](whole, chance, chance.choice(_SIZES))
    content = pickle.dumps(whole, protocol=chance.choice((2, 4)))
    packed = chance.choice(_PACKERS)(content, chance) if chance.random() < 0.3 else content
    return Hostile(number, kind, packed, max(len(content), len(packed)))


@cache
def _base(name: str) -> Any:
    return pickle.loads(gzip.decompress((CORPUS / f"{name}.pickle.gz").read_bytes()))


def plain(size: int) -> bytes:
    """Return an ordinary snapshot of about a number of bytes: blocks are allocated and freed, then a request fails."""
    base = 1 << 40
    stacks = [
        [{"filename": "/home/user/train.py", "name": f"step_{number}", "line": 10 + number},
         {"filename": "/home/user/model.py", "name": "forward", "line": 20 + number},
         {"filename": "??", "name": f"torch::autograd::generated::AddmmBackward{number}::apply", "line": 0}]
        for number in range(20)
    ]  # fmt: skip
    entries: list[dict[str, Any]] = [_entry("segment_alloc", base, 20 << 20, stacks[0], 0)]
    while len(entries) < max(10, size // 60):
        number = len(entries)
        address = base + number % 40 * (512 << 10)
        for action in ("alloc", "free_requested", "free_completed"):
            entries.append(_entry(action, address, 400 << 10, stacks[number % 20], len(entries)))
    entries.append(
        {
            "action": "oom",
            "size": 1 << 34,
            "stream": 0,
            "device_free": 1 << 30,
            "time_us": len(entries),
            "frames": stacks[0],
        }
    )
    segment = {
        "device": 0, "address": base, "total_size": 20 << 20, "stream": 0, "segment_type": "large",
        "allocated_size": 0, "active_size": 0, "segment_pool_id": (0, 0), "is_expandable": False, "frames": stacks[0],
        "blocks": [{"address": base, "size": 20 << 20, "requested_size": 0, "state": "inactive", "frames": []}],
    }  # fmt: skip
    return pickle.dumps({"segments": [segment], "device_traces": [entries]})


def _failure(moment: int) -> dict[str, Any]:
    return {"action": "oom", "size": 1 << 34, "stream": 0, "device_free": 1, "time_us": moment, "frames": []}


def _entry(action: str, address: int, size: int, frames: list[dict[str, Any]], moment: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": moment, "frames": frames}


# ---- what is odd


def _entries(whole: Any) -> list[dict[str, Any]]:
    return [entry for trace in whole["device_traces"] for entry in trace]


def _frame(chance: random.Random, *, name: str = "f", file: str = "") -> dict[str, Any]:
    return {"filename": file or chance.choice(("", "a.cpp", "/home/user/a.py", "??")), "name": name, "line": 7}


def _long_names(whole: Any, chance: random.Random, size: int) -> None:
    """A few frames with very long names, in many stacks."""
    frames = [_frame(chance, name=long_name(chance, size // 3)) for _ in range(3)]
    for entry in _entries(whole)[:: chance.choice((1, 3))]:
        entry["frames"] = [chance.choice(frames), *(entry.get("frames") or ())]


def _different_long_names(whole: Any, chance: random.Random, size: int) -> None:
    """Each stack has a long name that no other has."""
    entries = _entries(whole)
    for entry in entries:
        name = long_name(chance, size // len(entries))
        entry["frames"] = [_frame(chance, name=name), *(entry.get("frames") or ())]


def _long_files(whole: Any, chance: random.Random, size: int) -> None:
    """Long names of files."""
    frames = [_frame(chance, file=long_name(chance, size // 4) + chance.choice(("", ".py", ".so"))) for _ in range(4)]
    for entry in _entries(whole)[:: chance.choice((1, 2))]:
        entry["frames"] = [chance.choice(frames), *(entry.get("frames") or ())]


def _deep_stacks(whole: Any, chance: random.Random, size: int) -> None:
    """A stack with thousands of frames, which many entries have."""
    names = [long_name(chance, 20) for _ in range(10)]
    stack = [_frame(chance, name=chance.choice(names)) for _ in range(size // 60)]
    for entry in _entries(whole)[:: chance.choice((1, 5))]:
        entry["frames"] = stack


def _many_stacks(whole: Any, chance: random.Random, size: int) -> None:
    """A different deep stack for each entry, of frames that are shared."""
    entries = _entries(whole)
    length = chance.choice((30, 30, size // 8))
    frames = [_frame(chance, name=long_name(chance, length)) for _ in range(2 if length > 30 else 50)]
    for entry in entries:
        entry["frames"] = chance.choices(frames, k=max(1, size // len(entries) // 3))


def _repeated_names(whole: Any, chance: random.Random, size: int) -> None:
    """One long name in thousands of frames, which differ in their line: a pickle contains the name once."""
    name, file = long_name(chance, size // 4), long_name(chance, chance.choice((9, size // 8))) + ".py"
    for number, entry in enumerate(_entries(whole)):
        frames = [
            {"filename": chance.choice(("", file)), "name": name, "line": line} for line in (number, 9**9 - number)
        ]
        entry["frames"] = [*frames, *(entry.get("frames") or ())]


def _labels(whole: Any, chance: random.Random, size: int) -> None:
    """Long labels of users, contexts and annotations."""
    for number, entry in enumerate(_entries(whole)):
        entry["user_metadata"] = long_name(chance, size // 300 if number else size // 2)
        entry["compile_context"] = long_name(chance, 40)
    whole["external_annotations"] = [
        {
            "device": 0,
            "name": long_name(chance, size // 400),
            "stage": chance.choice(("START", "END")),
            "time_us": moment,
        }
        for moment in range(100)
    ]


def _settings(whole: Any, chance: random.Random, size: int) -> None:
    """Long settings of the allocator, and unknown fields."""
    whole["allocator_settings"] = {
        "PYTORCH_CUDA_ALLOC_CONF": long_name(chance, size), "last_allocator_settings": long_name(chance, size),
        long_name(chance, 100): long_name(chance, 100), "roundup_power2_divisions": {long_name(chance, 9): 4},
    }  # fmt: skip
    whole[long_name(chance, 50)] = [[long_name(chance, 10)] * 100]


def _actions(whole: Any, chance: random.Random, size: int) -> None:
    """Unknown actions with long names, and many failures."""
    entries = _entries(whole)
    for entry in entries[:: chance.choice((2, 9))]:
        entry["action"] = chance.choice((long_name(chance, size // len(entries)), "snapshot", "workspace_snapshot"))
    more = [
        {"action": "oom", "size": 1 << 40, "stream": 0, "device_free": 1, "time_us": n, "frames": []}
        for n in range(200)
    ]
    whole["device_traces"][0] += more


_KINDS: Final[dict[str, Callable[[Any, random.Random, int], None]]] = {
    "long names": _long_names,
    "different long names": _different_long_names,
    "long names of files": _long_files,
    "deep stacks": _deep_stacks,
    "many stacks": _many_stacks,
    "repeated names": _repeated_names,
    "labels": _labels,
    "settings": _settings,
    "actions": _actions,
}


# ---- archives


def _zip(content: bytes, chance: random.Random) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        archive.comment = b"PK\x05\x06" * chance.choice((0, 10_000))
        for number in range(chance.choice((0, 0, 3_000))):
            archive.writestr(f"__MACOSX/{number}{long_name(chance, 40)[:200]}", b"")
        archive.writestr(
            chance.choice(("a", "x/data.pkl", "n" * 60_000, "x" + long_name(chance, 1000)[:2000])), content
        )
    return made.getvalue()


def _gzip(content: bytes, chance: random.Random) -> bytes:
    size = chance.choice((len(content), 100, 7))  # many members, of which each has few bytes
    pieces = [content[at : at + size] for at in range(0, min(len(content), 3_000 * size), size)]
    pieces.append(content[len(pieces) * size :])
    return b"".join(gzip.compress(piece, 1, mtime=0) for piece in pieces) + b"\0" * chance.choice((0, 100_000))


_PACKERS: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (
    _zip,
    _gzip,
    lambda content, chance: _zip(_gzip(content, chance), chance),
    lambda content, chance: _gzip(_zip(content, chance), chance),
    lambda content, chance: _zip(_zip(content, chance), chance)[: chance.choice((None, -30))],
    lambda content, chance: lzma.compress(content, preset=0),
    lambda content, chance: (gz := _gzip(content, chance))[: chance.randrange(len(gz))],
)


# ---- measuring


@dataclass(frozen=True, slots=True)
class Measured:
    """How long a snapshot took."""

    snapshot: Hostile
    command: str
    seconds: float
    times: float
    """The time as a multiple of the time of a plain snapshot with the same size."""
    code: int


def measured(number: int, scratch: Path) -> Measured:
    """Read a snapshot, and a plain one by the same command if that was not read yet."""
    snapshot, words = hostile(number), _COMMANDS[number // len(_KINDS) % len(_COMMANDS)]
    seconds, times, code = times_of(snapshot.data, words, scratch, size=snapshot.unpacked_bytes)
    return Measured(snapshot, " ".join(words), seconds, times, code)


def times_of(data: bytes, words: tuple[str, ...], scratch: Path, *, size: int = 0) -> tuple[float, float, int]:
    """Return the seconds that a command takes for a snapshot, the same as a multiple of a plain one, and its exit code.

    Args:
        data: the snapshot.
        words: the command and its options.
        scratch: a folder to write to.
        size: the size of the snapshot when it is unpacked; 0: it is not packed.
    """
    file = scratch / "snapshot.pickle"
    file.write_bytes(data)
    usual_size = max((each for each in _SIZES if each <= (size or len(data))), default=_SIZES[0])
    usual, seconds = _plain_seconds(words, usual_size, scratch), float("inf")
    for _ in range(_TRIES):
        taken, code = _seconds(words, file, scratch)
        seconds = min(seconds, taken)
        if seconds <= MOST_TIMES * usual / 2:
            break
    return seconds, seconds / usual, code


@cache
def _plain_seconds(words: tuple[str, ...], size: int, scratch: Path) -> float:
    file, other = scratch / "usual.pickle", scratch / "plain.pickle"
    other.write_bytes(plain(_SIZES[0]))
    file.write_bytes(plain(size))
    return min(_seconds(words, file, scratch)[0] for _ in range(3))


def _seconds(words: tuple[str, ...], file: Path, scratch: Path) -> tuple[float, int]:
    name, *options = (word.format(scratch) for word in words)
    began = time.process_time()
    outcome = command(name, str(file), *options)
    seconds = time.process_time() - began
    assert outcome.code in (0, 1, 2), outcome.err[-2000:]
    return seconds, outcome.code


def all_measured(numbers: Iterable[int]) -> Iterator[Measured]:
    """Read snapshots one after the other."""
    environment_is_clean()
    with tempfile.TemporaryDirectory(prefix="ullage-hostile-") as folder:
        yield from (measured(number, Path(folder)) for number in numbers)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.hostile", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--part", default="1/1", help="Such as 2/4: the second quarter.")
    parser.add_argument("--only", type=int)
    wanted = parser.parse_args()
    part, parts = (int(text) for text in wanted.part.split("/"))
    numbers = range(part - 1, wanted.count, parts) if wanted.only is None else range(wanted.only, wanted.only + 1)
    found = []
    for one in all_measured(numbers):
        found.append(one)
        if one.times > MOST_TIMES or wanted.only is not None:
            size, name = one.snapshot.unpacked_bytes, f"{one.snapshot.number}: {one.snapshot.kind}, {one.command}"
            print(f"{name}: {one.seconds:.2f} s, {one.times:.1f} times a plain one of {size:,} bytes", flush=True)
    ranked = sorted(one.times for one in found)
    slow, refused = sum(times > MOST_TIMES for times in ranked), sum(one.code == 2 for one in found)
    middle = ranked[len(ranked) // 2]
    print(
        f"{len(found):,} snapshots, {refused:,} of them refused with a sentence. As multiples of the time of a plain "
        f"one of the same size: the median {middle:.1f}, the slowest {ranked[-1]:.1f}; {slow} above {MOST_TIMES}."
    )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
