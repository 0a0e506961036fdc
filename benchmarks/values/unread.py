"""What values cost a prediction of a script that reads none: `ullage predict` with --values auto beside off.

    python benchmarks/values/unread.py [--rounds 25] [--steps 3 20] [--before COMMIT]

What is compared is processor time, the system's with the user's, of the whole tree of processes. The sides take turns,
and begin in turn, so that what else runs on the machine weighs on all alike; a round's ratio is of runs one after the
other. The median of the ratios is told with the interval that holds it in 95 of 100 cases (by the order of the ratios),
and whether the interval lies within the bound. With --before the same is done with an earlier commit, built into a
folder of its own and imported from there with the same torch. The script is examples/train_gpt2.py (GPT-2 small), which
logs its loss and reads nothing else. Where a machine is too noisy to tell 2 %, the last line does: what auto does
beside off is to read the script's source, and that is timed by itself, the import of what reads it with it.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from before import ROOT, build

SCRIPT = "examples/train_gpt2.py"
BOUND = 1.02
SURE = 0.05


def seconds(options: list[str], package: Path | None) -> float:
    """Predict once, and return the processor time that it took with all of its processes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "ULLAGE_"))}
    if package is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(package), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "ullage", "predict", SCRIPT, "--gpu", "RTX 4090", "--json", *options]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        sys.exit(said.decode()[-2000:])
    return usage.ru_utime + usage.ru_stime


def seconds_of_reading() -> float:
    """The processor time in which a script's source is read: what auto does beside off where nothing is read."""
    code = (
        "import sys, time; from pathlib import Path; before = time.process_time(); "
        "from ullage.gpu.values.likely_reads import seems_to_read_none; "
        "assert seems_to_read_none(Path(sys.argv[1])); print(time.process_time() - before)"
    )
    command = [sys.executable, "-c", code, SCRIPT]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(9)]
    return statistics.median(float(run.stdout) for run in runs)


def interval_of_median(numbers: list[float]) -> tuple[float, float]:
    """Return the narrowest interval of two of the numbers, as far from either end, that holds the median in 95 % of all
    cases: as many heads as that in as many throws of a coin."""
    ordered, count = sorted(numbers), len(numbers)
    outside, cut = 0.0, 0
    while cut < count // 2 and (outside := outside + 2 * math.comb(count, cut) / 2**count) <= SURE:
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[count - 1 - cut]


def table(steps: int, found: dict[str, list[float]]) -> list[str]:
    """Return a line for each side."""
    lines = []
    for name, each in found.items():
        ratios = [one / other for one, other in zip(each, found["off"], strict=True)]
        low, high = interval_of_median(ratios)
        verdict = "" if name == "off" else ("within" if high <= BOUND else "ABOVE" if low > BOUND else "undecided")
        lines.append(
            f"{steps:5}  {name:8} {statistics.median(each):9.2f} {min(each):8.2f} {max(each):7.2f} "
            f"{statistics.median(ratios):13.3f}  {low:.3f} to {high:.3f}  {verdict}".rstrip()
        )
    return lines


def main() -> None:
    """Print a line for each number of steps and each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--steps", type=int, nargs="*", default=[3, 20])
    parser.add_argument("--before", metavar="COMMIT")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        earlier = build(arguments.before, Path(folder)) if arguments.before else None
        sides: dict[str, tuple[list[str], Path | None]] = {
            "off": (["--values", "off"], None),
            "auto": (["--values", "auto"], None),
        }
        if earlier:
            sides["before"] = ([], earlier)
        print(f"steps  beside    median s  least s  most s  ratio to off  95 % of medians  within {BOUND}")
        for steps in arguments.steps:
            found: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(arguments.rounds):
                for name in list(sides)[:: 1 if number % 2 else -1]:
                    options, package = sides[name]
                    found[name].append(seconds(["--steps", str(steps), *options], package))
            print("\n".join(table(steps, found)), flush=True)
            reading, whole = seconds_of_reading(), statistics.median(found["off"])
            print(f"       beside off, auto reads the source: {reading:.3f} s, {reading / whole:.2%} of it", flush=True)


if __name__ == "__main__":
    main()
