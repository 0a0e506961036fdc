"""Reads random inputs in several processes for a while, and keeps those that must not have come to what they did.

A process that crashes leaves the input that it was reading. Inputs are numbered, and number N of a seed is always the
same one: `python -m tests.fuzzing --reader text --seed 7 --only 1234` reads it again.
"""

import collections
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzzing.judgement import judge
from tests.fuzzing.readers import READERS, Reader

_BATCH: Final = 200
"""The inputs that one process reads: what it leaves behind cannot add up, and a crash costs little."""
_MOST_OF_A_KIND: Final = 3
_ENOUGH: Final = 50  # findings


@dataclass(frozen=True, slots=True)
class Finding:
    """An input, and what was wrong with what came of it."""

    reader: str
    seed: int
    number: int
    why: str

    @property
    def kind(self) -> str:
        """What findings of the same cause have in common, as far as a program can tell."""
        plain = "".join(sign for sign in self.why if not sign.isdigit())
        return f"{self.reader} {plain[-160:] if 'came out' in plain or 'exit code' in plain else plain[:60]}"


def input_of(reader: Reader, seed: int, number: int) -> bytes:
    """Return an input by its number."""
    return reader.changed(random.Random(f"{reader.name} {seed} {number}"))


def read_batch(name: str, seed: int, start: int, count: int, journal: Path) -> None:
    """Read a number of inputs in this process; write what was found to the journal, and before each its number."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory(prefix="ullage-fuzz-") as folder, journal.open("w") as notes:
        scratch = Path(folder)
        for number in range(start, start + count):
            notes.write(json.dumps({"begins": number}) + "\n")
            notes.flush()
            judgement = judge(reader, input_of(reader, seed, number), scratch)
            for why in judgement.findings:
                notes.write(json.dumps({"number": number, "why": why}) + "\n")
            if judgement.is_answered:
                notes.write(json.dumps({"answered": number}) + "\n")
        notes.write(json.dumps({"ends": True}) + "\n")


@dataclass(slots=True)
class Result:
    """What a campaign has read and found."""

    read: collections.Counter[str] = field(default_factory=collections.Counter)
    """The number of inputs, by reader."""
    answered: collections.Counter[str] = field(default_factory=collections.Counter)
    """The number of those that were not refused."""
    findings: list[Finding] = field(default_factory=list)
    """At most `_MOST_OF_A_KIND` of each kind."""


def run(names: list[str], *, seed: int, inputs: int, seconds: float, jobs: int) -> Result:
    """Read inputs of all readers in turn until there are enough, or the time is over."""
    began, result, kinds = time.monotonic(), Result(), collections.Counter[str]()
    running: list[_Batch] = []
    waiting = _batches(names, seed, inputs)
    folder = Path(tempfile.mkdtemp(prefix="ullage-fuzz-journals-"))
    try:
        while True:
            while len(running) < jobs and time.monotonic() - began < seconds and len(result.findings) < _ENOUGH:
                batch = next(waiting, None)
                if batch is None:
                    break
                batch.start(folder)
                running.append(batch)
            if not running:
                return result
            running[0].end(result, kinds)
            del running[0]
            if sys.stderr.isatty():
                told = f"\r{result.read.total():,} inputs, {len(result.findings)} findings "
                print(told, end="", file=sys.stderr, flush=True)
    finally:
        for batch in running:
            batch.kill()
        shutil.rmtree(folder)


def _batches(names: list[str], seed: int, inputs: int) -> "Iterator[_Batch]":
    """Yield batches of each reader in turn; together as many inputs as wanted."""
    each = -(-inputs // len(names))
    for start in range(0, each, _BATCH):
        for name in names:
            yield _Batch(name, seed, start, min(_BATCH, each - start))


@dataclass(slots=True)
class _Batch:
    """Inputs that one process reads."""

    name: str
    seed: int
    start_at: int
    count: int
    _process: "subprocess.Popen[bytes] | None" = None
    _journal: Path = Path()

    def start(self, folder: Path) -> None:
        """Start the process."""
        self._journal = folder / f"{self.name}-{self.start_at}"
        place = (self.name, str(self.seed), str(self.start_at), str(self.count), str(self._journal))
        with self._journal.with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzzing.batch", *place], stdout=subprocess.DEVNULL, stderr=errors
            )

    def end(self, result: Result, kinds: "collections.Counter[str]") -> None:
        """Wait for the process, and add what it has noted."""
        assert self._process is not None
        code = self._process.wait()
        lines = [json.loads(line) for line in self._journal.read_text().splitlines()] if self._journal.exists() else []
        begun = [line["begins"] for line in lines if "begins" in line]
        result.read[self.name] += len(begun)
        result.answered[self.name] += sum("answered" in line for line in lines)
        found = [(line["number"], line["why"]) for line in lines if "why" in line]
        if not lines or "ends" not in lines[-1]:
            words = self._journal.with_suffix(".err").read_text(errors="replace")[-800:]
            found.append((begun[-1] if begun else self.start_at, f"the process ended with {code}: {words}"))
        for number, why in found:
            one = Finding(self.name, self.seed, number, why)
            kinds[one.kind] += 1
            if kinds[one.kind] <= _MOST_OF_A_KIND:
                result.findings.append(one)
                print(f"{one.reader}, seed {one.seed}, input {number}: {why}", flush=True)

    def kill(self) -> None:
        """End the process."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def keep(found: list[Finding], folder: Path) -> None:
    """Write the inputs that were found into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in found:
        data = input_of(READERS[one.reader], one.seed, one.number)
        (folder / f"{one.reader}-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)


def environment_is_clean() -> None:
    """Take away what would change what commands do."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "FORCE_COLOR"):
        os.environ.pop(name, None)
    os.environ["COLUMNS"] = "100"
