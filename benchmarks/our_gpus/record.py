"""The record of a GPU: a folder with JSON lines, written one answer at a time.

`record.jsonl` begins with a line about the GPU and its software; each further line is the answer to one question, or
the error that it ended with. `attachments.jsonl` holds what is large (snapshots), also one line each, and is written
before the answer that refers to it. A line is on the disk before the next question starts, so a run that is killed at
any moment loses only what was being measured; a last line that is cut off is dropped when the record is read or
continued. Nothing in a record is ever executed.
"""

import base64
import gzip
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
MOST_BYTES = 64 << 20
MOST_LINES = 10_000
MOST_CHARACTERS = 200
TEXTS = ("gpu", "torch", "driver", "python")
RECORD, ATTACHMENTS = "record.jsonl", "attachments.jsonl"


class RecordError(Exception):
    """A record that cannot be read or continued; the text says why in one sentence."""


@dataclass(slots=True)
class Record:
    """What is known of one GPU: `gpu` is the first line, `answers` and `errors` are by the question's name."""

    gpu: dict[str, Any]
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    attachments: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Compressed with gzip; by the names of the question and of the attachment."""


class Writer:
    """Appends to a record's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in (RECORD, ATTACHMENTS):
            _drop_cut_line(folder / name)

    def gpu(self, facts: dict[str, Any]) -> None:
        """Write the first line."""
        self._append(RECORD, {"format": FORMAT, "gpu": facts})

    def answer(self, question: str, answer: dict[str, Any], seconds: float) -> None:
        """Write an answer; its attachments, bytes under "attachments", go into the other file."""
        for name, data in answer.pop("attachments", {}).items():
            self._append(ATTACHMENTS, {"question": question, "name": name, "gzip_base64": data})
        self._append(RECORD, {"question": question, "seconds": round(seconds, 2), "answer": answer})

    def error(self, question: str, text: str, printed: str, seconds: float) -> None:
        """Write why there is no answer, and the end of what was printed."""
        line = {"question": question, "seconds": round(seconds, 2), "error": text, "printed": printed}
        self._append(RECORD, line)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            os.fsync(file.fileno())


def packed(data: bytes) -> str:
    """Return bytes as text for `attachments`."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def read_record(path: Path) -> Record:
    """Read a record's folder, or its file record.jsonl (both also compressed: record.jsonl.gz).

    Raises:
        RecordError: there is no record, or it is not one.
    """
    folder = path if path.is_dir() else path.parent
    file = _find(folder, RECORD) if path.is_dir() else path
    if file is None or not file.is_file():
        raise RecordError(f"{path}: there is no {RECORD}; make one with: make gpu (CONTRIBUTING.md)")
    lines = _lines(file)
    first = lines[0] if lines else {}
    if first.get("format") is not FORMAT or not _describes_gpu(first.get("gpu")):
        raise RecordError(f"{file}: this is not a record of a GPU (format {FORMAT}); make one with: make gpu")
    record = Record(gpu=first["gpu"])
    for line in lines[1:]:
        name = line.get("question")
        if not isinstance(name, str):
            continue
        record.seconds[name] = line.get("seconds", 0.0)
        if isinstance(line.get("answer"), dict):
            record.answers[name] = line["answer"]
            record.errors.pop(name, None)
        elif name not in record.answers:
            record.errors[name] = str(line.get("error", ""))
    attached = _find(folder, ATTACHMENTS)
    for line in _lines(attached) if attached else ():
        if {"question", "name", "gzip_base64"} <= line.keys():
            record.attachments[str(line["question"]), str(line["name"])] = _unpacked(attached, line["gzip_base64"])
    return record


def _describes_gpu(facts: Any) -> bool:
    """Return whether the first line has what the others are read with."""
    if not isinstance(facts, dict) or not all(_is_text(facts.get(name)) for name in TEXTS):
        return False
    total, packages, emulated = (facts.get(name) for name in ("total_memory_bytes", "packages", "emulated"))
    return (
        type(total) is int
        and 0 < total < 1 << 50
        and isinstance(packages, dict)
        and all(_is_text(text) for text in (*packages, *packages.values()))
        and (emulated is None or _is_text(emulated))
        and "cudnn" in facts
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_CHARACTERS and value.isprintable()


def _unpacked(path: Path | None, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise RecordError(f"{path}: an attachment is not base64; measure again") from None


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines; a last one that is cut off is left out."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: cannot be read ({error})") from None
    if len(data) > MOST_BYTES or data.count(b"\n") > MOST_LINES:
        raise RecordError(
            f"{path}: has more than {MOST_BYTES >> 20} MiB or {MOST_LINES:,} lines; a record has a few of each"
        )
    try:
        texts = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: cannot be read ({error})") from None
    if not texts[-1]:
        texts.pop()
    found = []
    for number, text in enumerate(texts):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            if number == len(texts) - 1 and not data.endswith(b"\n"):
                break  # cut off
            raise RecordError(f"{path}, line {number + 1}: this is not JSON; expected one answer per line") from None
        if not isinstance(line, dict):
            raise RecordError(f"{path}, line {number + 1}: expected a JSON object")
        found.append(line)
    return found


def _drop_cut_line(path: Path) -> None:
    """Remove what follows the last whole line of a file that a killed run has left."""
    if not path.is_file():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
