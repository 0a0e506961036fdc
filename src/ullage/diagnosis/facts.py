"""What was seen on a machine: plain data, without a judgement. What could not be read is None."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that holds memory on a card."""

    pid: int
    name: str
    used_bytes: int | None
    is_ours: bool = True
    """Whether it belongs to the user who asks."""
    is_worker: bool = False
    """Whether it bears the name that PyTorch gives a DataLoader's worker."""
    is_orphan: bool = False
    """Whether what started it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as the driver describes it; a card that another process shares shows that in `used_bytes`."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    compute_capability: tuple[int, int] | None = None
    compute_mode: str | None = None
    """"default", "prohibited" or "exclusive"."""
    processes: tuple[Process, ...] = ()
    """Those that the driver lets this process see, without itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver: its version, and the newest CUDA that it runs."""

    version: str
    cuda: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """An installed PyTorch, as it says itself."""

    version: str
    cuda: str | None = None
    """The toolkit it is built for, "13.0"; None for a build without CUDA."""
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    settings: str | None = None
    """The text that its allocator has read."""
    settings_error: str | None = None
    """What it said of a text that it refuses."""
    pinned_bytes: int | None = None
    """Host memory that its allocator has pinned in this process, with what it keeps for later."""
    is_here: bool = False
    """Whether it was asked in the user's own process, and not in one of ours."""
    error: str | None = None
    """Why it cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the cards, or the container."""

    system: str = "Linux"
    is_wsl: bool = False
    memory_bytes: int | None = None
    limit_bytes: int | None = None
    """What the container may take of it."""
    used_bytes: int | None = None
    """What counts towards the limit and cannot be dropped."""
    shared_total_bytes: int | None = None
    """/dev/shm"""
    shared_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was seen."""

    environment: dict[str, str] = field(default_factory=dict)
    """The variables that have to do with PyTorch and CUDA."""
    host: Host = field(default_factory=Host)
    driver: Driver | None = None
    cards: tuple[Card, ...] = ()
    torch: Torch | None = None
    is_emulated: bool = False
    workspaces: str | None = None
    """Of an emulated card: who answers for the workspaces of cuDNN."""
