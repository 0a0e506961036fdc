"""Check the core against recorded runs of PyTorch's own allocator, operation by operation.

    python -m ullage.allocator.conformance FILE.jsonl.gz ...          compare; exit code 1 if anything diverges
    python -m ullage.allocator.conformance --emit FILE.jsonl.gz       write the core's own lines

A file is a concatenation of sequences: a header {"seq", "torch", "conf", "total", "base_used", "policy", ...}, then one
line an operation: `o` (what was done) and what came of it: `r` (the place of an allocation), `d` (the driver's calls),
`s` (five statistics), `oom`, `err`, `skip`. It compares those; of `n` and `t` lines (snapshots, statistics) only `s`.
"""

import argparse
import gzip
import json
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ullage._errors import UllageError, UsageError
from ullage.allocator.replay import Call, Device, Replay, replay
from ullage.program import Op, Program, ProgramWriter
from ullage.settings import Settings, parse_settings, semantics_of

_RESULTS: Final = ("r", "d", "s", "oom", "err", "skip")
_PLACEMENTS: Final = {"bump": "ascending", "firstfit": "first fit", "down": "descending"}
_SHOWN: Final = 60  # characters of what is wrong
_SIZE: Final = "a whole number of bytes below 2^62"
_HEADER: Final[dict[str, str | tuple[str, ...]]] = {  # what a size is, or the texts that there are; (): any
    "torch": (),
    "conf": (),
    "total": _SIZE,
    "base_used": _SIZE,
    "policy": tuple(_PLACEMENTS),
}
_LOWEST: Final = 0x700000000000  # addresses of cudaMalloc are written from here on
_STREAMS: Final = 0x500000000000
_ASSERTS: Final = {
    "2.11": '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":3607',
    "2.15": '"/__w/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp":4393',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One recorded sequence: its header and its lines."""

    file: str
    row: int
    """Of the header in the file, from 1; an operation a row follows."""
    header: dict[str, Any]
    lines: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first operation of a sequence at which the core differs."""

    sequence: str
    line: int
    operation: str
    field: str
    recorded: Any
    ours: Any


def read_sequences(path: Path) -> Iterator[Sequence]:
    """Read the sequences of a file, which may be gzipped.

    Raises:
        UsageError: the file cannot be read, or is no such file.
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
                        f"line {number} of {path} is no header and no operation; expected 'seq', or 'o' with a text "
                        "below a header"
                    )
                else:
                    lines.append(data)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read as recorded sequences behind line {number}: {error}") from None
    if header is None:
        raise UsageError(f"{path} holds no sequence; expected a header line with 'seq'")
    yield Sequence(file=str(path), row=row, header=header, lines=lines)


def _line(text: str, number: int, path: Path) -> dict[str, Any]:
    """Read a line of a file.

    Raises:
        UsageError: it is no JSON object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"line {number} of {path} cannot be read as recorded sequences, expected a JSON object: {error}"
        ) from None
    if not isinstance(data, dict):
        raise UsageError(
            f"line {number} of {path} is {text.strip()[:_SHOWN]}; expected a JSON object with 'seq' or 'o'"
        )
    return data


def _program_of(sequence: Sequence, *, semantics: str, first: Settings) -> Program:
    """Make a program of the operations; `first` are the settings at the start.

    Raises:
        UsageError: a line is no operation; the text names it.
    """
    writer = _Writer(semantics=semantics, settings=first)
    for row, line in enumerate(sequence.lines, start=sequence.row + 1):
        try:
            writer.add(line["o"])
        except (UllageError, ValueError, IndexError) as error:
            why = "a word is missing" if isinstance(error, IndexError) else str(error)
            raise UsageError(
                f"line {row} of {sequence.file} has {line['o'][:_SHOWN]!r}; expected an operation of a recorded "
                f"sequence: {why[: 3 * _SHOWN]}"
            ) from None
    return writer.program.program()


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Operations as they are recorded, made into a program's."""

    semantics: str
    settings: Settings
    program: ProgramWriter = field(default_factory=ProgramWriter)
    keys: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> None:
        """Add what an `o` says: a letter, and words that are apart by one space."""
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
                raise UsageError(f"{name[:_SHOWN]!r} is no operation of a recorded sequence")


def _integer(word: str, *, least: int = -(1 << 63), below: int = 1 << 63) -> int:
    """Read a whole number in a range: a program holds signed ones of 64 bits."""
    number = int(word)
    if not least <= number < below:
        raise ValueError(f"{word[:_SHOWN]} is out of range")
    return number


def _stream(word: str) -> int:
    number = _integer(word, least=0, below=1 << 48)
    return _STREAMS + 0x100 * number if number else 0


def _check_header(sequence: Sequence) -> None:
    for name, expected in _HEADER.items():
        value = sequence.header.get(name)
        if isinstance(expected, str):
            is_right = type(value) is int and 0 <= value < 1 << 62
        else:
            is_right = isinstance(value, str) and (not expected or value in expected)
            expected = f"one of {', '.join(expected)}" if expected else "a text"
        if not is_right:
            said = "none" if name not in sequence.header else json.dumps(value)[:_SHOWN]
            raise UsageError(
                f"line {sequence.row} of {sequence.file} is a damaged header: {name!r} is {said}; expected {expected}"
            )


