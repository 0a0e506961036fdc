"""What a command costs that only prints: `ullage --help`, `gpus` and `explain --help`, beside Python and rich.

    python benchmarks/help.py [--rounds 10]

All take turns, and what is compared is processor time, of which other work on the machine takes little; the least of
each counts. Exits 1 where one takes more than four times as long as the import of what draws its text.
"""

import argparse
import os
import subprocess
import sys

from figure import Measured

BOUND = 4.0
PYTHON = "python -c pass"
RICH = "import rich.console, rich.table"
COMMANDS = ("--help", "gpus", "explain --help")


def processor_seconds(arguments: list[str]) -> float:
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"python {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the commands that only print.")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    work = {PYTHON: ["-c", "pass"], RICH: ["-c", RICH]}
    work |= {f"ullage {words}": ["-m", "ullage", *words.split()] for words in COMMANDS}
    taken = {what: [] for what in work}
    for _ in range(rounds):
        for what, arguments in work.items():
            taken[what].append(processor_seconds(arguments))
    least = {what: min(times) for what, times in taken.items()}
    found = [Measured(what, seconds, "s", digits=3) for what, seconds in least.items()]
    for words in COMMANDS:
        seconds = least[f"ullage {words}"]
        found += [
            Measured(f"ratio ullage {words} / {PYTHON}", seconds / least[PYTHON], "x"),
            Measured(f"ratio ullage {words} / {RICH}", seconds / least[RICH], "x", BOUND),
        ]
    for measured in found:
        print(measured)
    sys.exit(0 if all(measured.kept for measured in found) else 1)


if __name__ == "__main__":
    main()
