"""How many of PyTorch's own tests of CUDA pass on an emulated card, with values off and with everything computed.

    python benchmarks/values/torch_tests/run.py FILE [--values off all] [--card A100] [--names REGEX] [--out table.csv]

FILE is `test/test_cuda.py` of a release of PyTorch's; it is not part of this project. Debian's source package has one:
`apt-get source --download-only pytorch`. Tests run one after the other in a process, which is begun anew after a test
that ends it or takes too long; what fails is run again in a process of its own. `expecttest` has to be installed.
"""

import argparse
import csv
import json
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CHILD: Final = Path(__file__).with_name("child.py")
_MEMORY: Final = re.compile(
    r"(?i)mem|alloc|pool|graph|stream|oom|event|cache|snapshot|pin|trace|checkpoint|segment|block|gc"
)
"""Tests of memory, streams, graphs and pools, by their names."""

Ends = dict[str, tuple[str, str]]
"""How each test ended, and why."""


def _command(options: argparse.Namespace, values: str, *more: str) -> list[str]:
    return [sys.executable, "-W", "ignore", str(_CHILD), options.file, values, options.card, *more]


def _lines(process: subprocess.Popen[bytes], seconds: float) -> Iterator[dict[str, str]]:
    """Yield what a child says; ends where it is silent for too long."""
    assert process.stdout is not None
    pending = b""
    last = time.monotonic()
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(last + seconds - time.monotonic(), 0))
        if not ready:
            return
        read = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
        if not read:
            return
        last = time.monotonic()
        *whole, pending = (pending + read).split(b"\n")
        yield from map(json.loads, whole)


def _run(options: argparse.Namespace, values: str, names: list[str]) -> Ends:
    """Run tests until each has ended in some way."""
    ends: Ends = {}
    while remaining := [name for name in names if name not in ends]:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as listed:
            json.dump(remaining, listed)
            listed.flush()
            process = subprocess.Popen(_command(options, values, listed.name), stdout=subprocess.PIPE)
            current = remaining[0]
            for line in _lines(process, options.seconds):
                if "begins" in line:
                    current = line["begins"]
                else:
                    ends[line["name"]] = (line["how"], line["why"])
                    at = f"{values:4} {len(ends):3}/{len(names)}"
                    print(at, line["how"], line["name"], line["why"][:100], file=sys.stderr, flush=True)
            if process.poll() is None:
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
            code = process.wait()
            if current not in ends:
                why = f"no end within {options.seconds} s" if code == -9 else f"the process ended with {code}"
                ends[current] = ("failed", why)
    return ends


def main() -> None:
    """Do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--values", nargs="+", default=["off", "all"])
    parser.add_argument("--card", default="A100")
    parser.add_argument("--names", default="", help="only tests whose names match")
    parser.add_argument("--seconds", type=int, default=60, help="the longest that a test may take")
    parser.add_argument("--once", action="store_true", help="what fails is not run again by itself")
    parser.add_argument("--out", default="")
    options = parser.parse_args()
    listed = subprocess.run(_command(options, "off"), stdout=subprocess.PIPE, check=True).stdout
    names = [name for name in json.loads(listed) if re.search(options.names, name)]
    found: dict[str, Ends] = {}
    for values in options.values:
        found[values] = _run(options, values, names)
        failed = [name for name, (how, _) in found[values].items() if how == "failed"]
        for name in [] if options.once else failed:
            found[values] |= _run(options, values, [name])
    rows = [
        [
            name,
            "memory" if _MEMORY.search(name) else "other",
            *(each for values in options.values for each in found[values][name]),
        ]
        for name in names
    ]
    if options.out:
        with Path(options.out).open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(
                ["test", "kind", *(f"{values}: {each}" for values in options.values for each in ("end", "why"))]
            )
            writer.writerows(rows)
    for kind in ("memory", "other"):
        for number, values in enumerate(options.values):
            ends = [row[2 + 2 * number] for row in rows if row[1] == kind]
            counts = {how: ends.count(how) for how in ("passed", "failed", "skipped")}
            print(f"{kind:8} values {values:4} " + ", ".join(f"{count} {how}" for how, count in counts.items()))


if __name__ == "__main__":
    main()
