"""`ullage run`: what a step takes with it and without it, and whether the script runs as it would alone.

Processes with and without it alternate, because two processes of the same work differ by some percent. Durations are
recorded; peaks, outputs and exit codes have to be the same.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from ..figure import Figure, recorded
from ..process import ROOT, last_error, run_python, without_folders
from ..question import Answer, GpuUnderTest, Question

EMULATES_ITSELF = True
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "time_gpt_steps.py"
STEPS = 45
EMULATED_STEPS = 10
"""Durations of an emulated GPU say nothing, and every step has the same peaks from the second on."""
FIRST_STEPS = 5
"""In these `ullage run` records every allocation; they also load kernels."""
EXIT_CODE = 7
ROUNDS = 2
LIMIT_SECONDS = 60
MOST_SECONDS = 1e6
RUN = ("-m", "ullage", "run", "--folder")
WAYS = ("plain", "recorded")


def questions() -> list[Question]:
    """One question: plain, recorded, plain, recorded."""
    return [
        Question(
            name="run_overhead/gpt",
            about=f"{STEPS} steps of a small GPT with `ullage run` and without, {ROUNDS} times each",
            seconds=20,
            alone=True,
            needs=("ullage",),
        )
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Run the script in both ways, one process after the other."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    steps = EMULATED_STEPS if gpu.emulated else STEPS
    with tempfile.TemporaryDirectory(prefix="ullage-run-overhead-") as name:
        for number in range(1 if gpu.emulated else ROUNDS):
            for way in WAYS:
                folder = Path(name) / f"{way}-{number}"
                folder.mkdir()
                found[way].append(_ran(way, steps, folder, gpu))
    return found


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare the recorded script with the plain one, and its peaks with the emulated GPU's."""
    if not real["recorded"]:
        raise ValueError("the answer has no run with ullage run")
    plain = real["plain"][0]
    figures = []
    for number, one in enumerate(real["recorded"], 1):
        for what in ("steps_peaks", "exit_code", "output", "error_line"):
            name = f"{what.replace('_', ' ')} of run {number} with ullage run and without"
            figures.append(Figure(name=name, kind="unchanged", real=one[what], emulated=plain[what]))
        files = Figure(
            name=f"run {number} has left a recording", kind="unchanged", real=one["is_recorded"], emulated=True
        )
        figures.append(files)
    for number, counter in enumerate(("allocated", "reserved")):
        there, here = (max(step[number] for step in run["steps_peaks"]) for run in (plain, emulated["plain"][0]))
        figures.append(Figure(name=f"peak of {counter}_bytes", kind=counter, real=there, emulated=here))
    return [*figures, *_durations(real)]


def _durations(real: Answer) -> list[Figure]:
    figures = []
    for what in ("first", "later"):
        seconds = {way: statistics.median(_seconds(one[f"{what}_seconds"]) for one in real[way]) for way in WAYS}
        figures += [recorded(f"{what} steps, {way}, seconds", "duration", seconds[way]) for way in WAYS]
        ratio = round(seconds["recorded"] / seconds["plain"], 4) if seconds["plain"] else None
        figures.append(recorded(f"{what} steps, with ullage run / without", "duration", ratio))
    return figures


def _seconds(value: Any) -> float:
    """Return a duration of the record.

    Raises:
        ValueError: it is longer than any step takes.
    """
    if not 0 <= value < MOST_SECONDS:
        raise ValueError(f"no step takes {value!r} seconds")
    return float(value)


def _ran(way: str, steps: int, folder: Path, gpu: GpuUnderTest) -> dict[str, Any]:
    """Run the script to its end.

    Raises:
        RuntimeError: it has written no figures.
    """
    file, run = folder / "figures.json", folder / "run"
    command = [*([*RUN, str(run)] if way == "recorded" else []), str(SCRIPT), str(file), str(steps), str(EXIT_CODE)]
    ended = run_python(command, environment=gpu.environment(), limit_seconds=LIMIT_SECONDS, folder=ROOT)
    if not file.is_file():
        raise RuntimeError(f"the {way} script has ended with {ended.returncode}: {last_error(ended.stderr)}")
    trained = json.loads(file.read_text(encoding="utf-8"))
    if len(trained) != steps:
        raise RuntimeError(f"the {way} script has trained {len(trained)} steps of {steps}")
    seconds = [step["seconds"] for step in trained]
    return {
        "exit_code": ended.returncode,
        "output": without_folders(ended.stdout),
        "error_line": next((line for line in ended.stderr.splitlines() if "standard error" in line), None),
        "said": [without_folders(line) for line in ended.stderr.splitlines() if line.startswith("ullage:")],
        "is_recorded": any(run.rglob("*.live")) if way == "recorded" else None,
        "first_seconds": statistics.median(seconds[:FIRST_STEPS]),
        "later_seconds": statistics.median(seconds[FIRST_STEPS:]),
        "steps_peaks": [[step["peak_allocated_bytes"], step["peak_reserved_bytes"]] for step in trained],
    }
