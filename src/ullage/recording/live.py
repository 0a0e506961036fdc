"""The file through which a running process shows its memory: written by the process, read by anybody, at any moment.

It is mapped into memory, so that a sample costs no system call, and what has been written stays when the process is
killed. It has one size from its beginning, whatever the run does: facts that change seldom, as JSON; the latest
samples, in a ring; and an overview of the whole run, in bins that become wider as it goes on.
"""

import json
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from ullage._errors import UsageError

SUFFIX: Final = ".live"
RECENT: Final = 4096
"""Samples in the ring."""
BINS: Final = 2048
"""Of the overview."""
_MAGIC: Final = b"ULLAGE\x01\n"
_HEADER: Final = struct.Struct("<8sQQQQQ")  # magic, version of the facts, their length, samples so far, bins, bin width
_SAMPLE: Final = struct.Struct("<qdqqqqqqqq")
_FACTS_AT: Final = 4096
_FACTS_BYTES: Final = 1 << 16
_RECENT_AT: Final = _FACTS_AT + _FACTS_BYTES
_BINS_AT: Final = _RECENT_AT + RECENT * _SAMPLE.size
_SIZE_BYTES: Final = _BINS_AT + BINS * _SAMPLE.size
_READS: Final = 8
"""How often a reader tries to read what is being written."""


class LiveFileError(UsageError):
    """A file is not one of a run."""


class Sample(NamedTuple):
    """The memory of one device at the end of a step."""

    step: int
    time: float
    """Seconds since 1970."""
    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    """Most that was allocated since the sample before."""
    used_bytes: int
    """What the driver says is used on the card, by all processes, when it was last asked; -1: never."""
    split_bytes: int
    """Free parts of segments that are partly in use (`inactive_split_bytes`)."""
    retries: int
    """How often the allocator has given its cache back and tried again (`num_alloc_retries`)."""
    ooms: int
    """How often memory has run out (`num_ooms`)."""


@dataclass(frozen=True, slots=True)
class Live:
    """What a process has shown of itself."""

    path: Path
    facts: dict[str, Any]
    recent: tuple[Sample, ...]
    """The latest samples, oldest first."""
    overview: tuple[Sample, ...]
    """The whole run: the sample with the highest peak of each bin, with the bin's highest `reserved_bytes`."""
    samples: int
    """How many there were."""


class LiveWriter:
    """The process's own end of its file. It belongs to one thread at a time."""

    def __init__(self, path: Path | None) -> None:
        """Make the file; where it cannot be made, or without a path, the same is kept in memory.

        Raises:
            OSError: there is no room for it, or it may not be written.
        """
        self.path = path
        self._map = _mapped(path) if path is not None else mmap.mmap(-1, _SIZE_BYTES)
        self._version = 0
        self._length = 0
        self._count = 0
        self._bins = 0
        self._width = 1
        self._in_bin = 0
        self._head()

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        packed = _SAMPLE.pack(*sample)
        place = _RECENT_AT + self._count % RECENT * _SAMPLE.size
        self._map[place : place + _SAMPLE.size] = packed
        self._count += 1
        if self._in_bin == 0:
            if self._bins == BINS:
                self._halve()
            self._put_bin(self._bins, sample)
            self._bins += 1
        else:
            self._put_bin(self._bins - 1, _merged(self._bin(self._bins - 1), sample))
        self._in_bin = (self._in_bin + 1) % self._width
        self._head()

    def tell(self, facts: dict[str, Any]) -> None:
        """Replace the facts; what does not fit is left out, the longest first."""
        text = json.dumps(facts, default=str).encode()
        while len(text) > _FACTS_BYTES:
            longest = max(facts, key=lambda name: len(json.dumps(facts[name], default=str)))
            facts = {name: value for name, value in facts.items() if name != longest}
            text = json.dumps(facts, default=str).encode()
        self._version += 1  # odd: being written
        self._head()
        self._map[_FACTS_AT : _FACTS_AT + len(text)] = text
        self._length = len(text)
        self._version += 1
        self._head()

    def overview(self) -> list[Sample]:
        """Return the overview of the run so far."""
        return [self._bin(index) for index in range(self._bins)]

    def _head(self) -> None:
        _HEADER.pack_into(self._map, 0, _MAGIC, self._version, self._length, self._count, self._bins, self._width)

    def _bin(self, index: int) -> Sample:
        return Sample._make(_SAMPLE.unpack_from(self._map, _BINS_AT + index * _SAMPLE.size))

    def _put_bin(self, index: int, sample: Sample) -> None:
        _SAMPLE.pack_into(self._map, _BINS_AT + index * _SAMPLE.size, *sample)

    def _halve(self) -> None:
        for index in range(BINS // 2):
            self._put_bin(index, _merged(self._bin(2 * index), self._bin(2 * index + 1)))
        self._bins = BINS // 2
        self._width *= 2


def read_live(path: Path) -> Live:
    """Read what a process has shown, while it writes or after it has ended.

    Raises:
        LiveFileError: the file is not one of a run.
        OSError: it cannot be read.
    """
    for _ in range(_READS):
        content = path.read_bytes()
        if len(content) != _SIZE_BYTES or not content.startswith(_MAGIC):
            raise LiveFileError(
                f"{path} is no file of a run: it has {len(content)} bytes, or does not begin as one; expected a "
                f"*{SUFFIX} file that `ullage run` has written"
            )
        _, version, length, count, bins, _ = _HEADER.unpack_from(content)
        facts = _facts_of(content[_FACTS_AT : _FACTS_AT + min(length, _FACTS_BYTES)])
        if version % 2 == 0 and facts is not None:
            break
    else:
        facts = {}  # killed while it wrote them
    # One more may have been written over the oldest while this was read.
    kept = range(max(0, count - RECENT + 1), count)
    return Live(
        path=path,
        facts=facts,
        recent=tuple(_sample(content, _RECENT_AT, index % RECENT) for index in kept),
        overview=tuple(_sample(content, _BINS_AT, index) for index in range(min(bins, BINS))),
        samples=count,
    )


def _facts_of(text: bytes) -> dict[str, Any] | None:
    try:
        facts = json.loads(text) if text else {}
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _sample(content: bytes, start: int, index: int) -> Sample:
    return Sample._make(_SAMPLE.unpack_from(content, start + index * _SAMPLE.size))


def _merged(first: Sample, second: Sample) -> Sample:
    higher = first if first.peak_bytes >= second.peak_bytes else second
    return higher._replace(reserved_bytes=max(first.reserved_bytes, second.reserved_bytes))


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        # Room for all of it now: writing to a page that the disk has no room for would end the process (SIGBUS).
        os.posix_fallocate(descriptor, 0, _SIZE_BYTES)
        return mmap.mmap(descriptor, _SIZE_BYTES)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
