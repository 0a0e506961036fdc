"""The host's memory: what one process of the script took of it, times the ranks of a node, against a limit.

Figures of a process come from the script's own (`host.meter`), those of its workers from outside (`host.watch`). What a
CUDA driver takes of the host for a real card is in none of them: only a real card knows.
"""

from dataclasses import dataclass, fields
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.predicting.prediction.ranks.lone_rank import CARDS_OF_A_NODE
from ullage.running.diagnosis.host import read_host

GIVEN: Final = "given"
"""The source of a limit that the user gave, which alone decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """What one line of source had of the host's memory at a peak."""

    file: str | None
    line: int | None
    function: str | None
    is_users: bool
    """Whether the line is the user's own; otherwise it is a library's, to which none of the user's led."""
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPeaks:
    """What the script's process asked for of the host's memory, in bytes."""

    pinned_peak_bytes: int
    """Pinned memory as the driver hands it out, at most at once: with PyTorch's rounding, and exact."""
    pinned_lines: list[HostLine]
    pinned_untouched_bytes: int
    """Pinned memory that nobody has written, at most: a real driver has its pages there, the emulated one has not, so
    that they are not resident."""
    tensors_peak_bytes: int
    """Tensors on the CPU of 1 MiB and more, at most at once; without those in memory that processes share."""
    tensor_lines: list[HostLine]
    arrays_peak_bytes: int
    """NumPy's arrays of 1 MiB and more, at most at once."""
    array_lines: list[HostLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures(HostPeaks):
    """What the script's process had of the host's memory, in bytes."""

    high_water_bytes: int
    """The kernel's own count of the most that was resident, with what ullage added."""
    own_bytes: int
    """The part of it that ullage had added when the most was resident."""
    file_bytes: int
    """The pages of files among it: all processes of a node share them."""

    @property
    def resident_peak_bytes(self) -> int:
        """The most that was resident, without what ullage added."""
        return max(0, self.high_water_bytes - self.own_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersUse:
    """What the processes that the script started had, in bytes, each at its peak."""

    count: int = 0
    """The most that were alive at once."""
    private_bytes: int = 0
    """Memory that one of them has alone, summed."""
    shared_memory_bytes: int = 0
    """Memory in /dev/shm, of the script's process and theirs."""
    beside_bytes: int = 0
    """The most of both at once that is not resident in the script's own process too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse(HostPeaks):
    """The memory of one node's host that the run takes, in bytes."""

    resident_peak_bytes: int
    """The most that the script's process has resident, without what ullage adds."""
    own_bytes: int
    """The part that ullage added, which is left out."""
    file_bytes: int
    """The pages of files in `resident_peak_bytes`, which all ranks of a node share."""
    workers: int
    """The most processes that the script had started at once, such as a DataLoader's workers."""
    workers_bytes: int
    """The most that they had alone, and in shared memory beside the script's own process."""
    shared_memory_bytes: int
    """Memory in /dev/shm at most at once; a part of the above."""
    ranks_of_a_node: int
    total_bytes: int
    """All of it times the ranks of a node, the pages of files once."""
    limit_bytes: int | None
    """The most that the node gives; None if nobody says."""
    limit_source: str
    """Who says so: "given", "the control group's limit", "the machine's memory" or "not known"."""
    fits: bool | None
    """Whether the total is within the limit; None if there is no limit."""

    @property
    def rank_bytes(self) -> int:
        """What one rank takes by itself."""
        return self.resident_peak_bytes + self.pinned_untouched_bytes + self.workers_bytes

    @property
    def decides(self) -> bool:
        """Whether the host says "does not fit": only for a limit that was given."""
        return self.fits is False and self.limit_source == GIVEN


def host_use(
    figures: HostFigures | None,
    workers: WorkersUse,
    *,
    world_size: int | None,
    given_bytes: int | None,
) -> HostUse | None:
    """Put together what a node's host needs; None where the script's process told nothing.

    Args:
        figures: of the script's process.
        workers: of the processes that it started.
        world_size: how many ranks there are; None: the script runs alone.
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
    """Return the most that this machine gives, and who says so."""
    host = read_host()
    if host.limit_bytes is not None and (host.memory_bytes is None or host.limit_bytes < host.memory_bytes):
        return host.limit_bytes, "the control group's limit"
    return host.memory_bytes, "not known" if host.memory_bytes is None else "the machine's memory"


def reason_of_host(host: HostUse) -> str:
    """Say why the host does not give enough."""
    ranks = f" for {host.ranks_of_a_node} ranks" if host.ranks_of_a_node > 1 else ""
    assert host.limit_bytes is not None
    return (
        f"the host's memory is too small: at least {text_of_bytes(host.total_bytes)}{ranks} would be used "
        f"of {text_of_bytes(host.limit_bytes)}"
    )
