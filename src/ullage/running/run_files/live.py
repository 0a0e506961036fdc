"""The live file of a running process: the process writes its memory samples, and other programs can read them any time.

The file is mapped into memory, so that a sample costs no system call, and its content stays if the process is killed.
Its size never changes. It contains facts that change rarely, as JSON; the latest samples, in a ring buffer; and an
overview of the whole run, in bins that become wider as the run continues.
"""

import json
import mmap
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ullage.base.errors import UsageError
from ullage.base.foreign_files import open_regular
from ullage.base.own_files import OwnFolder
from ullage.running.run_files.facts import MOST_BYTES

SUFFIX: Final = ".live"
RECENT: Final = 4096
"""The number of memory samples in the ring buffer of a process's live file."""
BINS: Final = 2048
"""The number of bins in the overview."""
_MAGIC: Final = b"ULLAGE\x01\n"
_HEADER: Final = struct.Struct(
    "<8sQQQQQ"
)  # magic, version of the facts, their length, number of samples, number of bins, bin width
_COUNT: Final = struct.Struct("<Q")
_COUNT_AT: Final = struct.calcsize("<8sQQ")
_SAMPLE: Final = struct.Struct("<qdqqqqqqqq")
_FACTS_AT: Final = 4096
_FACTS_BYTES: Final = 1 << 16
_RECENT_AT: Final = _FACTS_AT + _FACTS_BYTES
_BINS_AT: Final = _RECENT_AT + RECENT * _SAMPLE.size
LIVE_BYTES: Final = _BINS_AT + BINS * _SAMPLE.size
"""The size of every live file in bytes. A live file has the memory samples of one process. Its size never changes."""
_MOST_STEPS, _MOST_DEVICES, _LATEST_TIME = 1 << 48, 1 << 10, 1e11
"""Upper limits of plausible values: the number of training steps, the number of GPUs, and the seconds since 1970."""
_READS: Final = 8
"""The maximum number of attempts to read a live file. The process may be writing the file during a read."""


class LiveFileError(UsageError):
    """A file is not a process's file of memory samples."""


class Sample(NamedTuple):
    """A memory sample: the memory of one device at the end of a training step."""

    step: int
    time: float
    """The time of the memory sample, in seconds since 1970."""
    device: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    used_bytes: int
    """The bytes that the process has reserved, plus the other used bytes on the GPU at the last query of the driver. It
    is -1 if the driver was not queried.
    """
    split_bytes: int
    """The bytes in free parts of segments that are partly in use (`inactive_split_bytes`)."""
    retries: int
    """The number of times that the allocator has emptied its cache and retried an allocation (`num_alloc_retries`)."""
    ooms: int
    """The number of out-of-memory errors (`num_ooms`)."""


@dataclass(frozen=True, slots=True)
class Live:
    """The content of a live file."""

    path: Path
    facts: dict[str, Any]
    recent: tuple[Sample, ...]
    """The latest samples, oldest first."""
    overview: tuple[Sample, ...]
    """The time spans of the whole run, sorted by their start. Each span is for one device.

    A span has the memory sample with its highest peak. In this sample, `reserved_bytes` is the highest value of the
    span.
    """
    samples: int
    first: int
    """The index of the first memory sample in `recent`. Samples are counted from the beginning of the run, and the
    first index is 0.
    """
    damaged: int
    """The number of memory samples that were removed from `recent` and `overview` because their values are
    impossible.
    """


