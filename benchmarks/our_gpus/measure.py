"""Ask a GPU the questions of the plan, and write each answer as soon as it is known: `make gpu`.

    python -m benchmarks.our_gpus.measure [--minutes 8] [--out FOLDER] [--only TEXT ...] [--jobs N] [--list]
    python -m benchmarks.our_gpus.measure --emulate H100      a dry run on the emulated GPU

It stops in time: nothing starts that would end too late, and what still runs at the end is ended. A second call with
the same folder asks what is left. Needs PyTorch for CUDA and a C++ compiler, and no network.
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ask import FACTS
from .instruments import GPU_VARIABLE, IGNORED_VARIABLE
from .plan import all_questions
from .prepare import missing, python_path
from .process import ROOT, adopt_orphans, end, end_orphans, last_error, start, without_folders
from .question import GpuUnderTest, Question
from .record import ATTACHMENTS, RECORD, Record, RecordError, Writer, read_record
from .schedule import foreseen_seconds, next_to_start

DEFAULT_FOLDER = ROOT / "build" / "our_gpus" / "record"
LOCK = Path(tempfile.gettempdir()) / f"ullage-make-gpu-{os.getuid()}.lock"
FOLDERS = "ullage-question-"
MOST_JOBS = 6
MOST_MINUTES = 24 * 60
MOST_TOTAL_BYTES = 1 << 48
PAUSE_SECONDS = 0.05
LAST_SECONDS = 3  # kept for ending what still runs
SLOWER = 3  # a question that takes so many times what it says hangs
LEAST_LIMIT_SECONDS = 45
EMULATED_SLOWER = 12
"""On an emulated GPU the limit is so many times longer: the machine may be small and busy."""
OUTPUT_CHARACTERS = 4000
"""So much of what a failed question has printed is kept in the record."""
OWN_VARIABLES = ("ULLAGE_CUDNN", "ULLAGE_CUDNN_CACHE")
DECIDING = re.compile(
    "PYTORCH_|TORCH|CUDA_MODULE_LOADING|CUDA_LAUNCH_BLOCKING|CUBLAS_|CUDNN_|NVIDIA_TF32_OVERRIDE|NCCL_|TRITON_|ULLAGE_|HF_"
)
"""Variables of the caller's that would decide an answer: questions do not get them."""


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
        self, gpu: GpuUnderTest, writer: Writer, *, jobs: int, deadline: float, preparing: Any = None, uuid: str = ""
    ) -> None:
        self._gpu = gpu
        self._writer = writer
        self._jobs = jobs
        self._deadline = deadline
        self._kept = [preparing] if preparing is not None else []
        self._uuid = uuid
        self._running: list[_Running] = []
        self._began = time.monotonic()
        self._number = self._total = 0
        self.failed = 0

    def _is_preparing(self) -> bool:
        return any(process.poll() is None for process in self._kept)

    def run(self, questions: Sequence[Question]) -> list[Question]:
        """Ask the questions; return those for which no time was left."""
        waiting = list(questions)
        self._total = len(waiting)
        try:
            while waiting or self._running:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    break
                is_preparing = self._is_preparing()
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
                if not self._running and not is_preparing:
                    break  # what is left would end too late
                for each in [each for each in self._running if self._has_ended(each)]:
                    self._finish(each)
                    self._running.remove(each)
                time.sleep(PAUSE_SECONDS)
        finally:
            cut = [each.question for each in self._running]
            for each in self._running:
                end(each.process)
                each.folder.cleanup()
            self._running.clear()
            end_orphans(but=self._kept)
        return [*cut, *waiting]

    def _is_ready(self, question: Question) -> bool:
        return not question.needs or not self._is_preparing()

    def _start(self, question: Question) -> None:
        absent = missing(question.needs)
        if absent:
            hint = "make gpu-wheels" if absent != ["ullage"] else "python -m benchmarks.our_gpus.prepare says why"
            self._fail(question, f"needs {', '.join(absent)}, which is not installed ({hint})", "", 0.0)
            return
        folder = tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-", ignore_cleanup_errors=True)
        running = _Running(question, None, time.monotonic(), folder)
        command = [sys.executable, "-m", "benchmarks.our_gpus.ask", question.name, f"--answer={running.answer}"]
        if self._gpu.emulated:
            command.append(f"--emulate={self._gpu.emulated}")
            command += [f"--total={self._gpu.total_memory_bytes}"] if self._gpu.total_memory_bytes else []
        with running.output.open("wb") as output:
            running.process = start(command, environment=self._environment(running), output=output.fileno())
        self._running.append(running)

    def _environment(self, running: _Running) -> dict[str, str]:
        """Return the question's environment: nothing that decides an answer, and a place of its own for files."""
        environment = {name: value for name, value in os.environ.items() if not decides(name)}
        own = Path(running.folder.name) / "tmp"
        own.mkdir()
        environment |= {
            "PYTHONPATH": python_path(environment),
            "TMPDIR": str(own),
            "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
            "TRITON_CACHE_DIR": str(own / "triton"),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            GPU_VARIABLE: self._uuid,
            IGNORED_VARIABLE: " ".join(sorted(filter(decides, os.environ))),
        }
        if not running.question.alone:  # others run next to it
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self._jobs))
        return environment | dict(running.question.environment)

    def _has_ended(self, running: _Running) -> bool:
        if running.process.poll() is not None:
            return True
        question = running.question
        limit = question.limit_seconds or max(LEAST_LIMIT_SECONDS, SLOWER * question.seconds)
        return time.monotonic() - running.began > limit * (EMULATED_SLOWER if self._gpu.emulated else 1)

    def _finish(self, running: _Running) -> None:
        seconds = time.monotonic() - running.began
        code = running.process.poll()
        self._end(running)
        if running.answer.is_file():  # it is written whole; how the process ended then does not matter
            self._writer.answer(running.question.name, json.loads(running.answer.read_text("utf-8")), seconds)
            self._say(f"{running.question.name}: measured ({seconds:.1f} s)")
        else:
            printed = running.output.read_text(encoding="utf-8", errors="replace")
            text = last_error(printed)
            if code is None or code < 0 or not text:
                how = f"gave no answer within {seconds:.0f} s" if code is None else f"ended with code {code}"
                text = f"{how}; printed last: {text or 'nothing'}"
            self._fail(running.question, text, without_folders(printed)[-OUTPUT_CHARACTERS:], seconds)
        running.folder.cleanup()

    def _end(self, running: _Running) -> None:
        """End a question's process with all that it has started."""
        end(running.process)
        if not any(each is not running for each in self._running):
            end_orphans(but=self._kept)

    def _fail(self, question: Question, text: str, printed: str, seconds: float) -> None:
        self._writer.error(question.name, text, printed, seconds)
        self.failed += 1
        self._say(f"{question.name}: ERROR {text} ({seconds:.1f} s)")

    def _say(self, text: str) -> None:
        self._number += 1
        say(f"[{time.monotonic() - self._began:4.0f} s] {self._number}/{self._total} {text}")


