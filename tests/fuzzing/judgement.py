"""What may come of an input, and what may not: the rules, the same for every reader."""

import ctypes
import gzip
import io
import json
import re
import signal
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from tests.fuzzing.readers import Outcome, Reader, choice_of

SECONDS: Final = 120
"""The time after which an input is taken for one that is waited for without end; a usual one takes 0.05."""
MOST_TEXT: Final = 400_000
"""The characters that a terminal may get."""
_TIMES, _MORE_BYTES = 20, 200_000_000
_LIBC: Final = ctypes.CDLL(None)
_INTERNALS: Final = re.compile(
    r"\b(Key|Type|Value|Index|Attribute|Overflow|ZeroDivision|Recursion|Unicode\w+|Assertion)Error\b|Traceback|NoneType|"
    r" object at 0x|<class |std::|\bnanobind\b"
)
_QUOTED: Final = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|asks for .*?, which")
_NEGATIVE: Final = re.compile(r"(?<![\w./:-])-\d[\d.,]* ?(B|KiB|MiB|GiB|TiB|bytes)\b")
_NO_NUMBER: Final = re.compile(r"(?<![\w.])-?(nan|inf)\b ?(%|B\b|[KMGT]iB)|\bNone (bytes|B|[KMGT]iB)\b")
_CONTROL: Final = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class TakesTooLongError(BaseException):
    """Not an Exception, so that nobody takes it for an answer."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of an input."""

    findings: list[str]
    """What must not have come of it, each as one text."""
    is_answered: bool
    """Whether something has answered it; else it was refused with a sentence."""


def judge(reader: Reader, data: bytes, scratch: Path) -> Judgement:
    """Read an input in this process."""
    found: list[str] = []
    is_answered = False
    _LIBC.malloc_trim(0)
    before = _resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size begins anew
    try:
        with _limited():
            for outcome in reader.read(data, scratch, choice_of(data)):
                found += _wrong(outcome)
                is_answered |= outcome.code != 2
                if is_sure(outcome) and (why := reader.contradiction(data)) is not None:
                    found.append(f"{outcome.what}: it has {why}, and nothing is said of it: {outcome.out[:300]!r}")
    except TakesTooLongError:
        found.append(f"took more than {SECONDS} s: {_where()}")
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        found.append(f"{type(error).__name__} came out: {text[-1500:]}")
    taken, most = _resident_bytes("VmHWM") - before, _TIMES * _unpacked_bytes(data) + _MORE_BYTES
    if taken > most:
        found.append(f"took {taken:,} bytes; at most {most:,} for an input of {len(data):,}")
    return Judgement(found, is_answered)


def is_sure(outcome: Outcome) -> bool:
    """Tell whether a command has answered as if its input were true."""
    command = outcome.what.partition(" ")[0]
    return command in ("explain", "tune", "repro") and outcome.code != 2 and "contradict" not in outcome.out


def _wrong(outcome: Outcome) -> Iterator[str]:
    what = outcome.what
    if outcome.code not in (0, 1, 2):
        yield f"{what}: exit code {outcome.code}: {outcome.err[-1500:]}"
        return
    if outcome.code == 2:
        yield from (f"{what}: {why}: {outcome.err[:700]!r}" for why in _bad_sentence(outcome.err))
    text = outcome.out
    if _is_json(what) and outcome.code != 2:
        yield from (f"{what}: {why}" for why in _bad_json(text))
    elif (command := what.partition(" ")[0]) in ("explain", "tune", "watch"):
        is_quoted = what.endswith(".log") or ".log " in what  # a log's own lines are shown as they are
        for rule, name, counts in (
            (_NEGATIVE, "a negative figure", not is_quoted and command != "tune"),  # its table has differences
            (_NO_NUMBER, "no number", not is_quoted),
            (_CONTROL, "a control character", True),
        ):
            if counts and (seen := rule.search(text)):
                yield f"{what}: {name}: {text[max(0, seen.start() - 100) : seen.end() + 60]!r}"
        if len(text) > MOST_TEXT:
            yield f"{what}: prints {len(text):,} characters"


def _bad_sentence(text: str) -> Iterator[str]:
    if not text.startswith("error: ") and "Usage:" not in text:
        yield "no sentence"
    elif text.startswith("error: "):
        if text.count("\n") > 1:
            yield "more than a line"
        if len(text) > 1000:  # the longest names all options of the allocator
            yield f"{len(text):,} characters"
    if seen := _INTERNALS.search(_QUOTED.sub("", text)):
        yield f"names {seen[0]!r}, which is ours"
    if seen := _CONTROL.search(text.rstrip("\n")):
        yield f"has the control character {seen[0]!r}"


def _is_json(what: str) -> bool:
    return " --json" in what


def _bad_json(text: str) -> Iterator[str]:
    def constant(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    try:
        value = (
            [json.loads(line, parse_constant=constant) for line in text.splitlines()]
            if text.count("\n") > 1 and text.startswith('{"')
            else json.loads(text, parse_constant=constant)
        )
    except ValueError as error:
        yield f"its JSON cannot be read: {error}: {text[:200]!r}"
        return
    yield from _negative_in(value, "")


_MAY_BE_NEGATIVE: Final = re.compile(r"delta|change|grew|saved|more|headroom|difference|used_bytes|room|by_bytes")


def _negative_in(value: object, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if (
                key.endswith("_bytes")
                and isinstance(inner, int | float)
                and inner < 0
                and not _MAY_BE_NEGATIVE.search(key)
            ):
                yield f"{place}.{key} is {inner}"
            yield from _negative_in(inner, f"{place}.{key}"[-60:])
    elif isinstance(value, list):
        for inner in value:
            yield from _negative_in(inner, place)


@contextmanager
def _limited() -> Iterator[None]:
    """Raise an error in what takes too long."""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


_last_place: list[str] = []


def _too_long(number: int, frame: FrameType | None) -> None:
    _last_place[:] = traceback.format_stack(frame)[-4:]
    raise TakesTooLongError


def _where() -> str:
    return " / ".join(line.strip().replace("\n", " ") for line in _last_place)


def _resident_bytes(which: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{which}:")[2].split()[0]) * 1024


def _unpacked_bytes(data: bytes) -> int:
    """Return the size of an input as it is when it is unpacked, which may be twice; at most its own where it cannot."""
    try:
        if data.startswith(b"PK"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                return max(len(data), *(_unpacked_bytes(archive.read(name)) for name in archive.namelist()[:3]))
        return _unpacked_bytes(gzip.decompress(data)) if data.startswith(b"\x1f\x8b") else len(data)
    except Exception:  # whatever libraries raise for what is damaged
        return len(data)
