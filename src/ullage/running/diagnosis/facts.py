"""The facts about a machine, and the findings about them, as plain data. The value of an unknown fact is None."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that holds memory on a GPU."""

    pid: int
    name: str
    used_bytes: int | None
    is_ours: bool = True
    """Whether the process belongs to the user who runs the diagnosis."""
    is_worker: bool = False
    """Whether the process has the name that PyTorch gives DataLoader workers."""
    is_orphan: bool = False
    """Whether the parent of the process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """A GPU as the driver describes it.

    `used_bytes` includes the memory of processes that are not visible to this process.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    compute_capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    """The compute mode: "default", "prohibited" or "exclusive"."""
    processes: tuple[CardProcess, ...] = ()
    """The processes that the driver lists for this GPU, except the process that asks the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver: its version, and the newest CUDA version that it supports."""

    version: str
    cuda: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The facts about an installed PyTorch, as reported by PyTorch itself."""

    version: str
    cuda: str | None = None
    """The version of the CUDA toolkit that PyTorch is built for, such as "13.0"; None for a build without CUDA."""
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    settings: str | None = None
    """The settings text that PyTorch's allocator has read."""
    settings_error: str | None = None
    """The error with which PyTorch's allocator rejected its settings."""
    pinned_bytes: int | None = None
    """The bytes of host memory that PyTorch has pinned in this process, including cached memory."""
    is_here: bool = False
    """Whether ullage examined PyTorch in the user's own process instead of a child process."""
    error: str | None = None
    """The error with which the import of torch fails; None if it succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host or container that the GPUs belong to."""

    system: str = "Linux"
    is_wsl: bool = False
    memory_bytes: int | None = None
    limit_bytes: int | None = None
    """The container's memory limit in bytes."""
    used_bytes: int | None = None
    """The used host memory in bytes that counts towards the container's memory limit, without the memory that the
    kernel can reclaim.
    """
    shared_total_bytes: int | None = None
    """The size of /dev/shm in bytes."""
    shared_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """All facts about a machine."""

    environment: dict[str, str] = field(default_factory=dict)
    """The environment variables that affect PyTorch and CUDA, by name."""
    host: Host = field(default_factory=Host)
    driver: Driver | None = None
    cards: tuple[CardFacts, ...] = ()
    torch: Torch | None = None
    is_emulated: bool = False
    workspaces: str | None = None
    """The source of cuDNN workspace sizes for an emulated GPU."""


class Weight(Enum):
    """The importance of a finding."""

    PROBLEM = "problem"
    """The level of a finding that needs action: a feature fails, a setting is not in force, or memory is wasted."""
    NOTE = "note"
    """A fact that may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisFinding:
    """One finding about this machine: what was found, why it matters, and what to do."""

    name: str
    """A stable identifier of the finding for programs. It stays the same when the texts change."""
    title: str
    seen: str
    why: str
    cure: str
    weight: Weight = Weight.PROBLEM
