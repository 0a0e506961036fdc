"""What `ullage predict` answers: a verdict and the numbers under it.

The verdict is made from an interval of what the driver would say is used, because the size of a CUDA context and of
cuDNN's workspaces is known to a real card only. PyTorch's own numbers (allocated, reserved) are exact.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

SCHEMA: Final = 1
"""Version of the JSON; it rises when a field is removed or changes its meaning."""


class Verdict(StrEnum):
    """Whether a script fits on a card."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """0 fits, 1 does not, 4 cannot be judged."""
        return {Verdict.FITS: 0, Verdict.DOES_NOT_FIT: 1, Verdict.UNKNOWN: 4}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step; `complete` is False where the run ended inside it."""

    step: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    oom: bool
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUse:
    """Memory alive at a moment that one line of the user's source allocated for one role."""

    role: str
    file: str | None
    line: int | None
    function: str | None
    phase: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Values read back from the card at one place; they were zeros."""

    file: str | None
    line: int | None
    op: str
    count: int
    bytes: int
    decides_shape: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """PyTorch's out-of-memory error, where it was raised in the user's source, and what was alive then."""

    text: str
    file: str | None
    line: int | None
    requested_bytes: int
    """What the failing request needed; with `allocated_bytes` and `reserved_bytes`, the levels just before it."""
    allocated_bytes: int
    reserved_bytes: int
    roles: dict[str, int]
    lines: list[LineUse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What every one of the last steps left behind, the user's line that allocated most of it, and who holds that."""

    bytes_per_step: int
    file: str | None
    line: int | None
    holder: str | None = None
    """The path from a variable, as `ullage.owners` tells it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a page draws beside the numbers; sizes in bytes after rounding."""

    by_role: dict[str, list[int]]
    """Beside each value of the timeline."""
    tree: list[tuple[str, str, str, int, int]]
    """At the peak: role, module, source line, bytes, blocks."""
    segments: list[dict[str, Any]]
    """At the peak: address, size, and blocks as (offset, bytes, role)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnUse:
    """The graphs (convolutions, attention) that ran in cuDNN, and where their workspaces come from; sizes in bytes.

    `problems` counts them by source: "cudnn", its own answer; "table", measured of graphs like them; "given" by the
    user; "unknown", taken as nothing.
    """

    version: int
    """91900 for cuDNN 9.19.0; 0: nothing ran on a card."""
    problems: dict[str, int]
    largest_workspace_bytes: int
    below_bytes: int
    """How much less a real card may use than was counted; 0 where all is cuDNN's answer."""
    above_bytes: int
    """How much more."""
    benchmark_bytes: int
    """With `torch.backends.cudnn.benchmark`: how much more the plan that a real card keeps may take."""
    reasons: list[str]
    """Why workspaces are not cuDNN's own answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Sizes that a library tells only to a real card, so that they are guessed; in bytes, the most at once."""

    kind: str
    """`rnn`, `batch_norm`, `dropout`, `ctc` or `fft`."""
    count: int
    guessed_bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What another run of the script needs."""

    verdict: Verdict
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeaks(Peaks):
    """What one rank of a distributed script needs."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answer for one script on one card; every `*_bytes` in bytes."""

    verdict: Verdict
    reason: str
    script: str
    arguments: list[str]
    gpu: str
    torch: str
    world_size: int | None
    """Of how many ranks the script took itself for one; None: it was started alone."""
    rank: int
    ranks: list[RankPeaks]
    """Of every rank, where all were run and this is the fullest; else empty."""
    total_memory_bytes: int
    context_bytes: int
    context_source: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    cached_bytes: int
    """Reserved beyond allocated at the moment of the allocated peak."""
    headroom_bytes: int
    """Total - peak reserved - context."""
    cudnn: CudnnUse
    """What ran of cuDNN, and how well its workspaces are known; in both ends of the interval."""
    guesses: list[Guess]
    """Counted as guessed in the peaks; their own ends are in both ends of the interval."""
    interval_bytes: tuple[int, int]
    """What the driver would say is used at the peak: low, high."""
    settled: bool
    growth: Growth | None
    """Where every step leaves more behind than the one before."""
    peak_step: int | None
    """The step that set the allocated peak."""
    steps: list[Step]
    roles: dict[str, int]
    """Requested bytes by role at the allocated peak, with rounding: they sum to `peak_allocated_bytes`."""
    role_peaks: dict[str, int]
    """The most that each role ever held at once."""
    lines: list[LineUse]
    timeline: dict[str, list[int]]
    reads: list[Read]
    oom: Oom | None
    oom_count: int
    """How often memory ran out, errors that the script handled included."""
    notes: list[str]
    """What the reader has to know to trust the numbers."""
    unwritten: dict[str, int]
    """CUDA functions that were called and answered "not supported"."""
    compiled_graphs: int
    """How many graphs torch.compile made."""
    eager: Peaks | None
    """The same script with torch.compile switched off, where that was run too."""
    optimizers_changed: int
    """How many optimizers took the default that was asked for (`Request.optimizer_default`)."""
    picture: Picture | None
    """Only where it was asked for; not in the JSON."""
    snapshot_error: str | None
    """Why the snapshot that was asked for could not be written."""
    ended: str
    """How the run ended: steps, ended, time, oom."""
    seconds: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with the schema's version first."""
        data = {"schema": SCHEMA, **asdict(self), "verdict": self.verdict.value, "cached": self.cached_bytes}
        del data["picture"]
        del data["cached_bytes"]  # `cached` stands beside the roles, which are named without a unit
        return data


def judge(
    *, low_bytes: int, high_bytes: int, total_bytes: int, lacking_bytes: int | None = None, spare_bytes: int = 0
) -> Verdict:
    """Decide from the interval of what the driver would say is used.

    "fits" needs its high end to fit, "does not fit" its low end not to.

    Args:
        low_bytes: the interval's low end.
        high_bytes: its high end.
        total_bytes: of the card.
        lacking_bytes: where the script ran out of memory, how much was missing; that decides, and not the interval.
        spare_bytes: how much less than was counted may have been taken by then.
    """
    if lacking_bytes is not None:
        return Verdict.UNKNOWN if lacking_bytes <= spare_bytes else Verdict.DOES_NOT_FIT
    if low_bytes > total_bytes:
        return Verdict.DOES_NOT_FIT
    return Verdict.FITS if high_bytes <= total_bytes else Verdict.UNKNOWN
