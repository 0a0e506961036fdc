"""The content of a live view at one point in time, as plain data, independent of its sources and of drawing."""

from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = 1
RUNS: Final = "runs"
GONE: Final = "gone"
"""The state of a process that ended without recording its end: it was killed, or called `os._exit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHolder:
    """A process that holds GPU memory, as the driver reports it."""

    pid: int
    name: str
    """The name of the process; empty if it is not visible from here."""
    used_bytes: int | None
    """The used bytes; None if the driver does not report them."""
    is_ours: bool
    """Whether the process belongs to the user who runs `ullage watch`."""
    is_watched: bool = False
    """Whether `ullage run` records this process, so that the view has its own figures too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """A GPU and the processes on it."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    """The bytes used by all processes, including their CUDA contexts."""
    holders: tuple[CardHolder, ...] = ()
    is_emulated: bool = False
    is_hearsay: bool = False
    """Whether only the files of runs report this GPU: it is emulated, on another machine, or has no driver here."""

    @property
    def hidden_bytes(self) -> int:
        """The used bytes that do not belong to a visible process: CUDA contexts, other containers, other users."""
        return max(0, self.used_bytes - sum(one.used_bytes or 0 for one in self.holders))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A process's memory on one device, as PyTorch's allocator in that process reports it."""

    index: int
    """PyTorch's index of the device, which may differ from the driver's."""
    card_name: str
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int
    """The bytes that the process may reserve."""
    headroom_bytes: int
    """The GPU's total (or the limit) minus the highest reserved bytes, CUDA contexts and other processes."""
    peak_bytes: int
    """The peak of allocated bytes since the run began."""
    peak_step: int
    peak_line: str | None
    split_bytes: int
    retries: int
    peaks: tuple[int, ...]
    """The peak of each of the latest steps in bytes, oldest first; of each second in a script without steps."""
    peak_steps: tuple[int, ...]
    """The step of each element of `peaks`; all elements are equal in a script without steps."""
    overview: tuple[int, ...]
    """The peaks over the whole run in bytes, each over a span of the same number of steps."""

    @property
    def cached_bytes(self) -> int:
        """The bytes that are reserved but not allocated."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A process that `ullage run` has started and that writes a live file."""

    pid: int
    command: str
    folder: str
    """The folder of the run."""
    host: str
    rank: int | None
    world_size: int | None
    state: str
    """The state that the process has written ("runs", "ended", "failed", "out of memory"), or `GONE`."""
    is_alive: bool
    steps: int
    step_seconds: float | None
    quiet_seconds: float | None
    """The seconds since the process last wrote its file; None if it never did."""
    devices: tuple[DeviceRow, ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    """The bytes by role over all devices, largest first; together with "the rest" they sum to the allocated memory."""
    growth: tuple[str, ...] = ()
    ooms: int = 0
    evidence: tuple[str, ...] = ()
    """The evidence folders, as paths for `ullage explain`."""
    recording: str = ""
    """The state of PyTorch's memory history: whether it is recorded, and why."""
    is_emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All data that the live view shows at one point in time."""

    time: float
    """The time of the view, in seconds since 1970."""
    subject: str
    """A description of the target that is watched."""
    cards: tuple[CardRow, ...] = ()
    processes: tuple[Inside, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences on what cannot be seen from here, and why."""
    is_over: bool = False
    """Whether all watched processes have ended."""

    def to_json(self) -> dict[str, Any]:
        """Return the view as plain data, with only the latest peak of each device."""
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