class LiveWriter:
    """Writes the memory samples of this process into its live file. Only one thread may use this object at a time."""

    def __init__(self, path: Path | None, *, inode: int | None = None) -> None:
        """Create the file.

        Args:
            path: the path of the file; if it exists, a suffix is added. None keeps the content only in memory.
            inode: the inode number of the folder in which the file has to be created; None accepts any folder at this
                path.

        Raises:
            SharedFolderError: the folder is another folder, or other users can write to it.
            OSError: the disk is full, or the file may not be written.
        """
        self.path: Path | None = None
        if path is None:
            self._map = mmap.mmap(-1, LIVE_BYTES)
        else:
            self._map, self.path = _mapped(path, inode)
        self._version = 0
        self._length = 0
        self._count = 0
        self._bins = 0
        self._width = 1
        self._latest: dict[int, tuple[int, int]] = {}
        """Maps each device to the index of its latest bin in the overview, and to the number of memory samples in this
        bin.
        """
        self._head()

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        packed = _SAMPLE.pack(*sample)
        place = _RECENT_AT + self._count % RECENT * _SAMPLE.size
        self._map[place : place + _SAMPLE.size] = packed
        self._count += 1
        if self._is_full(sample.device) and self._bins == BINS:
            self._halve()
        if self._is_full(sample.device):
            self._put_bin(self._bins, sample)
            self._latest[sample.device] = self._bins, 1
            self._bins += 1
        else:
            index, filled = self._latest[sample.device]
            self._put_bin(index, _merged(self._bin(index), sample))
            self._latest[sample.device] = index, filled + 1
        self._head()

    def write_facts(self, facts: dict[str, Any]) -> None:
        """Replace the facts about the process in the live file. If they are too long, remove the longest facts."""
        text = json.dumps(facts, default=str).encode()
        while len(text) > _FACTS_BYTES:
            longest = max(facts, key=lambda name: len(json.dumps(facts[name], default=str)))
            facts = {name: value for name, value in facts.items() if name != longest}
            text = json.dumps(facts, default=str).encode()
        self._version += 1  # an odd version means that the facts are being written
        self._head()
        self._map[_FACTS_AT : _FACTS_AT + len(text)] = text
        self._length = len(text)
        self._version += 1
        self._head()

    def overview(self) -> list[Sample]:
        """Return the overview of the run so far."""
        return [self._bin(index) for index in range(self._bins)]

    def _head(self) -> None:
        # Written at once: `pack_into` would write zeros first, which a reader could see, or a kill could leave behind.
        self._map[: _HEADER.size] = _HEADER.pack(
            _MAGIC, self._version, self._length, self._count, self._bins, self._width
        )

    def _bin(self, index: int) -> Sample:
        return Sample._make(_SAMPLE.unpack_from(self._map, _BINS_AT + index * _SAMPLE.size))

    def _put_bin(self, index: int, sample: Sample) -> None:
        place = _BINS_AT + index * _SAMPLE.size
        self._map[place : place + _SAMPLE.size] = _SAMPLE.pack(*sample)

    def _is_full(self, device: int) -> bool:
        """Return whether the next memory sample of a device needs a new bin in the overview."""
        return device not in self._latest or self._latest[device][1] >= self._width

    def _halve(self) -> None:
        """Merge each pair of neighbouring bins of a device in the overview. A last bin without a neighbour stays
        unchanged.
        """
        bins: list[Sample] = []
        begun: dict[int, int] = {}
        """Maps each device to the index of its bin that waits for the next bin, to be merged with it."""
        latest: dict[int, int] = {}
        for one in self.overview():
            place = begun.pop(one.device, None)
            if place is None:
                latest[one.device] = begun[one.device] = len(bins)
                bins.append(one)
            else:
                bins[place] = _merged(bins[place], one)
        for device, place in latest.items():
            filled = self._latest[device][1]
            self._latest[device] = place, filled if device in begun else self._width + filled
        for index, one in enumerate(bins):
            self._put_bin(index, one)
        self._bins = len(bins)
        self._width *= 2


