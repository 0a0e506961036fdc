"""Reads files with recorded sequences of allocator operations, and converts them into `Program` objects.

A file is a concatenation of sequences. Each sequence is a header {"seq", "torch", "conf", "total", "base_used",
"policy", ...} followed by one line for each operation: the operation in `o`, and its results, which
`allocator.conformance` compares.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ullage.base.errors import UllageError, UsageError
from ullage.recorded.allocator.replay import ReplayDevice
from ullage.recorded.program import Op, Program, ProgramWriter
from ullage.recorded.settings import Settings, parse_settings, semantics_of

_PLACEMENTS: Final = {"bump": "ascending", "firstfit": "windows", "down": "descending"}
_SHOWN_CHARACTERS: Final = 60  # the most characters of a wrong value that an error shows
_SIZE: Final = "a whole number of bytes below 2^62"
# The expected value of each field: a size, or one of the texts; (): any text.
_HEADER: Final[dict[str, str | tuple[str, ...]]] = {
    "torch": (),
    "conf": (),
    "total": _SIZE,
    "base_used": _SIZE,
    "policy": tuple(_PLACEMENTS),
}
_FIRST_STREAM: Final = 0x500000000000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """A recorded sequence of allocator operations: a header line, and one line for each operation."""

    file: str
    row: int
    """The line number of the header in the file, counted from 1."""
    header: dict[str, Any]
    lines: list[dict[str, Any]]


def read_sequences(path: Path) -> Iterator[Sequence]:
    """Yield the recorded sequences of allocator operations in a file, which may be gzipped.

    Raises:
        UsageError: the file cannot be read, or contains no recorded sequences.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    header: dict[str, Any] | None = None
    lines: list[dict[str, Any]] = []
    row = number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            for number, text in enumerate(stream, start=1):
                data = _line(text, number, path)
                if "seq" in data:
                    if header is not None:
                        yield Sequence(file=str(path), row=row, header=header, lines=lines)
                    header, lines, row = data, [], number
                elif header is None or not isinstance(data.get("o"), str):
                    raise UsageError(
                        f"line {number} of {path} is neither a header nor an operation; expected 'seq', or, below a "
                        "header, 'o' with a string"
                    )
                else:
                    lines.append(data)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read as recorded sequences after line {number}: {error}") from None
    if header is None:
        raise UsageError(f"{path} contains no sequence; expected a header line with 'seq'")
    yield Sequence(file=str(path), row=row, header=header, lines=lines)


def _line(text: str, number: int, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {number} of {path} cannot be read as recorded sequences, expected a JSON object: {error}"
        ) from None
    if not isinstance(data, dict):
        raise UsageError(
            f"line {number} of {path} is {text.strip()[:_SHOWN_CHARACTERS]}; expected a JSON object with 'seq' or 'o'"
        )
    return data


def _program_of(sequence: Sequence, *, semantics: str, first: Settings) -> Program:
    writer = _Writer(semantics=semantics, settings=first)
    for row, line in enumerate(sequence.lines, start=sequence.row + 1):
        try:
            writer.add(line["o"])
        except (UllageError, ValueError, IndexError) as error:
            why = "an argument is missing" if isinstance(error, IndexError) else str(error)
            raise UsageError(
                f"line {row} of {sequence.file} has {line['o'][:_SHOWN_CHARACTERS]!r}; expected an operation of a "
                f"recorded sequence: {why[: 3 * _SHOWN_CHARACTERS]}"
            ) from None
    return writer.program.program()


@dataclass(slots=True, kw_only=True)
class _Writer:
    semantics: str
    settings: Settings
    program: ProgramWriter = field(default_factory=ProgramWriter)
    keys: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> None:
        writer, keys = self.program, self.keys
        name, *words = text.split(" ")
        match name:
            case "a":
                keys[words[0]] = len(keys)
                size = _integer(words[1], least=0, below=1 << 64)
                writer.add(
                    Op.ALLOCATE, key=keys[words[0]], size=size - (1 << 64) * (size >> 63), stream=_stream(words[2])
                )
            case "f":
                writer.add(Op.FREE, key=keys.setdefault(words[0], len(keys)))
            case "r":
                writer.add(Op.RECORD_STREAM, key=keys.setdefault(words[0], len(keys)), stream=_stream(words[1]))
            case "e":
                writer.add(Op.EMPTY_CACHE)
            case "F":
                writer.set_fraction(float(words[0]))
            case "s":
                text = words[0] if words else ""
                self.settings = parse_settings(text, semantics=self.semantics, before=self.settings)
                writer.set_settings(self.settings)
            case "x":
                writer.add(Op.SET_OTHERS, size=_integer(words[0]))
            case "X":
                writer.add(Op.FAIL_NEXT, key=_integer(words[0]))
            case "h" | "u" | "c":
                op = {"h": Op.HOLD, "u": Op.UNHOLD, "c": Op.COMPLETE}[name]
                writer.add(op, stream=_stream(words[0]))
            case "S":
                writer.add(Op.SYNCHRONIZE)
            case "p":
                writer.begin_pool(_integer(words[1]), [_stream(word) for word in words[2:]] or None)
            case "q":
                writer.add(Op.END_POOL, key=_integer(words[1]))
            case "R":
                writer.add(Op.RELEASE_POOL, key=_integer(words[1]))
            case "b" | "B":
                writer.add(Op.BEGIN_CAPTURE if name == "b" else Op.END_CAPTURE)
            case "n" | "t":
                writer.add(Op.NOTHING)
            case _:
                raise UsageError(f"{name[:_SHOWN_CHARACTERS]!r} is not an operation of a recorded sequence")


# A `Program` contains signed 64-bit numbers.
def _integer(word: str, *, least: int = -(1 << 63), below: int = 1 << 63) -> int:
    number = int(word)
    if not least <= number < below:
        raise ValueError(f"{word[:_SHOWN_CHARACTERS]} is out of range")
    return number


def _stream(word: str) -> int:
    number = _integer(word, least=0, below=1 << 48)
    return _FIRST_STREAM + 0x100 * number if number else 0


def _check_header(sequence: Sequence) -> None:
    for name, expected in _HEADER.items():
        value = sequence.header.get(name)
        if isinstance(expected, str):
            is_right = type(value) is int and 0 <= value < 1 << 62
        else:
            is_right = isinstance(value, str) and (not expected or value in expected)
            expected = f"one of {', '.join(expected)}" if expected else "a text"
        if not is_right:
            said = "none" if name not in sequence.header else json.dumps(value)[:_SHOWN_CHARACTERS]
            raise UsageError(
                f"line {sequence.row} of {sequence.file} is a damaged header: {name!r} is {said}; expected {expected}"
            )


def prepared(sequence: Sequence) -> tuple[Program, Settings, ReplayDevice]:
    """Return a recorded sequence as a `Program`, with its initial allocator settings and its GPU.

    Raises:
        UsageError: the header or an operation cannot be read.
    """
    header = sequence.header
    _check_header(sequence)
    try:
        semantics = semantics_of(header["torch"])
        settings = parse_settings(header["conf"], semantics=semantics)
    except UllageError as error:
        raise UsageError(f"line {sequence.row} of {sequence.file} is a damaged header: {error}") from None
    program = _program_of(sequence, semantics=semantics, first=settings)
    device = ReplayDevice(
        total_bytes=header["total"], others_bytes=header["base_used"], placement=_PLACEMENTS[header["policy"]]
    )
    return program, settings, device
