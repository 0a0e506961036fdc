"""`python -m tests.fuzzing`: read random inputs of every kind, or one again. Exit code 1: something was found."""

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzzing.campaign import environment_is_clean, input_of, keep, run
from tests.fuzzing.judgement import judge
from tests.fuzzing.readers import READERS


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--reader", action="append", choices=sorted(READERS), help="Only this kind; may be repeated.")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--inputs", type=int, default=1 << 40, help="Stop after so many.")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=int, help="Read the input of this number again, in this process.")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="Where inputs go that were found.")
    wanted = parser.parse_args()
    names = wanted.reader or list(READERS)
    if wanted.only is not None:
        return _again(names[0], wanted.seed, wanted.only)
    result = run(names, seed=wanted.seed, inputs=wanted.inputs, seconds=60 * wanted.minutes, jobs=wanted.jobs)
    if result.findings:
        keep(result.findings, wanted.keep)
    for name, read in result.read.items():
        print(f"{name:<16} {read:>9,} inputs, {result.answered[name]:>9,} answered, the others refused with a sentence")
    print(f"seed {wanted.seed}: {result.read.total():,} inputs, {len(result.findings)} findings")
    return 1 if result.findings else 0


def _again(name: str, seed: int, number: int) -> int:
    environment_is_clean()
    with tempfile.TemporaryDirectory() as scratch:
        found = judge(READERS[name], input_of(READERS[name], seed, number), Path(scratch)).findings
    print("\n".join(found) or "nothing was found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
