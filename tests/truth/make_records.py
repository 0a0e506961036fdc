"""Make `records.jsonl.gz` of a file of measurements: `python make_records.py SOURCE.jsonl`.

It keeps what is the same in every run: sizes, and PyTorch's counters. Times go, and so does `lstm_lm`, whose bytes
depend on guessed workspaces of cuDNN. The same source gives the same bytes. It prints the table of `MANIFEST.md`.
"""

import argparse
import gzip
import hashlib
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

RECORDS: Final = Path(__file__).with_name("records.jsonl.gz")
_LEFT_OUT: Final = frozenset({"lstm_lm"})
_KEPT: Final = (
    *("name", "gpu", "total", "cc", "torch", "cudnn", "alloc_conf"),
    *("param_bytes", "trainable_bytes", "buffer_bytes", "optimizer_bytes", "oom"),
)


def kept(row: dict[str, Any]) -> dict[str, Any]:
    """Return one record: facts, and the counters by moment."""
    moments = {"build": row["after_build"]}
    moments |= {f"step {number}": counters for number, counters in enumerate(row["steps"], start=1)}
    if "at_oom" in row:
        moments["out of memory"] = row["at_oom"]
    return {key: row.get(key) for key in _KEPT} | {
        "moments": {moment: _deterministic(counters) for moment, counters in moments.items()}
    }


def _deterministic(counters: dict[str, Any]) -> dict[str, int]:
    return {name: value for name, value in counters.items() if name != "wall_ms"}


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Sort by torch, then by card, so that neighbours can share a process."""
    return row["torch"], row["alloc_conf"], row["gpu"], row["name"]


def packed(rows: list[dict[str, Any]]) -> bytes:
    """Compress the rows, one JSON object a line, without a time or a file name in the header."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0, compresslevel=9) as stream:
        for row in rows:
            stream.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
    return buffer.getvalue()


def main() -> None:
    """Write the records and say what is in them."""
    parser = argparse.ArgumentParser(description="Make the recorded truths of a file of measurements.")
    parser.add_argument("source", type=Path, help="one measurement a line, JSON")
    source = parser.parse_args().source.read_bytes()
    rows = [json.loads(line) for line in source.splitlines()]
    rows = sorted((kept(row) for row in rows if row["name"] not in _LEFT_OUT), key=order)
    data = packed(rows)
    RECORDS.write_bytes(data)
    sets = Counter((row["torch"], row["cudnn"], row["gpu"], row["total"], row["alloc_conf"]) for row in rows)
    print("| torch | cuDNN | card | total bytes | allocator settings | records |\n|---|---|---|---|---|---|")
    for (torch, cudnn, gpu, total, settings), count in sets.items():
        print(f"| {torch} | {cudnn} | {gpu} | {total} | {settings} | {count} |")
    print(f"\nsource sha256 {hashlib.sha256(source).hexdigest()}")
    # The compressed bytes depend on the version of zlib, the lines do not.
    print(f"lines sha256 {hashlib.sha256(gzip.decompress(data)).hexdigest()} ({len(rows)} records, {len(data)} bytes)")


if __name__ == "__main__":
    main()