def decides(variable: str) -> bool:
    """Return whether a variable of the caller's would decide what a question answers."""
    is_place = variable in OWN_VARIABLES or variable.endswith(("_PATH", "_HOME"))  # where a driver or a compiler is
    return DECIDING.match(variable) is not None and not is_place


def say(*lines: str) -> None:
    """Print; a closed pipe or a full disk does not end a measurement."""
    with contextlib.suppress(OSError):
        print(*lines, sep="\n", flush=True)


class _Facts(Writer):
    """Keeps the answer to the first question instead of writing it."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def answer(self, question: str, answer: dict[str, Any], seconds: float) -> None:
        self.facts = answer

    def error(self, question: str, text: str, printed: str, seconds: float) -> None:
        raise RecordError(f"no GPU answers: {text}; PYTHON= chooses another Python, --emulate an emulated GPU")


def facts_of(gpu: GpuUnderTest, deadline: float | None = None) -> dict[str, Any]:
    """Ask which GPU this is.

    Raises:
        RecordError: no GPU answers.
    """
    writer = _Facts()
    deadline = deadline or time.monotonic() + FACTS.limit_seconds
    Measurement(gpu, writer, jobs=1, deadline=deadline).run([FACTS])
    if not writer.facts:
        raise RecordError("no GPU answers in time; give more --minutes")
    if not gpu.emulated and "emulated" in writer.facts["driver"]:
        raise RecordError("the environment emulates a GPU; name it with --emulate, or remove ULLAGE_EMULATED_CARD")
    return writer.facts


def chosen(questions: Sequence[Question], only: Sequence[str]) -> list[Question]:
    """Return the questions with one of the texts in their name; all of them without a text.

    Raises:
        RecordError: a text is in no name.
    """
    for text in only:
        if not text or not any(text in question.name for question in questions):
            raise RecordError(f"--only {text}: no question has this in its name; --list shows them")
    return [question for question in questions if not only or any(text in question.name for text in only)]


def same_gpu(record: Record, facts: dict[str, Any]) -> None:
    """Raise RecordError if a record that is to be continued is of another GPU or another PyTorch."""
    for name in ("gpu", "total_memory_bytes", "emulated", "driver", "torch", "cudnn", "python", "packages"):
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
        say(f"{question.seconds:5.0f} s  {'alone' if question.alone else '     '}  {question.name}: {question.about}")
    together = foreseen_seconds(questions, jobs)
    say(
        f"{len(questions)} questions, about {together / 60:.1f} minutes with {jobs} at a time; "
        f"stops after {minutes:g} minutes\n"
    )


def measure(
    gpu: GpuUnderTest, folder: Path, *, minutes: float, only: Sequence[str] = (), jobs: int | None = None
) -> int:
    """Measure into a folder; 0 if every question has an answer, 1 if not.

    Raises:
        RecordError: there is no GPU, or the folder has a record of another one, or is in use.
        OSError: the folder cannot be written.
    """
    deadline = time.monotonic() + 60 * minutes - LAST_SECONDS
    jobs = jobs or default_jobs(gpu)
    questions = chosen(all_questions(), only)
    with alone_in(folder, gpu):
        remove_left_folders()
        facts = facts_of(gpu, deadline)
        uuid = facts.pop("uuid")  # questions find the GPU by it, and a record does not say which of all GPUs it was
        questions = left_of(questions, folder, facts)
        say(f"{facts['gpu']}, torch {facts['torch']}, driver {facts['driver']}")
        if facts["ignored_variables"]:
            say(f"variables that questions do not get: {', '.join(facts['ignored_variables'])}")
        print_plan(questions, jobs, minutes)
        preparing = prepare_for(questions)
        try:
            measurement = Measurement(gpu, Writer(folder), jobs=jobs, deadline=deadline, preparing=preparing, uuid=uuid)
            left = measurement.run(questions)
        finally:
            if preparing is not None:
                end(preparing)
    say(f"\n{len(questions) - len(left) - measurement.failed} answers, {measurement.failed} errors: {folder}")
    if left:
        say(f"no time for {len(left)}: {', '.join(question.name for question in left)}; call it again to go on")
    return int(bool(left or measurement.failed))


def left_of(questions: Sequence[Question], folder: Path, facts: dict[str, Any]) -> list[Question]:
    """Begin a record, or read the one that is there; return the questions that it does not answer."""
    writer = Writer(folder)
    if not (folder / RECORD).stat().st_size:
        writer.gpu(facts)
        return list(questions)
    record = read_record(folder)
    same_gpu(record, facts)
    left = [question for question in questions if question.name not in record.answers]
    say(f"{len(questions) - len(left)} of {len(questions)} questions have an answer in {folder}")
    return left


def remove_left_folders() -> None:
    """Remove the temporary folders of questions whose measurement was killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*-*"):
        owner = left.name.removeprefix(FOLDERS).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)


