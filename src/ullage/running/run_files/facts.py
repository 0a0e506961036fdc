"""The facts that a process writes about itself in addition to memory samples: its identity, GPUs, peaks and
findings.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self, get_args, get_type_hints

MOST_BYTES: Final = 1 << 50
"""A number of bytes that no GPU has. A file with a larger size is damaged, or was not written by ullage."""
_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """A GPU as PyTorch sees it in one process. `index` is PyTorch's device index."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    limit_bytes: int
    """The bytes of the GPU that the process may reserve: by default the total, or less after
    `torch.cuda.set_per_process_memory_fraction`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeak:
    """The peak of allocated memory on one device in a run."""

    bytes: int
    device: int
    step: int
    """The training step in which the memory peak was reached, counted from 1."""
    line: str | None = None
    """The line of the user's code that reached the memory peak, such as "train.py:33"; None without a memory
    history.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Arming:
    """The state of PyTorch's memory history: whether it is recorded, for which reason, and at which cost."""

    is_on: bool
    why: str
    since_step: int
    entries: int
    budget_bytes: int
    cost: float | None = None
    """The ratio of a training step's time with memory history to its time without; None if it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts about a process of a run: all recorded data about the process that changes rarely."""

    pid: int
    command: tuple[str, ...]
    host: str
    started: float
    """The time at which the process started, in seconds since 1970."""
    told: float
    """The time at which the process wrote these facts, in seconds since 1970."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    torch: str = ""
    is_emulated: bool = False
    state: str = "runs"
    """The state of the process: "runs", "ended", "failed" (an exception ended it) or "out of memory"."""
    steps: int = 0
    step_seconds: float | None = None
    """The median duration of the latest training steps, in seconds."""
    cards: tuple[RunCard, ...] = ()
    peaks: tuple[RunPeak, ...] = ()
    """The peaks, one for each device."""
    roles: dict[str, int] = field(default_factory=dict)
    """The bytes of parameters, gradients and optimizer state, by role, summed over all devices."""
    arming: Arming | None = None
    growth: tuple[str, ...] = ()
    """The findings of `Monitor`, as sentences."""
    ooms: int = 0
    evidence: tuple[str, ...] = ()
    """The names of the folders that were written at out-of-memory errors, one for each recorded error."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return the facts about a process from the content of its file. Missing and malformed facts get their
        defaults.
        """
        known = {name: data[name] for name, kinds in _PLAIN.items() if _is_plain(data.get(name), kinds)}
        known |= {
            "pid": _int(data.get("pid")),
            "command": tuple(str(part) for part in _list(data.get("command"))),
            "host": str(data.get("host", "")),
            "started": _float(data.get("started")),
            "told": _float(data.get("told")),
            "cards": tuple(RunCard(**one) for one in _list(data.get("cards")) if _fits(RunCard, one)),
            "peaks": tuple(RunPeak(**one) for one in _list(data.get("peaks")) if _fits(RunPeak, one)),
            "roles": {str(k): _int(v) for k, v in data["roles"].items()} if isinstance(data.get("roles"), dict) else {},
            "arming": Arming(**data["arming"]) if _fits(Arming, data.get("arming")) else None,
            "growth": tuple(str(one) for one in _list(data.get("growth"))),
            "evidence": tuple(str(one) for one in _list(data.get("evidence"))),
        }
        return cls(**known)


_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("rank", "local_rank", "world_size", "steps", "ooms"), (int,)),
    **dict.fromkeys(("torch", "state"), (str,)),
    "is_emulated": (bool,),
    "step_seconds": (float, int),
}
"""The names of the facts about a process that are plain values, with their allowed types."""


def _is_plain(value: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether a value has one of the given types. A number also has to be in the range of counters, and not
    NaN.
    """
    return type(value) in kinds and (not isinstance(value, int | float) or 0 <= value <= _MOST)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _int(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) <= _MOST else 0


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) <= _MOST else 0.0


def _fits(kind: type, value: Any) -> bool:
    """Return whether a dictionary has the fields of a class, and each value has the annotated type of its field."""
    if not isinstance(value, dict) or set(value) != {one.name for one in fields(kind)}:
        return False
    if not all(type(value[name]) in _union(hint) for name, hint in get_type_hints(kind).items()):
        return False
    return all(0 <= part <= MOST_BYTES for name, part in value.items() if name.endswith("bytes"))


def _union(hint: Any) -> tuple[type, ...]:
    kinds = get_args(hint) or (hint,)
    return (*kinds, int) if float in kinds else kinds  # JSON may write 1.0 as 1
