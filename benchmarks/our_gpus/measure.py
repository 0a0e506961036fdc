"""Ask a GPU the questions of the plan, and write each answer as soon as it is known: `make gpu`.

    python -m benchmarks.our_gpus.measure [--minutes 8] [--out FOLDER] [--only TEXT ...] [--jobs N] [--list]
    python -m benchmarks.our_gpus.measure --emulate H100      a dry run on the emulated GPU

It stops in time: nothing starts that would end too late, and what still runs at the end is ended. A second call with
the same folder asks what is left. Needs PyTorch for CUDA and a C++ compiler, and no network.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ask import FACTS
from .plan import all_questions
from .prepare import SITE, missing
from .process import ROOT, end, start
from .question import GpuUnderTest, Question
from .record import RECORD, Record, RecordError, Writer, read_record
from .schedule import foreseen_seconds, next_to_start

DEFAULT_FOLDER = ROOT / "build" / "our_gpus" / "record"
MOST_JOBS = 6
PAUSE_SECONDS = 0.05
FACTS_SECONDS = 300
LAST_SECONDS = 3  # kept for ending what still runs
SLOWER = 5  # a question that takes so many times what it says hangs
LEAST_LIMIT_SECONDS = 45
EMULATED_SLOWER = 8
"""On an emulated GPU the limit is so many times longer: the machine may be small and busy."""
ERROR_CHARACTERS = 400


@dataclass(slots=True)
class _Running:
    question: Question
    process: Any
    began: float
    folder: "tempfile.TemporaryDirectory[str]"

    @property
    def answer(self) -> Path:
        return Path(self.folder.name) / "answer.json"

    @property
    def output(self) -> Path:
        return Path(self.folder.name) / "output"


class Measurement:
    """A run of questions against one GPU, with a deadline."""

    def __init__(
        self, gpu: GpuUnderTest, writer: Writer, *, jobs: int, deadline: float, is_preparing: Any = lambda: False
    ) -> None:
        self._gpu = gpu
        self._writer = writer
        self._jobs = jobs
        self._deadline = deadline
        self._is_preparing = is_preparing
        self._running: list[_Running] = []
        self._began = time.monotonic()
        self.failed = 0

    def run(self, questions: Sequence[Question]) -> list[Question]:
        """Ask the questions; return those for which no time was left."""
        waiting = list(questions)
        number, total = 0, len(waiting)
        try:
            while waiting or self._running:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    break
                question = next_to_start(
                    waiting,
                    [each.question for each in self._running],
                    jobs=self._jobs,
                    seconds_left=left,
                    is_ready=self._is_ready,
                )
                if question is not None:
                    waiting.remove(question)
                    self._start(question)
                    continue
                if not self._running and not self._is_preparing():
                    break  # what is left would end too late
                for each in [each for each in self._running if self._has_ended(each)]:
                    self._running.remove(each)
                    number += 1
                    self._finish(each, f"{number}/{total}")
                time.sleep(PAUSE_SECONDS)
        finally:
            cut = [each.question for each in self._running]
            for each in self._running:
                end(each.process)
                each.folder.cleanup()
            self._running.clear()
        return [*cut, *waiting]

    def _is_ready(self, question: Question) -> bool:
        return not self._is_preparing() or not missing(question.needs)

    def _start(self, question: Question) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ullage-question-")
        running = _Running(question, None, time.monotonic(), folder)
        command = [sys.executable, "-m", "benchmarks.our_gpus.ask", question.name, "--answer", str(running.answer)]
        if self._gpu.emulated:
            command += ["--emulate", self._gpu.emulated]
            command += ["--total", str(self._gpu.total_memory_bytes)] if self._gpu.total_memory_bytes else []
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **question.environment}
        with running.output.open("wb") as output:
            running.process = start(command, environment=environment, output=output.fileno())
        self._running.append(running)

    def _has_ended(self, running: _Running) -> bool:
        if running.process.poll() is not None:
            return True
        limit = max(LEAST_LIMIT_SECONDS, SLOWER * running.question.seconds)
        return time.monotonic() - running.began > limit * (EMULATED_SLOWER if self._gpu.emulated else 1)

    def _finish(self, running: _Running, place: str) -> None:
        seconds = time.monotonic() - running.began
        name = running.question.name
        code = running.process.poll()
        end(running.process)  # with all that it has started
        if code == 0 and running.answer.is_file():
            self._writer.answer(name, json.loads(running.answer.read_text(encoding="utf-8")), seconds)
            said = "measured"
        else:
            why = f"gave no answer within {seconds:.0f} s" if code is None else f"ended with code {code}"
            text = said_last(running.output) or why
            absent = missing(running.question.needs)
            if absent:
                text = f"needs {', '.join(absent)}, which is not installed (make gpu-wheels)"
            self._writer.error(name, text, seconds)
            said = f"ERROR {text}"
            self.failed += 1
        running.folder.cleanup()
        print(f"[{time.monotonic() - self._began:4.0f} s] {place} {name}: {said} ({seconds:.1f} s)", flush=True)


def said_last(output: Path) -> str:
    """Return the last line that a process has printed, the error that Python ended with, without folders' names."""
    lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    return re.sub(r"(?<![\w.])/(?:[^\s/'\":]+/)+", "", last)[:ERROR_CHARACTERS]


