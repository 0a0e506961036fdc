"""The facts about a machine and the findings about them, as plain data. None stands for an unknown fact."""

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
    """Whether the process is named like a DataLoader worker of PyTorch."""
    is_orphan: bool = False
    """Whether the parent of the process has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """A GPU as the driver describes it. `used_bytes` includes processes that are not visible to this process."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    compute_capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    processes: tuple[CardProcess, ...] = ()
    """The processes that the driver lists for this GPU. The process that asks the driver is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The NVIDIA driver: its version, and the newest CUDA version that it supports."""

    version: str
    cuda: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What PyTorch reports about its installation."""

    version: str
    cuda: str | None = None
    """The version of the CUDA toolkit that PyTorch is built for, such as "13.0". None for a build without CUDA."""
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    settings: str | None = None
    """The settings text that PyTorch's allocator has read."""
    settings_error: str | None = None
    """The error with which PyTorch's allocator rejected its settings. None if it accepted them."""
    pinned_bytes: int | None = None
    """The host memory that PyTorch has pinned in this process, in bytes. It includes cached memory."""
    is_here: bool = False
    """Whether ullage examined PyTorch in the user's own process. Otherwise it used a child process."""
    error: str | None = None
    """The error with which the import of torch fails. None if the import succeeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host or container that has the GPUs."""

    system: str = "Linux"
    is_wsl: bool = False
    memory_bytes: int | None = None
    limit_bytes: int | None = None
    """The container's memory limit in bytes."""
    used_bytes: int | None = None
    """The used host memory that counts towards the container's memory limit, in bytes. Memory that the kernel can
    reclaim is left out.
    """
    shared_total_bytes: int | None = None
    """The size of /dev/shm in bytes."""
    shared_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """All facts about a machine."""

    environment: dict[str, str] = field(default_factory=dict)
    """The environment variables that affect PyTorch and CUDA. The keys are their names."""
    host: Host = field(default_factory=Host)
    driver: Driver | None = None
    cards: tuple[CardFacts, ...] = ()
    torch: Torch | None = None
    is_emulated: bool = False
    workspaces: str | None = None
    """The source of cuDNN's workspace sizes, if the GPU is emulated."""


class Weight(Enum):
    """The importance of a finding."""

    PROBLEM = "problem"
    """A finding that needs action: a feature fails, a setting has no effect, or memory is wasted."""
    NOTE = "note"
    """A fact that may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisFinding:
    """One finding about this machine: what was found, why it matters, and what to do."""

    name: str
    """An identifier of the finding for programs. It stays the same when the texts change."""
    title: str
    seen: str
    why: str
    cure: str
    weight: Weight = Weight.PROBLEM
