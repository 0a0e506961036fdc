"""The facts about a machine, and the problems that were found. A value of None means that a fact is unknown."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that holds memory on a GPU."""

    pid: int
    name: str
    used_bytes: int | None
    is_ours: bool = True
    """Whether the process belongs to the user who runs ullage."""
    is_worker: bool = False
    """Whether the process is named like a DataLoader worker of PyTorch."""
    is_orphan: bool = False
    """Whether the parent process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """A GPU as NVIDIA's driver describes it. `used_bytes` is the memory that all processes use."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    compute_capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    processes: tuple[CardProcess, ...] = ()
    """The processes on this GPU, without the current process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """NVIDIA's driver: its version, and the newest CUDA version that it supports."""

    version: str
    cuda: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The installed PyTorch."""

    version: str
    cuda: str | None = None
    """The CUDA version that PyTorch is built for, such as "13.0". None if it is built without CUDA."""
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    settings: str | None = None
    """The settings string that PyTorch's allocator has read."""
    settings_error: str | None = None
    """The error message of PyTorch's allocator if it rejected its settings."""
    pinned_bytes: int | None = None
    """The pinned host memory of this process in bytes, including cached memory."""
    is_here: bool = False
    """Whether this process has imported PyTorch. If not, a child process has imported it."""
    error: str | None = None
    """The error message if torch cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host or container to which the GPUs belong."""

    system: str = "Linux"
    is_wsl: bool = False
    memory_bytes: int | None = None
    limit_bytes: int | None = None
    """The container's memory limit in bytes."""
    used_bytes: int | None = None
    """The memory that the container uses, in bytes, without memory that the kernel can reclaim."""
    shared_total_bytes: int | None = None
    """The size of /dev/shm in bytes."""
    shared_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """All facts about a machine."""

    environment: dict[str, str] = field(default_factory=dict)
    """The environment variables that affect PyTorch or CUDA."""
    host: Host = field(default_factory=Host)
    driver: Driver | None = None
    cards: tuple[CardFacts, ...] = ()
    torch: Torch | None = None
    is_emulated: bool = False
    workspaces: str | None = None
    """The source of the workspace sizes of cuDNN, if the GPU is emulated."""


class Weight(Enum):
    """Whether a finding is a problem or only a note."""

    PROBLEM = "problem"
    """A problem that the user should fix. A feature fails, a setting has no effect, or memory is wasted."""
    NOTE = "note"
    """A setting that may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisFinding:
    """One problem or note about this machine, with the reason and the solution."""

    name: str
    """The identifier of the finding in JSON output. It never changes."""
    title: str
    seen: str
    why: str
    cure: str
    weight: Weight = Weight.PROBLEM