def facts_of(gpu: GpuUnderTest) -> dict[str, Any]:
    """Ask which GPU this is.

    Raises:
        RecordError: no GPU answers.
    """
    with tempfile.TemporaryDirectory() as folder:
        facts: dict[str, dict[str, Any]] = {}

        class Keep(Writer):
            def answer(self, question: str, answer: dict[str, Any], seconds: float) -> None:
                facts[question] = answer

            def error(self, question: str, text: str, seconds: float) -> None:
                raise RecordError(f"no GPU answers: {text}")

        measurement = Measurement(gpu, Keep(Path(folder)), jobs=1, deadline=time.monotonic() + FACTS_SECONDS)
        if measurement.run([FACTS]):
            raise RecordError(f"no GPU answers within {FACTS_SECONDS} s")
    return facts[FACTS.name]


def chosen(questions: Sequence[Question], only: Sequence[str]) -> list[Question]:
    """Return the questions with one of the texts in their name; all of them without a text.

    Raises:
        RecordError: a text is in no name.
    """
    for text in only:
        if not any(text in question.name for question in questions):
            raise RecordError(f"--only {text}: no question has this in its name; --list shows them")
    return [question for question in questions if not only or any(text in question.name for text in only)]


def same_gpu(record: Record, facts: dict[str, Any]) -> None:
    """Raise RecordError if a record that is to be continued is of another GPU or another PyTorch."""
    for name in ("gpu", "total_memory_bytes", "torch", "emulated"):
        if record.gpu.get(name) != facts[name]:
            raise RecordError(
                f"this record is of {name} {record.gpu.get(name)}, and here it is {facts[name]}; "
                "choose another folder with --out"
            )


def default_jobs(gpu: GpuUnderTest) -> int:
    """Return how many questions run at a time: one core is left to this process, if the GPU is real."""
    cores = os.cpu_count() or 1
    return max(1, min(MOST_JOBS, cores if gpu.emulated else cores - 1))


def print_plan(questions: Sequence[Question], jobs: int, minutes: float) -> None:
    """Print the questions with the seconds they are expected to take."""
    for question in questions:
        print(f"{question.seconds:5.0f} s  {'alone' if question.alone else '     '}  {question.name}: {question.about}")
    together = foreseen_seconds(questions, jobs)
    print(
        f"{len(questions)} questions, about {together / 60:.1f} minutes with {jobs} at a time; "
        f"stops after {minutes:g} minutes\n",
        flush=True,
    )


def measure(
    gpu: GpuUnderTest, folder: Path, *, minutes: float, only: Sequence[str] = (), jobs: int | None = None
) -> int:
    """Measure into a folder; 0 if every question has an answer, 1 if not.

    Raises:
        RecordError: there is no GPU, or the folder has a record of another one.
    """
    deadline = time.monotonic() + 60 * minutes - LAST_SECONDS
    jobs = jobs or default_jobs(gpu)
    questions = chosen(all_questions(), only)
    facts = facts_of(gpu)
    writer = Writer(folder)
    if (folder / RECORD).is_file() and (folder / RECORD).stat().st_size:
        record = read_record(folder)
        same_gpu(record, facts)
        left = [question for question in questions if question.name not in record.answers]
        print(f"{len(questions) - len(left)} of {len(questions)} questions have an answer in {folder}")
        questions = left
    else:
        writer.gpu(facts)
    print(f"{facts['gpu']}, torch {facts['torch']}, driver {facts['driver']}")
    print_plan(questions, jobs, minutes)
    preparing = None
    if missing({name for question in questions for name in question.needs}):
        preparing = start(
            [sys.executable, "-m", "benchmarks.our_gpus.prepare"], environment=os.environ, output=sys.stderr.fileno()
        )
    try:
        measurement = Measurement(
            gpu,
            writer,
            jobs=jobs,
            deadline=deadline,
            is_preparing=lambda: preparing is not None and preparing.poll() is None,
        )
        left = measurement.run(questions)
    finally:
        if preparing is not None:
            end(preparing)
    print(f"\n{len(questions) - len(left) - measurement.failed} answers, {measurement.failed} errors: {folder}")
    if left:
        print(f"no time for {len(left)}: {', '.join(question.name for question in left)}; call it again to go on")
    return int(bool(left or measurement.failed))


def main() -> int:
    """Read the options, measure, and tell an error in one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="when to stop (default: 8)")
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="questions with one of these in the name")
    parser.add_argument("--jobs", type=int, help=f"questions at a time (default: by the cores, at most {MOST_JOBS})")
    parser.add_argument("--list", action="store_true", help="print the plan and end")
    parser.add_argument("--emulate", default="", metavar="GPU", help="a dry run on an emulated GPU")
    parser.add_argument("--total", type=int, metavar="BYTES", help="the emulated GPU's total memory")
    options = parser.parse_args()
    if options.minutes <= 0 or (options.jobs is not None and options.jobs < 1):
        parser.error("--minutes and --jobs have to be above 0")
    gpu = GpuUnderTest(emulated=options.emulate, total_memory_bytes=options.total)
    try:
        if options.list:
            jobs = options.jobs or MOST_JOBS
            print_plan(chosen(all_questions(), options.only), jobs, options.minutes)
            return 0
        return measure(gpu, options.out, minutes=options.minutes, only=options.only, jobs=options.jobs)
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
