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
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage._errors import UllageError, UsageError
from ullage.allocator.replay import Call, Device, Replay, replay
from ullage.program import Op, Program, ProgramWriter
from ullage.settings import parse_settings, semantics_of

_RESULTS: Final = ("r", "d", "s", "oom", "err", "skip")
_PLACEMENTS: Final = {"bump": "ascending", "firstfit": "first fit", "down": "descending"}
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
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            for number, text in enumerate(stream, start=1):
                data = json.loads(text)
                if "seq" in data:
                    if header is not None:
                        yield Sequence(file=str(path), header=header, lines=lines)
                    header, lines = data, []
                elif header is None or "o" not in data:
                    raise UsageError(f"line {number} of {path} is no header and no operation; expected 'seq' or 'o'")
                else:
                    lines.append(data)
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{path} cannot be read as recorded sequences: {error}") from None
    if header is None:
        raise UsageError(f"{path} holds no sequence; expected a header line with 'seq'")
    yield Sequence(file=str(path), header=header, lines=lines)


def program_of_lines(lines: Iterable[dict[str, Any]], *, semantics: str, first: Any) -> Program:
    """Make a program of operation lines; `first` are the settings at the start."""
    writer = ProgramWriter()
    keys: dict[str, int] = {}
    settings = first

    def stream(text: str) -> int:
        return _STREAMS + 0x100 * int(text) if int(text) else 0

    for line in lines:
        name, *words = line["o"].split(" ")
        match name:
            case "a":
                keys[words[0]] = len(keys)
                size = int(words[1])
                writer.add(
                    Op.ALLOCATE, key=keys[words[0]], size=size - (1 << 64) * (size >> 63), stream=stream(words[2])
                )
            case "f":
                writer.add(Op.FREE, key=keys.setdefault(words[0], len(keys)))
            case "r":
                writer.add(Op.RECORD_STREAM, key=keys.setdefault(words[0], len(keys)), stream=stream(words[1]))
            case "e":
                writer.add(Op.EMPTY_CACHE)
            case "F":
                writer.set_fraction(float(words[0]))
            case "s":
                settings = parse_settings(words[0] if words else "", semantics=semantics, before=settings)
                writer.set_settings(settings)
            case "x":
                writer.add(Op.SET_OTHERS, size=int(words[0]))
            case "X":
                writer.add(Op.FAIL_NEXT, key=int(words[0]))
            case "h" | "u" | "c":
                op = {"h": Op.HOLD, "u": Op.UNHOLD, "c": Op.COMPLETE}[name]
                writer.add(op, stream=stream(words[0]))
            case "S":
                writer.add(Op.SYNCHRONIZE)
            case "p":
                writer.begin_pool(int(words[1]), [stream(word) for word in words[2:]] or None)
            case "q":
                writer.add(Op.END_POOL, key=int(words[1]))
            case "R":
                writer.add(Op.RELEASE_POOL, key=int(words[1]))
            case "b" | "B":
                writer.add(Op.BEGIN_CAPTURE if name == "b" else Op.END_CAPTURE)
            case "n" | "t":
                writer.add(Op.NOTHING)
            case _:
                raise UsageError(f"{line['o']!r} is no operation of a recorded sequence")
    return writer.program()


def run(sequence: Sequence) -> list[dict[str, Any]]:
    """Run a sequence on the core and return its operation lines, with what came of each."""
    header = sequence.header
    try:
        semantics = semantics_of(header["torch"])
        settings = parse_settings(header["conf"], semantics=semantics)
        program = program_of_lines(sequence.lines, semantics=semantics, first=settings)
        device = Device(
            total_bytes=header["total"], others_bytes=header["base_used"], placement=_PLACEMENTS[header["policy"]]
        )
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise UsageError(
            f"{header.get('seq')} of {sequence.file} is damaged: {type(error).__name__}: {error}"
        ) from None
    done = replay(program, settings, device, levels=True, places=True, calls=True)
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
    name = f"{sequence.header['seq']} of {sequence.file}"
    for number, (recorded, line) in enumerate(zip(sequence.lines, ours, strict=False)):
        for field in _RESULTS:
            expected, found = recorded.get(field), line.get(field)
            if expected != found:
                return Divergence(
                    sequence=name, line=number, operation=recorded["o"], field=field, recorded=expected, ours=found
                )
    if len(ours) != len(sequence.lines):
        return Divergence(
            sequence=name,
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


if __name__ == "__main__":
    sys.exit(main())
