"""Facts that each process of a run writes about itself, such as its rank, its GPUs and its peaks."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self, get_args, get_type_hints

MOST_BYTES: Final = 1 << 50
"""A size that is larger than the memory of any GPU. Larger values in a file are invalid."""
_MOST: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """A GPU in one process. `index` is its device index in PyTorch."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    limit_bytes: int
    """The memory that the process may reserve on the GPU, in bytes (`torch.cuda.set_per_process_memory_fraction`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeak:
    """The peak of allocated memory on one device in a run."""

    bytes: int
    device: int
    step: int
    """The training step in which the peak was reached. The first step is 1."""
    line: str | None = None
    """The source line that reached the peak, such as "train.py:33". None without a memory history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arming:
    """The state of PyTorch's memory history: whether it is recorded, the reason, and the cost."""

    is_on: bool
    why: str
    since_step: int
    entries: int
    budget_bytes: int
    cost: float | None = None
    """The ratio of the time of a training step with memory history to the time without it. None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts about a process of a run that rarely change."""

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
    error: str = ""
    """The text of the exception that ended the process, if it mentions host memory. Otherwise empty."""
    steps: int = 0
    step_seconds: float | None = None
    """The median time of the latest training steps, in seconds."""
    cards: tuple[RunCard, ...] = ()
    peaks: tuple[RunPeak, ...] = ()
    """The peaks, one for each device."""
    roles: dict[str, int] = field(default_factory=dict)
    """Maps each role (parameters, gradients, optimizer state) to its bytes, summed over all devices."""
    arming: Arming | None = None
    growth: tuple[str, ...] = ()
    """The messages of `Monitor` about memory growth."""
    ooms: int = 0
    evidence: tuple[str, ...] = ()
    """The names of the folders that the process wrote at out-of-memory errors."""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a dictionary that `json.dumps` accepts."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Create the object from JSON data. Missing or invalid facts get their default values."""
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


# Maps the names of facts that are plain values to their allowed types.
_PLAIN: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("rank", "local_rank", "world_size", "steps", "ooms"), (int,)),
    **dict.fromkeys(("torch", "state", "error"), (str,)),
    "is_emulated": (bool,),
    "step_seconds": (float, int),
}


def _is_plain(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds and (not isinstance(value, int | float) or 0 <= value <= _MOST)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _int(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) <= _MOST else 0


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) <= _MOST else 0.0


def _fits(kind: type, value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {one.name for one in fields(kind)}:
        return False
    if not all(type(value[name]) in _union(hint) for name, hint in get_type_hints(kind).items()):
        return False
    return all(0 <= part <= MOST_BYTES for name, part in value.items() if name.endswith("bytes"))


def _union(hint: Any) -> tuple[type, ...]:
    kinds = get_args(hint) or (hint,)
    return (*kinds, int) if float in kinds else kinds  # JSON may write 1.0 as 1
