"""A case is one measurement that somebody published; a result is what the emulated card says of the same run.

It does not know how anything is run or fetched. Sizes are in bytes.
"""

import enum
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the files of a case come from: a repository at a commit, or a source distribution on PyPI."""

    name: str
    """OWNER/NAME on GitHub, or the name of a distribution on PyPI."""
    revision: str
    """The whole commit, or the version."""
    licence: str
    """As the repository says it: nothing of it is copied here, whatever it says."""
    paths: tuple[str, ...] = (".",)
    """What is checked out of a repository: histories hold large files that no case needs."""

    @property
    def is_repository(self) -> bool:
        """Whether it is on GitHub and not on PyPI."""
        return "/" in self.name

    @property
    def text(self) -> str:
        """For a table: with as much of a commit as tells it from others."""
        return f"{self.name}@{self.revision[:7]}" if self.is_repository else f"{self.name} {self.revision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One published measurement, and how it is run on the emulated card."""

    name: str
    source: str
    """The module that runs it, and the file of its results."""
    what: str
    """In a few words, for the table."""
    origins: tuple[Origin, ...]
    """The first holds what was published."""
    file: str
    """What was published, in the first origin."""
    card: str
    """The real one, as far as the source tells it."""
    gpu: str
    """The emulated one, as `ullage.emulate` takes it."""
    placement: str = "linux"
    """Where the real driver puts segments, as `ullage.emulate` takes it."""
    total_memory_bytes: int | None = None
    """What the real card's driver reported; None: what the emulated one reports."""
    context_bytes: int | None = None
    """What the CUDA context took of it; None: what the emulated card's does."""
    cpus: int | None = None
    """What Python counted on the real machine, where libraries start as many threads; None: as many as there are."""
    torch_published: str
    """As the source tells it; empty where it does not."""
    torch: str
    """The version that it is run with here: the same, or the nearest that there is."""
    python: str = "3.11"
    packages: tuple[str, ...] = ()
    """Installed beside the environment with what they require; they may not require torch."""
    beside_torch: tuple[str, ...] = ()
    """Installed beside the environment without what they require."""
    is_recipe: bool = False
    """Whether `what` is all that was asked of the run: cases that have the same one measured it more than once."""
    is_repeat: bool = False
    """Whether another case runs the same measurement, in another way: the head of the page counts that one alone."""
    cause: str = ""
    """Why it differs, where that is known; the page says so where it does differ."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the module of the source needs to know to run it."""


class Status(enum.StrEnum):
    """How a case ended."""

    EQUAL = "equal"
    DIFFERS = "differs"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published number beside the emulated one."""

    published: int
    emulated: int
    resolution: int = 1
    """What the last digit of the published figure stands for; 1: it was published to the byte."""

    @property
    def is_equal(self) -> bool:
        """Whether the published text would be the same; rounded and cut off are both allowed for."""
        return abs(self.published - self.emulated) < self.resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many of how many are equal."""

    equal: int
    of: int

    @property
    def is_whole(self) -> bool:
        """Whether all are."""
        return self.equal == self.of

    @property
    def text(self) -> str:
        """For a table."""
        return f"{self.equal:,} of {self.of:,}"


FITS: Final = "fits"
OUT_OF_MEMORY: Final = "out of memory"
CANNOT_BE_JUDGED: Final = "cannot be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the run fits, on the real card and on the emulated one: FITS or OUT_OF_MEMORY.

    CANNOT_BE_JUDGED is a third outcome of the emulated card: it is not right, and nobody is told anything wrong.
    """

    published: str
    emulated: str

    @property
    def is_right(self) -> bool:
        """Whether the emulated card says what the real one did."""
        return self.published == self.emulated

    @property
    def is_open(self) -> bool:
        """Whether the emulated card does not say."""
        return self.emulated == CANNOT_BE_JUDGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a case."""

    case: str
    status: Status
    reason: str = ""
    """Why it was not run, or the first thing that differs."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    events: Share | None = None
    """Allocations, frees and segments in order and in size; None: the source has no events."""
    segments: Share | None = None
    """Of the end, equal in size and in every block; None: the source has no segments."""
    places: Share | None = None
    """Allocations of a recording that the allocator core puts where the real card did, told where its segments lay."""
    verdict: Verdict | None = None
    intervals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of figures that the emulated card knows between bounds alone."""
    seconds: float = 0
    date: str = ""
    """Of the run, as YYYY-MM-DD."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """torch, Python and ullage, as they said of themselves."""

    @classmethod
    def judged(cls, **parts: Any) -> Self:
        """Say whether what was found is equal: every figure, event, segment and verdict."""
        found = cls(status=Status.EQUAL, **parts)
        shares = [share for share in (found.events, found.segments) if share is not None]
        verdict = found.verdict is None or found.verdict.is_right
        equal = verdict and all(share.is_whole for share in shares) and all(f.is_equal for f in found.figures.values())
        return cls(status=Status.EQUAL if equal else Status.DIFFERS, **parts)

    @property
    def json(self) -> dict[str, Any]:
        """As it is kept in a file."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """Read what `json` gave."""
        share = {name: found.get(name) and Share(**found[name]) for name in ("events", "segments", "places")}
        return cls(
            **{
                **found,
                **share,
                "status": Status(found["status"]),
                "figures": {name: Figure(**figure) for name, figure in found["figures"].items()},
                "verdict": found["verdict"] and Verdict(**found["verdict"]),
                "intervals": {name: (low, high) for name, (low, high) in found["intervals"].items()},
            }
        )


def cases_of(path: Path) -> list[Case]:
    """Read the cases of a toml file.

    `[origins.KEY]` has the fields of Origin. `[defaults]` and `[groups.KEY]` hold fields of Case that many share;
    `[[cases]]` names its origins by key and, perhaps, its group; its own fields come first, `parameters` are merged.
    """
    table = tomllib.loads(path.read_text())
    origins = {
        key: Origin(**{**found, "paths": tuple(found.get("paths", ["."]))}) for key, found in table["origins"].items()
    }
    return [_case_of(entry, table, origins, path.stem) for entry in table["cases"]]


def _case_of(entry: dict[str, Any], table: dict[str, Any], origins: Mapping[str, Origin], source: str) -> Case:
    layers = [table.get("defaults", {}), table.get("groups", {}).get(entry.pop("group", ""), {}), entry]
    fields: dict[str, Any] = {"source": source}
    parameters: dict[str, Any] = {}
    for layer in layers:
        parameters |= layer.get("parameters", {})
        fields |= layer
    fields |= {name: tuple(fields.get(name, ())) for name in ("packages", "beside_torch")}
    chosen = tuple(origins[key] for key in fields["origins"])
    return Case(**{**fields, "origins": chosen, "parameters": parameters})
