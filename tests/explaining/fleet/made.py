"""A folder with the snapshots of many ranks, of which five differ: recorded on emulated cards, and told apart.

    python -m tests.explaining.fleet.made FOLDER [--ranks 1024]

One rank is recorded, and five that differ from it: a leak, a larger batch, another card, memory in pieces, an error of
memory. Every further rank is the first with other addresses and times, as ranks of one program have.
"""

import argparse
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.forked import client

SCRIPT: Final = Path(__file__).with_name("train.py")
GPU: Final = "H100"
KINDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "alike": (GPU, ()),
    "leak": (GPU, ("--leak",)),
    "batch": (GPU, ("--batch", "11")),
    "card": ("A100", ()),
    "pieces": (GPU, ("--lengths", "40,112,72,224,168,256")),
    "oom": ("3GiB", ("--batch", "48")),
}
"""Of each kind of rank, the emulated card and the script's arguments."""
_STEP_BYTES: Final = 64 << 20
_STEP_US: Final = 137


def planted(ranks: int) -> dict[int, str]:
    """Return which ranks differ, and as what: spread over the fleet."""
    others = [kind for kind in KINDS if kind != "alike"]
    return {(number * 2 + 1) * ranks // (2 * len(others)): kind for number, kind in enumerate(others)}


def record(kind: str, folder: Path) -> Path:
    """Record one rank of a kind, on an emulated card."""
    gpu, arguments = KINDS[kind]
    out = folder / f"{kind}.pickle"
    words = [str(SCRIPT), str(out), *arguments]
    code = f"import ullage, runpy, sys; ullage.emulate({gpu!r}); sys.argv = {words!r}; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = client.run([sys.executable, "-c", code], cwd=folder)
    if not out.exists() or (done.returncode != 0) != (kind == "oom"):
        raise RuntimeError(f"{kind}: {done.stderr[-2000:]}")
    return out


def shifted(content: bytes, rank: int) -> bytes:
    """Return a recording as another rank would have made it: with other addresses and times."""
    data: dict[str, Any] = pickle.loads(content)
    by_bytes, by_us = rank * _STEP_BYTES, rank * _STEP_US
    for segment in data["segments"]:
        segment["address"] += by_bytes
        for block in segment["blocks"]:
            if "address" in block:
                block["address"] += by_bytes
    for trace in data["device_traces"]:
        for entry in trace:
            if "addr" in entry:
                entry["addr"] += by_bytes
            if "time_us" in entry:
                entry["time_us"] += by_us
    for note in data.get("external_annotations", ()):
        note["time_us"] += by_us
    return pickle.dumps(data)


def make(
    folder: Path,
    ranks: int,
    *,
    name: Callable[[int], str] = lambda rank: f"iteration_6/rank{rank}_memory_snapshot.pickle",
    recorded: Path | None = None,
) -> dict[int, str]:
    """Write the snapshots of so many ranks, and return which differ and as what.

    Args:
        folder: where to write them.
        ranks: how many.
        name: the file of a rank, as torchtitan names it.
        recorded: a folder with the recordings of all kinds, where they were made already.
    """
    different = planted(ranks)
    with tempfile.TemporaryDirectory(prefix="ullage-") as made:
        at = recorded or Path(made)
        paths = {kind: at / f"{kind}.pickle" for kind in KINDS}
        contents = {kind: (path if path.exists() else record(kind, at)).read_bytes() for kind, path in paths.items()}
    for rank in range(ranks):
        path = folder / name(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shifted(contents[different.get(rank, "alike")], rank))
    return different


def main() -> None:
    """Make the folder, and say which ranks differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--recorded", type=Path)
    options = parser.parse_args()
    for rank, kind in sorted(make(options.folder, options.ranks, recorded=options.recorded).items()):
        print(f"rank {rank}: {kind}")


if __name__ == "__main__":
    main()
