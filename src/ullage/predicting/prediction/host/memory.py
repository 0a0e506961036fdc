"""Compute the host memory that all ranks of a node need, and compare it with a limit.

The figures do not include the host memory of a real CUDA driver, which can only be measured with a real GPU.
"""

from dataclasses import dataclass, fields
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE
from ullage.running.diagnosis.host import read_host

GIVEN: Final = "given"
"""The text for a host memory limit that the user gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """The host memory of one source line at the peak of host memory."""

    file: str | None
    line: int | None
    function: str | None
    is_users: bool
    """Whether the source line is in the user's code. If not, it is in a library."""
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPeaks:
    """The peaks of requested host memory in bytes, and the source lines that requested it."""

    pinned_peak_bytes: int
    """The peak of pinned host memory, including PyTorch's rounding."""
    pinned_lines: list[HostLine]
    pinned_untouched_bytes: int
    """The peak of the pinned host memory that the script never wrote to. With a real GPU, such memory uses physical
    memory; in emulation, it does not.
    """
    tensors_peak_bytes: int
    """The peak of CPU tensors of at least 1 MiB, in bytes. Tensors in shared memory are not included."""
    tensor_lines: list[HostLine]
    arrays_peak_bytes: int
    """The peak of NumPy arrays of at least 1 MiB, in bytes."""
    array_lines: list[HostLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures(HostPeaks):
    """The requested and the resident host memory of the script's process, in bytes."""

    high_water_bytes: int
    """The kernel's figure for the peak of resident memory. It includes the memory that ullage uses."""
    own_bytes: int
    """The bytes that ullage used at the peak of resident memory."""
    file_bytes: int
    """The part of the peak in file-backed pages, in bytes. All processes of a node share these pages."""

    @property
    def resident_peak_bytes(self) -> int:
        """The peak of resident memory in bytes, without the memory that ullage uses."""
        return max(0, self.high_water_bytes - self.own_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersUse:
    """The peaks of host memory in the processes that the script started, in bytes. These peaks may be at different
    times.
    """

    count: int = 0
    """The highest number of processes that ran at the same time, such as DataLoader workers."""
    private_bytes: int = 0
    """The peak of private memory of all processes that the script started, in bytes."""
    shared_memory_bytes: int = 0
    """The peak of memory in /dev/shm, in bytes."""
    beside_bytes: int = 0
    """The peak of private and shared memory of all processes that the script started, in bytes.

    Shared memory that is also resident in the script's own process is not included.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse(HostPeaks):
    """The predicted host memory of one node, in bytes."""

    resident_peak_bytes: int
    """The peak of resident memory of the script's process in bytes, without the memory that ullage uses."""
    own_bytes: int
    """The host memory in bytes that ullage used in the script's process."""
    file_bytes: int
    """The part of the peak in file-backed pages, in bytes. All ranks of a node share these pages."""
    workers: int
    """The highest number of processes of the script that ran at the same time, such as DataLoader workers."""
    workers_bytes: int
    """The peak memory of the processes that the script started, in bytes."""
    shared_memory_bytes: int
    """The peak of memory in /dev/shm, in bytes. It is also counted in `workers_bytes`."""
    ranks_of_a_node: int
    total_bytes: int
    """The host memory of all ranks of a node in bytes. File-backed pages are counted once."""
    limit_bytes: int | None
    """The available host memory of the node in bytes, or None if it is unknown."""
    limit_source: str
    """The source of the host memory limit: "given", "the control group's limit", "the machine's memory" or "not
    known".
    """
    fits: bool | None
    """Whether the run needs no more host memory than the node has, or None without a known limit."""

    @property
    def rank_bytes(self) -> int:
        """The host memory in bytes of a single rank on a node."""
        return self.resident_peak_bytes + self.pinned_untouched_bytes + self.workers_bytes

    @property
    def decides(self) -> bool:
        """Whether the script does not fit because of the host memory limit that the user gave."""
        return self.fits is False and self.limit_source == GIVEN


def host_use(
    figures: HostFigures | None,
    workers: WorkersUse,
    *,
    world_size: int | None,
    given_bytes: int | None,
) -> HostUse | None:
    """Compute the host memory that one node needs. Return None if it was not measured.

    Args:
        figures: the figures of the script's process.
        workers: the memory of the processes that the script started.
        world_size: the number of ranks; None if the script runs without ranks.
        given_bytes: the limit that the user gave.
    """
    if figures is None or not figures.high_water_bytes:
        return None
    ranks = min(world_size or 1, CARDS_OF_A_NODE)
    file_bytes = min(figures.file_bytes, figures.resident_peak_bytes)
    one = figures.resident_peak_bytes + figures.pinned_untouched_bytes + workers.beside_bytes
    total = ranks * one - (ranks - 1) * file_bytes
    limit, source = (given_bytes, GIVEN) if given_bytes is not None else _limit_here()
    return HostUse(
        **{each.name: getattr(figures, each.name) for each in fields(HostPeaks)},
        resident_peak_bytes=figures.resident_peak_bytes,
        own_bytes=figures.own_bytes,
        file_bytes=file_bytes,
        workers=workers.count,
        workers_bytes=workers.beside_bytes,
        shared_memory_bytes=workers.shared_memory_bytes,
        ranks_of_a_node=ranks,
        total_bytes=total,
        limit_bytes=limit,
        limit_source=source,
        fits=None if limit is None else total <= limit,
    )


def _limit_here() -> tuple[int | None, str]:
    host = read_host()
    if host.limit_bytes is not None and (host.memory_bytes is None or host.limit_bytes < host.memory_bytes):
        return host.limit_bytes, "the control group's limit"
    return host.memory_bytes, "not known" if host.memory_bytes is None else "the machine's memory"


def reason_of_host(host: HostUse) -> str:
    """Return a text that says how much host memory is needed and how much is available."""
    ranks = f" for {host.ranks_of_a_node} ranks" if host.ranks_of_a_node > 1 else ""
    assert host.limit_bytes is not None
    return (
        f"host memory is too small: at least {text_of_bytes(host.total_bytes)}{ranks} is needed, "
        f"and {text_of_bytes(host.limit_bytes)} is available"
    )