def read_live(path: Path, *, since: int = 0, most: int = RECENT, overview: bool = True) -> Live:
    """Return the content of a live file, during or after the run of its process.

    Args:
        path: the path of the file.
        since: the number of the first sample to read, counted from 0 over the whole run.
        most: the largest number of samples to read; the latest samples are read.
        overview: whether to read the overview. Reading few samples without it takes a tenth of the time.

    Raises:
        LiveFileError: the file is not a live file of a run.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        descriptor = file.fileno()
        for _ in range(_READS):
            content = os.pread(descriptor, _RECENT_AT, 0)
            size = os.fstat(descriptor).st_size
            if size != LIVE_BYTES or not content.startswith(_MAGIC):
                raise LiveFileError(
                    f"{path} is not a live file: it has {size} bytes, or a wrong header; expected a "
                    f"*{SUFFIX} file that `ullage run` has written"
                )
            _, version, length, count, bins, _ = _HEADER.unpack_from(content)
            facts = _facts_of(content[_FACTS_AT : _FACTS_AT + min(length, _FACTS_BYTES)])
            if version % 2 == 0 and facts is not None:
                break
        else:
            facts = {}  # the process was killed while it wrote the facts
        first = max(count - min(most, RECENT), since, 0)
        recent = _ring(descriptor, first, count)
        # Samples written meanwhile have replaced the oldest samples, and one more may be written only partly.
        (now,) = _COUNT.unpack(os.pread(descriptor, _COUNT.size, _COUNT_AT))
        whole = recent[max(0, now - RECENT + 1 - first) :]
        bytes_of_bins = os.pread(descriptor, min(bins, BINS) * _SAMPLE.size, _BINS_AT) if overview else b""
    overview_samples = _samples(bytes_of_bins)
    live = Live(
        path=path,
        facts=facts,
        recent=tuple(filter(_is_possible, whole)),
        overview=tuple(filter(_is_possible, overview_samples)),
        samples=count,
        first=count - len(whole),
        damaged=0,
    )
    return replace(live, damaged=len(whole) + len(overview_samples) - len(live.recent) - len(live.overview))


def is_live(descriptor: int) -> bool:
    """Return whether an open file is a live file: the memory samples of a process of `ullage run`."""
    return os.fstat(descriptor).st_size == LIVE_BYTES and os.pread(descriptor, len(_MAGIC), 0) == _MAGIC


def _ring(descriptor: int, first: int, end: int) -> list[Sample]:
    """Return the memory samples with indices from `first` to `end`. The ring buffer limits their number."""
    samples: list[Sample] = []
    while first < end:
        place = first % RECENT
        number = min(end - first, RECENT - place)
        samples += _samples(os.pread(descriptor, number * _SAMPLE.size, _RECENT_AT + place * _SAMPLE.size))
        first += number
    return samples


def _samples(content: bytes) -> list[Sample]:
    whole = content[: len(content) // _SAMPLE.size * _SAMPLE.size]
    return [Sample._make(numbers) for numbers in _SAMPLE.iter_unpack(whole)]


def _is_possible(sample: Sample) -> bool:
    """Return whether a memory sample is plausible. If not, the live file is damaged or was not written by ullage."""
    sizes = (
        sample.allocated_bytes,
        sample.reserved_bytes,
        sample.peak_bytes,
        sample.used_bytes + 1,
        sample.split_bytes,
    )
    counts = (sample.step, sample.retries, sample.ooms)
    return (
        all(0 <= size <= MOST_BYTES for size in sizes)
        and all(0 <= count < _MOST_STEPS for count in counts)
        and 0 <= sample.device < _MOST_DEVICES
        and 0 <= sample.time < _LATEST_TIME
    )


def _facts_of(text: bytes) -> dict[str, Any] | None:
    try:
        facts = json.loads(text) if text else {}
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _merged(first: Sample, second: Sample) -> Sample:
    higher = first if first.peak_bytes >= second.peak_bytes else second
    return higher._replace(reserved_bytes=max(first.reserved_bytes, second.reserved_bytes))


def _mapped(path: Path, inode: int | None) -> tuple[mmap.mmap, Path]:
    """Create a live file with its full size. Return its memory map and its path.

    If the name is taken, the path gets a suffix.
    """
    with OwnFolder.open(path.parent, inode=inode) as folder:
        descriptor, path = folder.new_file(path.name)
        try:
            # Disk space is reserved now: writing to a page for which the disk has no space would end the process
            # (SIGBUS).
            os.posix_fallocate(descriptor, 0, LIVE_BYTES)
            return mmap.mmap(descriptor, LIVE_BYTES), path
        except OSError:
            folder.remove_file(path.name, descriptor)
            raise
        finally:
            os.close(descriptor)
