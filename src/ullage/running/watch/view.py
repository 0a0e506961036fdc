"""The data that `ullage watch` shows at one point in time."""

from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = 1
RUNS: Final = "runs"
GONE: Final = "gone"
"""The state of a process that was killed or called `os._exit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHolder:
    """A process that uses GPU memory, as reported by NVIDIA's driver."""

    pid: int
    name: str
    """The name of the process. Empty if it is not visible to this user."""
    used_bytes: int | None
    """The GPU memory that the process uses, in bytes. None if the driver does not report it."""
    is_ours: bool
    is_watched: bool = False
    """Whether `ullage run` records this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """A GPU and the processes on it."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    """The used memory of the GPU over all processes, in bytes."""
    holders: tuple[CardHolder, ...] = ()
    is_emulated: bool = False
    is_hearsay: bool = False
    """Whether the driver does not report this GPU, for example because it is emulated or on another machine."""

    @property
    def hidden_bytes(self) -> int:
        """The used memory of the GPU that belongs to no visible process, in bytes."""
        return max(0, self.used_bytes - sum(one.used_bytes or 0 for one in self.holders))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """The memory of one process on one device, as reported by PyTorch's allocator."""

    index: int
    """The index of the device in PyTorch, which may differ from the driver's."""
    card_name: str
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int
    """The memory that the process may reserve, in bytes."""
    headroom_bytes: int
    """The memory that was still free when the process had reserved the most memory, in bytes."""
    peak_bytes: int
    """The peak of allocated bytes on the device since the run began."""
    peak_step: int
    peak_line: str | None
    split_bytes: int
    retries: int
    peaks: tuple[int, ...]
    """The peak of each of the latest training steps, in bytes, oldest first."""
    peak_steps: tuple[int, ...]
    """The training step of each element of `peaks`."""
    overview: tuple[int, ...]
    """The peaks over the whole run, in bytes. Each element covers the same number of training steps."""

    @property
    def cached_bytes(self) -> int:
        return max(0, self.reserved_bytes - self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A process that `ullage run` records."""

    pid: int
    command: str
    folder: str
    """The folder of the run."""
    host: str
    rank: int | None
    world_size: int | None
    state: str
    """The state of the process: "runs", "ended", "failed", "out of memory", or `GONE`."""
    is_alive: bool
    steps: int
    step_seconds: float | None
    quiet_seconds: float | None
    """The seconds since the process last wrote a memory sample. None if it never did."""
    devices: tuple[DeviceRow, ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    """Pairs of a role (such as "parameters") and its memory in bytes, the largest first."""
    growth: tuple[str, ...] = ()
    ooms: int = 0
    evidence: tuple[str, ...] = ()
    """The paths of the folders that were written at out-of-memory errors."""
    recording: str = ""
    """Whether PyTorch's memory history is recorded, and why."""
    is_emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All data that `ullage watch` shows at one point in time."""

    time: float
    """The time at which the data was collected, in seconds since 1970."""
    subject: str
    """A description of what the user watches."""
    cards: tuple[CardRow, ...] = ()
    processes: tuple[Inside, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the user: which data `ullage watch` cannot show, and why."""
    is_over: bool = False
    """Whether all watched processes have ended."""

    def to_json(self) -> dict[str, Any]:
        """Return the data as a dictionary that `json.dumps` accepts."""
        processes = [
            asdict(one) | {"roles": dict(one.roles), "devices": [_device_json(device) for device in one.devices]}
            for one in self.processes
        ]
        cards = [asdict(card) | {"hidden_bytes": card.hidden_bytes} for card in self.cards]
        head = {"schema": SCHEMA, "time": self.time, "subject": self.subject, "is_over": self.is_over}
        return head | {"cards": cards, "processes": processes, "notes": list(self.notes)}


def _device_json(device: DeviceRow) -> dict[str, Any]:
    fields = asdict(device)
    for name in ("peaks", "peak_steps", "overview"):
        del fields[name]
    return fields | {"cached_bytes": device.cached_bytes, "latest_peak_bytes": device.peaks[-1] if device.peaks else 0}
