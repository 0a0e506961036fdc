"""Compare the record of a real GPU with the emulated GPU, question by question: `make gpu-compare`.

    python -m benchmarks.our_gpus.compare [RECORD ...] [--write docs/our_gpus.md] [--emulated FOLDER]

It compares the RECORDs, and those in benchmarks/our_gpus/records/. The emulated GPU is asked the same questions first;
its answers are kept in build/our_gpus/emulated, so a second call goes on where the first was ended. The page has the
records of real GPUs; that of a dry run is written to our_gpus.md in its own folder. Exit code 1 if a question has no
answer, if a peak of allocated or requested memory or a context differs and causes.toml does not give the cause, or if
less than 95 % of the peaks of reserved memory are equal; 2 if a record cannot be read.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tools.stale_pages import stamped
from ullage import UllageError
from ullage.gpu.gpus import find_gpu

from .figure import Figure, Verdict
from .keep import RECORDS
from .measure import Measurement, facts_of, in_one_sentence, say
from .plan import all_questions, family_of
from .process import ROOT
from .question import GpuUnderTest
from .record import RECORD, Record, RecordError, Writer, read_record

HERE = Path(__file__).parent
CAUSES = HERE / "causes.toml"
EXACT = ("allocated", "requested")
LEAST_RESERVED = 0.95
"""The share of peaks of reserved memory that have to be equal."""
UNKNOWN = "cause unknown"
MOST_SHOWN = 300
MOST_SECONDS = 4 * 3600
JOBS = 2
SOURCES = ("src/ullage", "benchmarks", "tests/truth", "tests/training/guard", "examples")
"""What decides the emulated GPU's answers, besides the installed packages."""
KEYS_OF_CAUSE = {"question", "figure", "cause"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One question with the figures that both GPUs have."""

    name: str
    figures: tuple[Figure, ...] = ()
    problem: str = ""
    """Why there is nothing to compare."""
    causes: Mapping[str, str] | None = None
    """By the names of figures that differ."""

    @property
    def different(self) -> list[Figure]:
        """The figures that differ."""
        return [figure for figure in self.figures if figure.verdict is Verdict.DIFFERENT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One record with all its questions."""

    gpu: Mapping[str, Any]
    emulated: Mapping[str, Any]
    questions: tuple[Compared, ...]

    def counts(self) -> dict[str, dict[Verdict, int]]:
        """Count the verdicts of the figures by their kind."""
        found: dict[str, dict[Verdict, int]] = {}
        for question in self.questions:
            for figure in question.figures:
                of_kind = found.setdefault(figure.kind, dict.fromkeys(Verdict, 0))
                of_kind[figure.verdict] += 1
        return found

    @property
    def unexplained(self) -> list[tuple[str, Figure]]:
        """Exact figures and contexts that differ for an unknown cause, with their question."""
        return [
            (question.name, figure)
            for question in self.questions
            for figure in question.different
            if figure.kind in (*EXACT, "context") and (question.causes or {}).get(figure.name, UNKNOWN) == UNKNOWN
        ]

    @property
    def is_as_expected(self) -> bool:
        """Whether every answer was compared, exact figures are equal, and nearly all of reserved memory is."""
        reserved = self.counts().get("reserved", {})
        equal, different = (reserved.get(verdict, 0) for verdict in (Verdict.EQUAL, Verdict.DIFFERENT))
        return (
            not self.unexplained
            and not any(question.problem for question in self.questions)
            and equal >= LEAST_RESERVED * (equal + different)
        )


def causes() -> list[dict[str, str]]:
    """Read the known causes of differences: patterns of a question's and a figure's name, and a sentence.

    Raises:
        RecordError: the file is not as its first lines say.
    """
    try:
        data = tomllib.loads(CAUSES.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecordError(f"{CAUSES}: cannot be read ({error})") from None
    found = data.pop("cause", [])
    if data or not isinstance(found, list):
        raise RecordError(f"{CAUSES}: expected nothing but tables [[cause]]")
    for number, entry in enumerate(found, 1):
        is_whole = isinstance(entry, dict) and entry.keys() == KEYS_OF_CAUSE
        if not is_whole or not all(isinstance(text, str) and text.strip() for text in entry.values()):
            raise RecordError(f"{CAUSES}, [[cause]] number {number}: expected three texts: question, figure, cause")
    return found


def cause_of(question: str, figure: Figure, known: list[dict[str, str]]) -> str:
    """Return the first cause whose patterns fit."""
    for cause in known:
        if fnmatchcase(question, cause["question"]) and fnmatchcase(figure.name, cause["figure"]):
            return cause["cause"]
    return UNKNOWN


def compare(real: Record, emulated: Record) -> Comparison:
    """Compare all answers of a record with those of the emulated GPU.

    Raises:
        RecordError: causes.toml cannot be read.
    """
    known = causes()
    order = {question.name: place for place, question in enumerate(all_questions())}
    asked = sorted({*order, *real.answers, *real.errors}, key=lambda name: (order.get(name, len(order)), name))
    found = [_compared(name, real, emulated, known, is_asked=name in order) for name in asked]
    return Comparison(gpu=real.gpu, emulated=emulated.gpu, questions=tuple(found))


def _compared(name: str, real: Record, emulated: Record, known: list[dict[str, str]], *, is_asked: bool) -> Compared:
    if not is_asked:
        return Compared(name=name, problem="this question is no longer asked")
    if name in real.errors:
        return Compared(name=name, problem=f"the real GPU: {real.errors[name]}")
    if name not in real.answers:
        return Compared(name=name, problem="the real GPU: was not asked")
    if name not in emulated.answers:
        return Compared(name=name, problem=f"the emulated GPU: {emulated.errors.get(name, 'was not asked')}")
    family = family_of(name)
    try:
        figures = list(family.compare(real.answers[name], emulated.answers[name]))
        if hasattr(family, "analyse"):
            figures += family.analyse(real.answers[name], _attached(real, name))
        differing = {
            figure.name: cause_of(name, figure, known) for figure in figures if figure.verdict is Verdict.DIFFERENT
        }
    except Exception as error:  # an answer is data from others: whatever is wrong with it is its own problem
        return Compared(name=name, problem=f"the answer is not what this version writes ({error!r}); measure again")
    if not figures:
        return Compared(name=name, problem="the answer has no figures; measure again")
    return Compared(name=name, figures=tuple(figures), causes=differing)


def _attached(record: Record, question: str) -> dict[str, bytes]:
    return {name: data for (asked, name), data in record.attachments.items() if asked == question}


def emulate(real: Record, folder: Path) -> Record:
    """Ask the emulated GPU the questions that a record answers; what is in the folder already is not asked again.

    Raises:
        RecordError: the folder has the record of another GPU, or ullage does not know the GPU.
    """
    try:
        card = find_gpu(real.gpu["gpu"])
    except UllageError as error:
        raise RecordError(f"{error} (CONTRIBUTING.md, To add a GPU)") from None
    gpu = GpuUnderTest(emulated=card.name, total_memory_bytes=real.gpu["total_memory_bytes"])
    writer = Writer(folder)
    record = folder / RECORD
    if not record.is_file() or not record.stat().st_size:
        writer.gpu(facts_of(gpu))
    known = read_record(folder)
    for name in ("gpu", "total_memory_bytes"):
        if known.gpu[name] != real.gpu[name]:
            raise RecordError(f"{folder}: these answers are of {name} {known.gpu[name]}, not of {real.gpu[name]}")
    left = [question for question in all_questions() if question.name in real.answers.keys() - known.answers.keys()]
    if left:
        say(f"asking the emulated GPU {len(left)} questions")
        Measurement(gpu, writer, jobs=JOBS, deadline=time.monotonic() + MOST_SECONDS).run(left)
    return read_record(folder)


def folder_of(record: Record) -> Path:
    """Return where the emulated GPU's answers are kept: one folder for each GPU and each state of what decides them."""
    packages = sorted(f"{each.name} {each.version}" for each in importlib.metadata.distributions())
    state = hashlib.sha256(json.dumps([record.gpu["gpu"], record.gpu["total_memory_bytes"], packages]).encode())
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*")):
            if path.is_file() and not {"__pycache__", "records"} & set(path.parts):
                state.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return ROOT / "build" / "our_gpus" / "emulated" / state.hexdigest()[:16]


def lines_of(comparison: Comparison) -> Iterator[str]:
    """Say each question's verdict and each difference, for the terminal."""
    for question in comparison.questions:
        if question.problem:
            yield f"?          {plain(question.name)}: {plain(question.problem)}"
            continue
        yield f"{'DIFFERENT' if question.different else 'agrees':10} {question.name}"
        for figure in question.different:
            cause = (question.causes or {}).get(figure.name, UNKNOWN)
            yield f"           {plain(difference(figure))}: {cause}"
    yield ""
    for kind, verdicts in comparison.counts().items():
        yield f"{kind}: " + ", ".join(f"{count} {verdict.value}" for verdict, count in verdicts.items() if count)


def difference(figure: Figure) -> str:
    """Say how a figure differs."""
    if figure.interval is not None:
        low, high = figure.interval
        return f"{figure.name}: {number(figure.real)} is outside {number(low)} to {number(high)}"
    both_int = isinstance(figure.real, int) and isinstance(figure.emulated, int)
    apart = f" ({figure.real - figure.emulated:+,})" if both_int else ""
    return f"{figure.name}: {number(figure.real)} on the real GPU, {number(figure.emulated)} emulated{apart}"


def number(value: Any) -> str:
    """Write a value; whole numbers with separators."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def plain(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text of a record in one line without control characters, and not longer than a person reads."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return shown if len(shown) <= most else f"{shown[:most]}..."


def main() -> int:
    """Compare, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "records", nargs="*", type=Path, metavar="RECORD", help="a record's folder, or its record.jsonl"
    )
    parser.add_argument("--emulated", type=Path, metavar="FOLDER", help="where the emulated GPU's answers are kept")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    return in_one_sentence(lambda: compare_all(options.records, options.emulated, options.write))


def compare_all(given: list[Path], emulated: Path | None, write: Path | None) -> int:
    """Compare records and those that are kept; one that cannot be compared does not stop the others.

    Raises:
        RecordError: causes.toml cannot be read.
        OSError: the page cannot be written.
    """
    from .page import page

    causes()  # what is wrong there is said before anything is asked
    if write is not None and not os.access(write if write.exists() else write.parent, os.W_OK):
        raise RecordError(f"--write {write}: cannot be written")
    kept = [path for path in sorted(RECORDS.glob("*")) if path.is_dir()]
    paths = list(dict.fromkeys(path.resolve() for path in (*given, *kept)))
    comparisons, status = [], 0
    for path in paths:
        try:
            real = read_record(path)
            comparison = compare(real, emulate(real, emulated or folder_of(real)))
        except RecordError as error:
            print(f"error: {path}: {error}", file=sys.stderr)
            status = 2
            continue
        say(f"{path.name}: {real.gpu['gpu']}, torch {real.gpu['torch']}")
        say(*lines_of(comparison))
        if real.gpu["emulated"]:
            write_whole((path if path.is_dir() else path.parent) / "our_gpus.md", page([comparison]))
        else:
            comparisons.append(comparison)
        status = max(status, int(not comparison.is_as_expected))
    if write is not None and status < 2:
        write_whole(write, stamped(write, page(comparisons)))
    if not paths:
        say("there is no record of a real GPU in benchmarks/our_gpus/records; CONTRIBUTING.md says how to make one")
    return status


def write_whole(path: Path, text: str) -> None:
    """Write a file whole, or leave what is there."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(text.encode("utf-8", errors="backslashreplace"))
    new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
