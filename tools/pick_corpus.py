"""Make tests/recorded/allocator/corpus from recorded runs of PyTorch's own allocator: a sequence of each configuration.

    python tools/pick_corpus.py FOLDER     with FOLDER/2.11.0/*.jsonl.gz and FOLDER/2.15.0/*.jsonl.gz

The recordings come from libc10_cuda.so of PyPI's torch 2.11.0+cu130 and 2.15.0+cu132 over a driver that does nothing;
their form is described in allocator.conformance. Which of a file's six sequences is taken goes round, so that
every kind of workload is there; one that ends in an assertion of PyTorch's own is taken in any case. Snapshot and
statistics lines are left out: they are not compared.
"""

import gzip
import json
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "tests" / "recorded" / "allocator" / "corpus"


def main() -> None:
    """Write one file for each version."""
    for version in ("2.11.0", "2.15.0"):
        picked: list[str] = []
        for number, path in enumerate(sorted(Path(sys.argv[1], version).glob("*.jsonl.gz"))):
            index, is_wanted = -1, False
            with gzip.open(path, "rt") as stream:
                for line in stream:
                    data = json.loads(line)
                    if "seq" in data:
                        index += 1
                        is_wanted = index == number % 6 or "truncated" in data
                    if is_wanted and data.get("o") not in ("n", "t"):
                        picked.append(line)
        with (OUT / f"{version}.jsonl.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as stream:
            stream.write("".join(picked).encode())


if __name__ == "__main__":
    main()
