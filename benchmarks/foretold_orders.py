"""Count the random orders whose batches `--batches heaviest` foretells wrongly: `python -m benchmarks.foretold_orders`.

The collations are those of tests/predicting/epoch that truncate or pack texts. Exit code 1 if any order is foretold
wrongly.
"""

import argparse
import sys

import ullage

ullage.emulate("T4", values="off")  # torch's CUDA build asks for CUDA when it is imported; all of this is on the CPU

from tests.predicting.epoch.scanning import every_batch_is_as_foretold, packed, padded  # noqa: E402  the GPU has to be there first


def main() -> int:
    """Go through the orders of so many seeds, and print how many are foretold wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=400, help="random orders of each collation (default: 400)")
    count = parser.parse_args().orders
    total = 0
    for name, collate in (("truncated", padded(8, 32)), ("packed", packed)):
        wrong = 0
        for seed in range(count):
            try:
                every_batch_is_as_foretold(collate, is_foretold=False, knows=False, seed=seed)
            except AssertionError:
                wrong += 1
        print(f"{name}: {wrong} of {count} orders foretold wrongly", flush=True)
        total += wrong
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
