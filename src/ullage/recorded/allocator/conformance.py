"""Compares the allocator model with recordings of PyTorch's own allocator, operation by operation.

    python -m ullage.recorded.allocator.conformance FILE.jsonl.gz ...          compare; exit code 1 if anything diverges
    python -m ullage.recorded.allocator.conformance --emit FILE.jsonl.gz       write the core's own lines

The recorded results of an operation are `r` (the place of an allocation), `d` (driver calls), `s` (five statistics),
`oom`, `err` and `skip`. All of them are compared; of `n` and `t` lines (snapshots, statistics), only `s` is compared.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage.base.errors import UllageError, UsageError
from ullage.recorded.allocator.recorded import Sequence, prepared, read_sequences
from ullage.recorded.allocator.replay import Call, Calls, Replay, replay

_RESULTS: Final = ("r", "d", "s", "oom", "err", "skip")
_LOWEST_ADDRESS: Final = 0x700000000000  # Addresses returned by cudaMalloc are written relative to this one.
# The word for each kind of driver call in files of recorded sequences, and the names of the figures that follow this
# word.
_WORDS: Final = {
    Call.MALLOC: ("M", "number", "size"),
    Call.MALLOC_FAILED: ("M!", "size"),
    Call.FREE: ("F", "number", "size"),
    Call.RESERVE: ("VR", "number", "size"),
    Call.UNRESERVE: ("VF", "number", "size"),
    Call.MAP: ("MAP", "number", "offset", "size", "count"),
    Call.UNMAP: ("UNMAP", "number", "offset", "size", "count"),
    Call.CREATE_FAILED: ("C!", "size", "count"),
}
_ASSERTS: Final = {
    "2.11": '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":3607',
    "2.15": '"/__w/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp":4393',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first allocator operation for which the model gives a different result than PyTorch."""

    sequence: str
    line: int
    operation: str
    field: str
    recorded: Any
    ours: Any


def run(sequence: Sequence) -> list[dict[str, Any]]:
    """Simulate a recorded sequence of allocator operations. Return one line per operation with the simulated
    results.
    """
    program, settings, device = prepared(sequence)
    try:
        done = replay(program, settings, device, levels=True, places=True, calls=True)
    except UllageError as error:
        raise UsageError(f"the sequence at line {sequence.row} of {sequence.file} cannot be run: {error}") from None
    return list(_lines_of(sequence, done, settings.semantics))


def _lines_of(sequence: Sequence, done: Replay, semantics: str) -> Iterator[dict[str, Any]]:
    assert done.levels is not None
    assert done.places is not None
    assert done.calls is not None
    policy = sequence.header["policy"]
    calls: list[list[list[Any]]] = [[] for _ in range(done.done)]
    columns = {name: getattr(done.calls, name).tolist() for name in Calls.__slots__}
    for row in zip(*columns.values(), strict=True):
        call = dict(zip(columns, row, strict=True))
        word, *figures = _WORDS[Call(call["call"])]
        calls[call["op"]].append([word, *(call[name] for name in figures)])
        if word == "M" and policy != "bump":
            calls[call["op"]][-1].append(call["address"] - _LOWEST_ADDRESS)
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
            place = _ASSERTS.get(semantics, "an unknown line")
            line["err"] = f"{done.broken} INTERNAL ASSERT FAILED at {place}, please report a bug to PyTorch. "
        if index in skipped:
            line["skip"] = 1
        yield line


def compare(sequence: Sequence) -> Divergence | None:
    """Return the first operation for which the allocator model differs from the recording, or None."""
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
                f"recorded {divergence.recorded}, core {divergence.ours}"
            )
    print(f"{lines} operations of {sequences} sequences checked, {len(found)} sequences diverge")
    return 1 if found else 0


def main(arguments: list[str] | None = None) -> int:
    """Compare recordings of PyTorch's allocator with the allocator model. The exit code is 0 if they are equal."""
    parser = argparse.ArgumentParser(prog="python -m ullage.recorded.allocator.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--emit", action="store_true", help="write the core's own lines to standard output")
    options = parser.parse_args(arguments)
    try:
        if options.emit:
            _emit(options.files)
            return 0
        return _check(options.files)
    except UllageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _run_as_program() -> int:
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os._exit(128 + signal.SIGPIPE)  # Otherwise the interpreter's last flush would fail, too.
    except OSError as error:
        print(f"error: standard output cannot be written: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    return code


if __name__ == "__main__":
    sys.exit(_run_as_program())
