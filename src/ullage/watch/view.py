"""What a live view shows at one moment: plain data. It knows neither where it comes from nor how it is drawn."""

from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = 1
RUNS: Final = "runs"
GONE: Final = "gone"
"""The state of a process that has ended without saying so: it was killed, or left by `os._exit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has memory of a card, seen from outside."""

    pid: int
    name: str
    """Empty where it cannot be known from here."""
    used_bytes: int | None
    """None where the driver does not tell."""
    is_ours: bool
    """Whether it belongs to the user who watches."""
    is_watched: bool = False
    """Whether its inside is in the view too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """A card and who is on it."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    """By all processes, with contexts."""
    holders: tuple[Holder, ...] = ()
    is_emulated: bool = False
    is_hearsay: bool = False
    """Whether only the files of runs tell of it: it is emulated, in another machine, or its driver is silent here."""

    @property
    def hidden_bytes(self) -> int:
        """What is in use by nobody who can be seen from here: contexts, other containers, other users."""
        return max(0, self.used_bytes - sum(one.used_bytes or 0 for one in self.holders))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a process has on one device, as its own allocator says."""

    index: int
    """PyTorch's, which need not be the driver's."""
    card_name: str
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int
    """What the process may reserve."""
    headroom_bytes: int
    """What is left of the card, or of the limit, beside the most that was reserved, contexts and others."""
    peak_bytes: int
    """The most that was allocated since the run began."""
    peak_step: int
    peak_line: str | None
    split_bytes: int
    retries: int
    peaks: tuple[int, ...]
    """The peak of each of the latest steps, in bytes, oldest first; where no steps are told, of each second."""
    peak_steps: tuple[int, ...]
    """The step of each of `peaks`; without steps all are the same."""
    overview: tuple[int, ...]
    """Peaks over the whole run, in spans of equal numbers of steps."""

    @property
    def cached_bytes(self) -> int:
        """What is reserved and not allocated."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A process that shows its own memory: one that `ullage run` has started."""

    pid: int
    command: str
    folder: str
    """The run's."""
    host: str
    rank: int | None
    world_size: int | None
    state: str
    """As the process says (runs, ended, failed, out of memory), or `GONE`."""
    is_alive: bool
    steps: int
    step_seconds: float | None
    quiet_seconds: float | None
    """Since it was last heard of; None where it has never been."""
    devices: tuple[Device, ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    """Bytes by role over all devices, the most first; they sum to what is allocated, with "the rest"."""
    growth: tuple[str, ...] = ()
    ooms: int = 0
    evidence: tuple[str, ...] = ()
    """Folders of what was written when memory ran out, as paths to give to `ullage explain`."""
    recording: str = ""
    """Whether PyTorch records what is allocated where, and why."""
    is_emulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that is shown."""

    time: float
    """Seconds since 1970."""
    subject: str
    """What is watched."""
    cards: tuple[CardRow, ...] = ()
    processes: tuple[Inside, ...] = ()
    notes: tuple[str, ...] = ()
    """What cannot be seen from here, and why."""
    is_over: bool = False
    """Whether everything that was to be watched has ended."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; series of peaks are left out, the latest peak stays."""
        processes = [
            asdict(one) | {"roles": dict(one.roles), "devices": [_device_json(device) for device in one.devices]}
            for one in self.processes
        ]
        cards = [asdict(card) | {"hidden_bytes": card.hidden_bytes} for card in self.cards]
        head = {"schema": SCHEMA, "time": self.time, "subject": self.subject, "is_over": self.is_over}
        return head | {"cards": cards, "processes": processes, "notes": list(self.notes)}


def _device_json(device: Device) -> dict[str, Any]:
    fields = asdict(device)
    for name in ("peaks", "peak_steps", "overview"):
        del fields[name]
    return fields | {"cached_bytes": device.cached_bytes, "latest_peak_bytes": device.peaks[-1] if device.peaks else 0}