def prepare_for(questions: Sequence[Question]) -> Any:
    """Start to install what is missing; None if nothing is."""
    if not missing({name for question in questions for name in question.needs}):
        return None
    command = [sys.executable, "-m", "benchmarks.our_gpus.prepare"]
    return start(command, environment=os.environ, output=sys.stderr.fileno())


@contextlib.contextmanager
def alone_in(folder: Path, gpu: GpuUnderTest) -> Iterator[None]:
    """Be the only measurement of this folder, and of a real GPU: some questions need it alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RECORD, ATTACHMENTS):
        if (folder / name).exists() and not (folder / name).is_file():
            raise RecordError(f"{folder / name} is not a file; choose another folder with --out")
        (folder / name).open("a").close()
    with (folder / RECORD).open("rb") as own, LOCK.open("a") as machine:
        try:
            for file in (own, *([] if gpu.emulated else [machine])):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RecordError("another make gpu is running; wait until it has ended") from None
        yield


def main() -> int:
    """Read the options, measure, and report an error in one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="when to stop (default: 8)")
    parser.add_argument("--out", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="questions with one of these in the name")
    parser.add_argument("--jobs", type=int, help=f"questions at a time (default: by the cores, at most {MOST_JOBS})")
    parser.add_argument("--list", action="store_true", help="print the plan and end")
    parser.add_argument("--emulate", default="", metavar="GPU", help="a dry run on an emulated GPU")
    parser.add_argument("--total", type=int, metavar="BYTES", help="the emulated GPU's total memory")
    options = parser.parse_args()
    if not 0 < options.minutes <= MOST_MINUTES or (options.jobs is not None and options.jobs < 1):
        parser.error(f"--minutes has to be above 0 and at most {MOST_MINUTES}, --jobs 1 or more")
    if options.total is not None and not (options.emulate and 0 < options.total < MOST_TOTAL_BYTES):
        parser.error("--total is the memory of the GPU that --emulate names, in bytes")
    gpu = GpuUnderTest(emulated=options.emulate, total_memory_bytes=options.total)

    def work() -> int:
        if options.list:
            print_plan(chosen(all_questions(), options.only), options.jobs or MOST_JOBS, options.minutes)
            return 0
        return measure(gpu, options.out, minutes=options.minutes, only=options.only, jobs=options.jobs)

    return in_one_sentence(work)


def in_one_sentence(work: Callable[[], int]) -> int:
    """Run a command's work; an error is one sentence, and an interruption says that the answers are kept."""
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return work()
    except (RecordError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the answers so far are kept, and another call goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
