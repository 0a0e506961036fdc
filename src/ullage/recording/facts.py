"""What a process tells of itself beside its samples: who it is, its cards, its peak, what was found."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self, get_args, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card as PyTorch sees it in the process; `index` is PyTorch's."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    limit_bytes: int
    """What the process may reserve of it (`torch.cuda.set_per_process_memory_fraction`); the total, if not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most that was allocated on one device."""

    bytes: int
    device: int
    step: int
    """The step in which it came up, counted from 1."""
    line: str | None = None
    """The user's line that allocated when it came up, such as "train.py:33"; None where no history was kept then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arming:
    """Whether PyTorch records what is allocated where, why, and what that costs."""

    is_on: bool
    why: str
    since_step: int
    entries: int
    budget_bytes: int
    cost: float | None = None
    """How many times as long a step takes with it; None where that was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What changes seldom."""

    pid: int
    command: tuple[str, ...]
    host: str
    started: float
    """Seconds since 1970."""
    told: float
    """When this was written."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    torch: str = ""
    is_emulated: bool = False
    state: str = "runs"
    """runs, ended, failed (an exception ended it), out of memory."""
    steps: int = 0
    step_seconds: float | None = None
    """Of a step, the median of the latest."""
    cards: tuple[Card, ...] = ()
    peaks: tuple[Peak, ...] = ()
    """One for each device."""
    roles: dict[str, int] = field(default_factory=dict)
    """Bytes of parameters, gradients and optimizer state, over all devices."""
    arming: Arming | None = None
    growth: tuple[str, ...] = ()
    """What a `Monitor` has found, in sentences."""
    ooms: int = 0
    evidence: tuple[str, ...] = ()
    """Folders beside this file with what was written when memory ran out."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return what a file says; what is missing or of another form is left at its default."""
        known = {name: data[name] for name, kinds in _PLAIN.items() if type(data.get(name)) in kinds}
        known |= {
            "pid": _int(data.get("pid")),
            "command": tuple(str(part) for part in _list(data.get("command"))),
            "host": str(data.get("host", "")),
            "started": _float(data.get("started")),
            "told": _float(data.get("told")),
            "cards": tuple(Card(**one) for one in _list(data.get("cards")) if _fits(Card, one)),
            "peaks": tuple(Peak(**one) for one in _list(data.get("peaks")) if _fits(Peak, one)),
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
"""The facts that are taken as they are, if they are of one of these types."""


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _fits(kind: type, value: Any) -> bool:
    """Tell whether a dictionary has the fields of a class, each of the type that is annotated."""
    if not isinstance(value, dict) or set(value) != {one.name for one in fields(kind)}:
        return False
    return all(type(value[name]) in _union(hint) for name, hint in get_type_hints(kind).items())


def _union(hint: Any) -> tuple[type, ...]:
    kinds = get_args(hint) or (hint,)
    return (*kinds, int) if float in kinds else kinds  # JSON writes 1.0 as it likes
