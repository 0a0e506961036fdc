"""A file into which a running process writes its memory samples. Other programs can read it at any time.

The file is mapped into memory, so writing is fast and the data survives if the process is killed. The file contains the
latest samples and an overview of the whole run.
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
"""The maximum number of single memory samples in a file. The file keeps the latest ones."""
BINS: Final = 2048
"""The number of samples in the overview of the whole run."""
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
"""The size in bytes of each file with the memory samples of a process."""
# Upper limits of plausible values: the number of training steps, the number of GPUs, and the seconds since 1970.
_MOST_STEPS, _MOST_DEVICES, _LATEST_TIME = 1 << 48, 1 << 10, 1e11
# The maximum number of attempts to read a live file. The process may be writing the file during a read.
_READS: Final = 8


class LiveFileError(UsageError):
    """The file does not contain memory samples of a process."""


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
    """The used memory of the GPU over all processes, in bytes. It is -1 if the driver was not queried."""
    split_bytes: int
    """PyTorch's statistic `inactive_split_bytes`: the free bytes in segments that are partly in use."""
    retries: int
    """PyTorch's statistic `num_alloc_retries`: how often the allocator emptied its cache and retried."""
    ooms: int
    """PyTorch's statistic `num_ooms`: the number of out-of-memory errors."""


@dataclass(frozen=True, slots=True)
class Live:
    """The contents of a file with the memory samples of a process."""

    path: Path
    facts: dict[str, Any]
    recent: tuple[Sample, ...]
    """The latest samples, oldest first."""
    overview: tuple[Sample, ...]
    """An overview of the whole run. Each element is the sample with the highest peak in a time span on one device."""
    samples: int
    first: int
    """The number of samples of the run that are older than those in `recent`."""
    damaged: int
    """The number of invalid samples that were removed."""


class LiveWriter:
    """Writes the memory samples of this process into a file. It must be used in one thread at a time."""

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
        # Maps each device to the index of its latest bin in the overview, and to the number of memory samples in this
        # bin.
        self._latest: dict[int, tuple[int, int]] = {}
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
        """Replace the facts about the process. If they are too long, leave out the longest ones."""
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
        return device not in self._latest or self._latest[device][1] >= self._width

    def _halve(self) -> None:
        bins: list[Sample] = []
        # Maps each device to the index of its bin that waits for the next bin, to be merged with it.
        begun: dict[int, int] = {}
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
    """Read a file with the memory samples of a process, even while the process writes it.

    Args:
        path: the path of the file.
        since: the index of the first sample to read, counted from the beginning of the run.
        most: the maximum number of samples to read; the latest samples are read.
        overview: whether to read the overview, which takes most of the time if few samples are read.

    Raises:
        LiveFileError: the file does not contain memory samples of a process.
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
    """Return whether an open file contains memory samples of a process of `ullage run`."""
    return os.fstat(descriptor).st_size == LIVE_BYTES and os.pread(descriptor, len(_MAGIC), 0) == _MAGIC


def _ring(descriptor: int, first: int, end: int) -> list[Sample]:
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
