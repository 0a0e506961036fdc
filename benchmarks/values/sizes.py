"""Put what values decide that are computed beside what is decided by values that are drawn.

python benchmarks/values/sizes.py --measure [PROGRAM ...]
python benchmarks/values/sizes.py

Each program of programs/ is run on an emulated card that has the CPU compute everything, which tells the real sizes
and the peak that they make, and on one that draws what nobody knows, five times with seeds of their own. With --measure
the figures are written to sizes.json; without, the table is printed from there. The largest of a real run's sizes, or
its peak, is inside where it lies in the interval that a prediction gives of the five (`interval_of_peaks`): that which
holds one more draw in 95 of 100 cases, and half a percent more. How many lie in the former alone is said, too. What is
installed decides which programs are measured: transformers, torchvision, trl with datasets, ultralytics, and
torch_geometric (`make values` installs them).
"""

import argparse
import fcntl
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from ullage.predicting.prediction.verdict.draw_interval import interval_of_draws, interval_of_peaks

FIGURES: Final = Path(__file__).parent / "sizes.json"
DRAWS: Final = 5
MIB: Final = 1 << 20
MARKS: Final = {True: "inside", False: "OUTSIDE"}


def measure(names: list[str]) -> None:
    """Measure programs, and write their figures beside those of the others."""
    from runs import ALL, DRAWN, load, run

    load()
    from programs import PROGRAMS

    for name in names or PROGRAMS:
        real = run(name, ALL)
        if real.error.startswith("ModuleNotFoundError"):
            print(f"{name}: {real.error.splitlines()[0]}", flush=True)
            continue
        draws = [run(name, DRAWN, seed=seed) for seed in range(DRAWS)]
        figures = {
            "real": _largest(real.sizes),
            "real_peak_bytes": real.peak_bytes,
            "draws": [_largest(each.sizes) for each in draws],
            "peak_bytes": [each.peak_bytes for each in draws],
            "errors": [each.error.strip().splitlines()[0] for each in (real, *draws) if each.error],
            "failures": sorted({failure for each in draws for failure in each.failures}),
        }
        print(name, figures["errors"] or "", flush=True)
        with FIGURES.open("a+") as file:  # several may measure at the same time
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            found = json.loads(file.read() or "{}")
            found[name] = figures
            file.truncate(0)
            file.write(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


def _largest(sizes: dict[str, list[float]]) -> dict[str, float]:
    return {name: max(each) for name, each in sizes.items()}


def table(found: dict[str, Any]) -> str:
    """Return the figures as a table, and what they say together."""
    rows = [("program", "what", "real", "5 draws", "", "peak, MiB", "5 draws", "", "width")]
    inside: list[bool] = []
    narrowly: list[bool] = []
    peaks: list[bool] = []
    widths: list[float] = []
    off: list[float] = []
    for name, each in found.items():
        if each["errors"] or not each["real_peak_bytes"]:
            rows.append((name, "error", "", "", "", "", "", "", ""))
            continue
        low, high = interval_of_peaks(each["peak_bytes"])
        width = 100 * (high - low) / high
        widths.append(width)
        real = each["real_peak_bytes"]
        peaks.append(low <= real <= high)
        off.append(100 * max(low - real, real - high, 0) / real)
        peak = (
            f"{each['real_peak_bytes'] / MIB:.2f}",
            f"{low / MIB:.2f} to {high / MIB:.2f}",
            MARKS[peaks[-1]] if peaks[-1] else f"off by {off[-1]:.2f} %",
        )
        for number, (what, real) in enumerate(each["real"].items()):
            drawn = [draw[what] for draw in each["draws"] if what in draw] or [0]
            least, most = interval_of_draws(drawn)
            narrowly.append(least <= real <= most)
            least, most = interval_of_peaks(drawn)
            inside.append(least <= real <= most)
            span = f"{least:.4g} to {most:.4g}"
            last = (*peak, f"{width:.1f} %") if not number else ("", "", "", "")
            rows.append((name if not number else "", what, f"{real:g}", span, MARKS[inside[-1]], *last))
    columns = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(part.ljust(columns[place]) for place, part in enumerate(row)).rstrip() for row in rows]
    lines += [
        "",
        f"sizes inside of 5 draws: {sum(inside)} of {len(inside)} ({100 * sum(inside) / max(len(inside), 1):.0f} %)",
        f"sizes inside of 5 draws without the half percent: {sum(narrowly)} of {len(narrowly)}",
        f"peaks inside of 5 draws: {sum(peaks)} of {len(peaks)} ({100 * sum(peaks) / max(len(peaks), 1):.0f} %)",
        f"peaks at most 1 % outside of 5 draws: {sum(each <= 1 for each in off)} of {len(off)}",
        f"median width of the peak: {statistics.median(widths) if widths else 0:.1f} % of it",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("programs", nargs="*")
    options = parser.parse_args()
    if options.measure:
        measure(options.programs)
    print(table(json.loads(FIGURES.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
