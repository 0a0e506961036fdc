"""The data that `ullage watch` shows at one point in time. It depends neither on its sources nor on how it is drawn."""

from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = 1
RUNS: Final = "runs"
GONE: Final = "gone"
"""The state of a process that ended without recording its end. It was killed, or it called `os._exit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHolder:
    """A process that uses GPU memory, as reported by NVIDIA's driver."""

    pid: int
    name: str
    """The name of the process. Empty if this user or container cannot see the process."""
    used_bytes: int | None
    """The GPU memory that the process uses, in bytes. None if the driver does not report it."""
    is_ours: bool
    is_watched: bool = False
    """Whether `ullage run` records this process. ullage then has figures from inside the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """A GPU and the processes on it."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    """The used bytes of the GPU. They include all processes and their CUDA contexts."""
    holders: tuple[CardHolder, ...] = ()
    is_emulated: bool = False
    is_hearsay: bool = False
    """Whether the driver does not report this GPU, but the files of processes do. It is emulated, is on another
    machine, or has no driver on this machine.
    """

    @property
    def hidden_bytes(self) -> int:
        """The used bytes of the GPU that belong to no visible process: CUDA contexts, other containers, other users."""
        return max(0, self.used_bytes - sum(one.used_bytes or 0 for one in self.holders))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A process's memory on one device, as reported by PyTorch's allocator in the process."""

    index: int
    """PyTorch's index of the device. The driver may use a different index."""
    card_name: str
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int
    """The bytes that the process may reserve."""
    headroom_bytes: int
    """The free memory that remains: the process's limit minus the highest reserved bytes, CUDA contexts and other
    processes.

    The limit is the GPU's total memory unless the process has a lower one.
    """
    peak_bytes: int
    """The peak of allocated bytes on the device since the run began."""
    peak_step: int
    peak_line: str | None
    split_bytes: int
    retries: int
    peaks: tuple[int, ...]
    """The peak of each of the latest training steps, in bytes, oldest first. A script without steps has a peak for each
    second.
    """
    peak_steps: tuple[int, ...]
    """The training step of each element of `peaks`. In a script without steps, all are equal."""
    overview: tuple[int, ...]
    """The peaks over the whole run, in bytes. Each peak covers the same number of training steps."""

    @property
    def cached_bytes(self) -> int:
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
    """The state that the process has written into its file ("runs", "ended", "failed", "out of memory"), or `GONE`."""
    is_alive: bool
    steps: int
    step_seconds: float | None
    quiet_seconds: float | None
    """The seconds since the process last wrote its file of memory samples. None if it never wrote the file."""
    devices: tuple[DeviceRow, ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    """Pairs of a role, such as parameters, and its bytes over all devices. The largest comes first.

    The role "the rest" is the remaining allocated memory.
    """
    growth: tuple[str, ...] = ()
    ooms: int = 0
    evidence: tuple[str, ...] = ()
    """The paths of the folders of out-of-memory errors, for `ullage explain`."""
    recording: str = ""
    """Whether PyTorch's memory history is recorded, and why."""
    is_emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All data that `ullage watch` shows at one point in time."""

    time: float
    """The time at which the data was collected, in seconds since 1970."""
    subject: str
    """A text that describes what `ullage watch` shows."""
    cards: tuple[CardRow, ...] = ()
    processes: tuple[Inside, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences that say what `ullage watch` cannot see, and why."""
    is_over: bool = False
    """Whether all watched processes have ended."""

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data for JSON. Only the latest peak of each device is included."""
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
