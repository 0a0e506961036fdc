"""The facts about a machine and a finding about them, as plain data. A fact that could not be read is None."""

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that holds memory on a card."""

    pid: int
    name: str
    used_bytes: int | None
    is_ours: bool = True
    """Whether the process belongs to the user who runs the diagnosis."""
    is_worker: bool = False
    """Whether the process has the name that PyTorch gives DataLoader workers."""
    is_orphan: bool = False
    """Whether the process that started it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """A card as the driver describes it; memory of processes that are not visible appears only in `used_bytes`."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    compute_capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    """"default", "prohibited" or "exclusive"."""
    processes: tuple[CardProcess, ...] = ()
    """Processes on the card that the driver shows to this process, without itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver: its version, and the newest CUDA that it runs."""

    version: str
    cuda: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """An installed PyTorch, as it describes itself."""

    version: str
    cuda: str | None = None
    """The CUDA toolkit that torch is built for, such as "13.0"; None for a build without CUDA."""
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    settings: str | None = None
    """The settings text that torch's allocator has read."""
    settings_error: str | None = None
    """The error with which torch's allocator refused its settings."""
    pinned_bytes: int | None = None
    """Host memory that torch has pinned in this process, its cache included."""
    is_here: bool = False
    """Whether torch was examined in the user's own process, not in a child process."""
    error: str | None = None
    """The reason why torch cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the cards, or the container."""

    system: str = "Linux"
    is_wsl: bool = False
    memory_bytes: int | None = None
    limit_bytes: int | None = None
    """The container's memory limit."""
    used_bytes: int | None = None
    """Memory that counts towards the limit and that the kernel cannot drop."""
    shared_total_bytes: int | None = None
    """Size of /dev/shm."""
    shared_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """All facts about a machine."""

    environment: dict[str, str] = field(default_factory=dict)
    """The environment variables that concern PyTorch and CUDA."""
    host: Host = field(default_factory=Host)
    driver: Driver | None = None
    cards: tuple[CardFacts, ...] = ()
    torch: Torch | None = None
    is_emulated: bool = False
    workspaces: str | None = None
    """The source of cuDNN's workspaces, on an emulated card."""


class Weight(Enum):
    """The importance of a finding."""

    PROBLEM = "problem"
    """Something does not work, is not what was asked for, or takes memory for nothing."""
    NOTE = "note"
    """Information that may well be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisFinding:
    """One finding about this machine: what was seen, why it matters, and what to do."""

    name: str
    """A stable identifier for programs: it stays the same when the wording changes."""
    title: str
    seen: str
    why: str
    cure: str
    weight: Weight = Weight.PROBLEM