def run(sequence: Sequence) -> list[dict[str, Any]]:
    """Run a sequence on the core and return its operation lines, with what came of each."""
    header = sequence.header
    _check_header(sequence)
    try:
        semantics = semantics_of(header["torch"])
        settings = parse_settings(header["conf"], semantics=semantics)
    except UllageError as error:
        raise UsageError(f"line {sequence.row} of {sequence.file} is a damaged header: {error}") from None
    program = _program_of(sequence, semantics=semantics, first=settings)
    device = Device(
        total_bytes=header["total"], others_bytes=header["base_used"], placement=_PLACEMENTS[header["policy"]]
    )
    try:
        done = replay(program, settings, device, levels=True, places=True, calls=True)
    except UllageError as error:
        raise UsageError(f"the sequence at line {sequence.row} of {sequence.file} cannot be run: {error}") from None
    return list(_lines_of(sequence, done, semantics))


def _lines_of(sequence: Sequence, done: Replay, semantics: str) -> Iterator[dict[str, Any]]:
    assert done.levels is not None
    assert done.places is not None
    assert done.calls is not None
    policy = sequence.header["policy"]
    calls: list[list[list[Any]]] = [[] for _ in range(done.done)]
    fields = (done.calls.op, done.calls.call, done.calls.number, done.calls.size, done.calls.offset)
    for op, call, number, size, offset, count, address in zip(
        *(column.tolist() for column in (*fields, done.calls.count, done.calls.address)), strict=True
    ):
        calls[op].append(
            _call(Call(call), number, size, offset, count, None if policy == "bump" else address - _LOWEST)
        )
    levels = [getattr(done.levels, name).tolist() for name in ("allocated_bytes", "reserved_bytes", "active_bytes")]
    levels += [done.levels.inactive_split_bytes.tolist(), done.levels.requested_bytes.tolist()]
    segments, offsets = done.places.segment.tolist(), done.places.offset.tolist()
    failed = {*done.oom_ops.tolist(), *done.rejected_ops.tolist()}
    skipped = set(done.skipped_ops.tolist())
    addresses = done.places.address.tolist()
    for index in range(done.done):
        line: dict[str, Any] = {"o": sequence.lines[index]["o"]}
        if line["o"].startswith("a "):
            place = segments[index] if segments[index] >= 0 else f"E{~segments[index]}"
            line["r"] = [place, offsets[index]] if addresses[index] >= 0 else None
        if calls[index]:
            line["d"] = calls[index]
        line["s"] = [column[index] for column in levels]
        if index in failed:
            line["oom"] = 1
        if done.broken and index == done.done - 1:
            line["err"] = (
                f"{done.broken} INTERNAL ASSERT FAILED at {_ASSERTS[semantics]}, please report a bug to PyTorch. "
            )
        if index in skipped:
            line["skip"] = 1
        yield line


def _call(call: Call, number: int, size: int, offset: int, count: int, address: int | None) -> list[Any]:
    match call:
        case Call.MALLOC:
            return ["M", number, size] if address is None else ["M", number, size, address]
        case Call.MALLOC_FAILED:
            return ["M!", size]
        case Call.FREE:
            return ["F", number, size]
        case Call.RESERVE:
            return ["VR", number, size]
        case Call.UNRESERVE:
            return ["VF", number, size]
        case Call.MAP:
            return ["MAP", number, offset, size, count]
        case Call.UNMAP:
            return ["UNMAP", number, offset, size, count]
        case Call.CREATE_FAILED:
            return ["C!", size, count]


def compare(sequence: Sequence) -> Divergence | None:
    """Return the first operation at which the core differs from what was recorded; None where it never does."""
    ours = run(sequence)
    title = f"{sequence.header['seq']} of {sequence.file}"
    for number, (recorded, line) in enumerate(zip(sequence.lines, ours, strict=False)):
        for name in _RESULTS:
            expected, found = recorded.get(name), line.get(name)
            if expected != found:
                return Divergence(
                    sequence=title, line=number, operation=recorded["o"], field=name, recorded=expected, ours=found
                )
    if len(ours) != len(sequence.lines):
        return Divergence(
            sequence=title,
            line=len(ours),
            operation=sequence.lines[len(ours)]["o"],
            field="end",
            recorded="goes on",
            ours="ended by an assertion",
        )
    return None


def _emit(paths: list[Path]) -> None:
    for path in paths:
        for sequence in read_sequences(path):
            print(json.dumps(sequence.header))
            for line in run(sequence):
                print(json.dumps(line, separators=(",", ":")))


def _check(paths: list[Path]) -> int:
    lines = sequences = 0
    found: list[Divergence] = []
    for path in paths:
        for sequence in read_sequences(path):
            divergence = compare(sequence)
            sequences += 1
            lines += len(sequence.lines)
            if divergence is None:
                continue
            found.append(divergence)
            print(
                f"{divergence.sequence}: line {divergence.line} ({divergence.operation}), {divergence.field}: "
                f"recorded {divergence.recorded}, ours {divergence.ours}"
            )
    print(f"{lines} op lines of {sequences} sequences checked, {len(found)} sequences diverge")
    return 1 if found else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code: 0 equal, 1 something diverges, 2 a file cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m ullage.allocator.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--emit", action="store_true", help="write the core's own lines on standard output")
    options = parser.parse_args(arguments)
    try:
        if options.emit:
            _emit(options.files)
            return 0
        return _check(options.files)
    except UllageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _end() -> int:
    """Run as a program, which ends without a word where its reader has gone."""
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os._exit(128 + signal.SIGPIPE)  # the interpreter's last flush would fail once more
    except OSError as error:
        print(f"error: standard output cannot be written: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    return code


if __name__ == "__main__":
    sys.exit(_end())
