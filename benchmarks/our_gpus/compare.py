"""Compare the record of a real GPU with the emulated GPU, question by question: `make gpu-compare`.

    python -m benchmarks.our_gpus.compare [RECORD ...] [--write docs/our_gpus.md] [--emulated FOLDER]

It compares the RECORDs, and those in benchmarks/our_gpus/records/. The emulated GPU is asked the same questions first;
its answers are kept in build/our_gpus/emulated, so a second call goes on where the first was ended. The page has the
records of real GPUs; that of a dry run is written to our_gpus.md in its own folder. Exit code 1 if a peak of allocated
or requested memory differs and causes.toml does not give the cause, or if the emulated GPU did not answer; 2 if a
record cannot be read.
"""

import argparse
import hashlib
import json
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .figure import Figure, Verdict
from .keep import RECORDS
from .measure import Measurement, facts_of
from .plan import all_questions, family_of
from .process import ROOT
from .question import GpuUnderTest
from .record import RECORD, Record, RecordError, Writer, read_record

HERE = Path(__file__).parent
CAUSES = HERE / "causes.toml"
EXACT = ("allocated", "requested")
UNKNOWN = "cause unknown"
MOST_SECONDS = 4 * 3600
JOBS = 2


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
        """Exact figures that differ for an unknown cause, with their question."""
        return [
            (question.name, figure)
            for question in self.questions
            for figure in question.different
            if figure.kind in EXACT and (question.causes or {}).get(figure.name, UNKNOWN) == UNKNOWN
        ]


def causes() -> list[dict[str, str]]:
    """Read the known causes of differences: patterns of a question's and a figure's name, and a sentence."""
    found: list[dict[str, str]] = tomllib.loads(CAUSES.read_text(encoding="utf-8")).get("cause", [])
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
        RecordError: an answer has not the fields that its family writes.
    """
    known = causes()
    names = [question.name for question in all_questions()]
    order = {name: place for place, name in enumerate(names)}
    asked = sorted({*real.answers, *real.errors}, key=lambda name: (order.get(name, len(order)), name))
    found = [_compared(name, real, emulated, known, is_asked=name in order) for name in asked]
    return Comparison(gpu=real.gpu, emulated=emulated.gpu, questions=tuple(found))


def _compared(name: str, real: Record, emulated: Record, known: list[dict[str, str]], *, is_asked: bool) -> Compared:
    if not is_asked:
        return Compared(name=name, problem="this question is no longer asked")
    if name in real.errors:
        return Compared(name=name, problem=f"the real GPU: {real.errors[name]}")
    if name not in emulated.answers:
        return Compared(name=name, problem=f"the emulated GPU: {emulated.errors.get(name, 'was not asked')}")
    family = family_of(name)
    try:
        figures = list(family.compare(real.answers[name], emulated.answers[name]))
        if hasattr(family, "analyse"):
            figures += family.analyse(real.answers[name], _attached(real, name))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise RecordError(f"the answer to {name} is not what this version writes ({error!r}); measure again") from error
    differing = {
        figure.name: cause_of(name, figure, known) for figure in figures if figure.verdict is Verdict.DIFFERENT
    }
    return Compared(name=name, figures=tuple(figures), causes=differing)


def _attached(record: Record, question: str) -> dict[str, bytes]:
    return {name: data for (asked, name), data in record.attachments.items() if asked == question}


def emulate(real: Record, folder: Path) -> Record:
    """Ask the emulated GPU the questions that a record answers; what is in the folder already is not asked again.

    Raises:
        RecordError: the folder has the record of another GPU.
    """
    gpu = GpuUnderTest(emulated=real.gpu["gpu"], total_memory_bytes=real.gpu["total_memory_bytes"])
    writer = Writer(folder)
    if not (folder / RECORD).is_file():
        writer.gpu(facts_of(gpu))
    known = read_record(folder)
    left = [question for question in all_questions() if question.name in real.answers.keys() - known.answers.keys()]
    if left:
        print(f"asking the emulated GPU {len(left)} questions", flush=True)
        Measurement(gpu, writer, jobs=JOBS, deadline=time.monotonic() + MOST_SECONDS).run(left)
    return read_record(folder)


def folder_of(record: Record) -> Path:
    """Return where the emulated GPU's answers are kept: one folder for each GPU and each state of the questions."""
    state = hashlib.sha256(json.dumps([record.gpu["gpu"], record.gpu["total_memory_bytes"]]).encode())
    for path in sorted([*HERE.rglob("*.py"), *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.c")]):
        state.update(path.read_bytes())
    return ROOT / "build" / "our_gpus" / "emulated" / state.hexdigest()[:16]


def lines_of(comparison: Comparison) -> Iterator[str]:
    """Say each question's verdict and each difference, for the terminal."""
    for question in comparison.questions:
        if question.problem:
            yield f"?          {question.name}: {question.problem}"
            continue
        yield f"{'DIFFERENT' if question.different else 'agrees':10} {question.name}"
        for figure in question.different:
            yield f"           {difference(figure)}: {(question.causes or {}).get(figure.name, UNKNOWN)}"
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


def main() -> int:
    """Compare, print, and write the page."""
    from .page import page

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "records", nargs="*", type=Path, metavar="RECORD", help="a record's folder, or its record.jsonl"
    )
    parser.add_argument("--emulated", type=Path, metavar="FOLDER", help="where the emulated GPU's answers are kept")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    kept = [path for path in sorted(RECORDS.glob("*")) if path.is_dir()]
    paths = [*options.records, *(path for path in kept if path not in options.records)]
    comparisons = []
    try:
        for path in paths:
            real = read_record(path)
            comparison = compare(real, emulate(real, options.emulated or folder_of(real)))
            comparisons.append(comparison)
            print(f"{path.name}: {real.gpu['gpu']}, torch {real.gpu['torch']}")
            print(*lines_of(comparison), sep="\n", flush=True)
            if real.gpu["emulated"]:
                ((path if path.is_dir() else path.parent) / "our_gpus.md").write_text(page([comparison]), "utf-8")
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.write:
        of_real = [comparison for comparison in comparisons if not comparison.gpu["emulated"]]
        options.write.write_text(page(of_real), encoding="utf-8")
    if not paths:
        print("there is no record of a real GPU in benchmarks/our_gpus/records; CONTRIBUTING.md says how to make one")
    failed = any(
        comparison.unexplained or any(question.problem.startswith("the emulated") for question in comparison.questions)
        for comparison in comparisons
    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
