"""What values cost a prediction of a script that reads none: `ullage predict` with --values auto beside off.

    python benchmarks/values/unread.py [--rounds 9] [--steps 3 20] [--before COMMIT]

The runs take turns, and what is compared is processor time, of which other work on the machine takes little; the least
of each side counts, and the median beside it. With --before the same is done with an earlier commit, built into a
folder of its own and imported from there with the same torch. The script is examples/train_gpt2.py (GPT-2 small).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from before import ROOT, build

SCRIPT = "examples/train_gpt2.py"


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


def main() -> None:
    """Print a line for each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, nargs="*", default=[3, 20])
    parser.add_argument("--before", metavar="COMMIT")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        earlier = build(arguments.before, Path(folder)) if arguments.before else None
        print("steps  beside    least s  median s  least, ratio to off  median, ratio to off")
        for steps in arguments.steps:
            sides: dict[str, tuple[list[str], Path | None]] = {
                "off": (["--values", "off"], None),
                "auto": (["--values", "auto"], None),
            }
            if earlier:
                sides["before"] = ([], earlier)
            found: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(arguments.rounds):
                for name, (options, package) in sides.items():
                    found[name].append(seconds(["--steps", str(steps), *options], package))
            off = found["off"]
            for name, each in found.items():
                print(
                    f"{steps:5}  {name:8} {min(each):8.2f} {statistics.median(each):9.2f} {min(each) / min(off):20.3f}"
                    f" {statistics.median(each) / statistics.median(off):21.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
