"""The result of `ullage predict`: a verdict, and the numbers behind it.

The verdict is made from an interval of the memory that the driver would report as used, because the sizes of a CUDA
context and of cuDNN's workspaces are known to a real card only. PyTorch's own numbers (allocated, reserved) are exact.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from ullage.base.errors import ExitCode
from ullage.base.public import public
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.epoch.use import EpochUse
from ullage.predicting.prediction.data.avoidable_memory import Avoidable
from ullage.predicting.prediction.host.memory import HostUse
from ullage.predicting.prediction.job_request import JobRequest
from ullage.report.answer import Answer

SCHEMA: Final = 2
"""The version of the JSON; it rises when a field is removed or changes its meaning."""


class Verdict(StrEnum):
    """Whether a script fits on a card."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `ullage predict`."""
        codes = {Verdict.FITS: ExitCode.YES, Verdict.DOES_NOT_FIT: ExitCode.NO, Verdict.UNKNOWN: ExitCode.UNKNOWN}
        return codes[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step; `complete` is False if the run ended inside it."""

    step: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    oom: bool
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """What one phase of a run used at most: loading, a step, evaluation, saving, resuming, generate."""

    name: str
    first_step: int
    """The number of the step with which it began; for what is no step, the steps before it: 0 is before the first."""
    peak_allocated_bytes: int
    before_bytes: int
    """The bytes that were allocated already where the span of the peak began."""
    peak_reserved_bytes: int
    file: str | None
    """The file of the user's line that set the allocated peak; None if there is none, or if it was there before."""
    line: int | None
    count: int
    """The number of times that it was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBand:
    """The part of the timeline that a phase takes, by its first and its last bin."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUse:
    """The memory alive at a moment that one line of the user's source allocated for one role."""

    role: str
    file: str | None
    line: int | None
    function: str | None
    phase: str
    bytes: int
    blocks: int
    module: str = ""
    """The module that ran, with a star for each number in its name; empty in rows of the user's own lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """Values that the script read back from the card at one place."""

    file: str | None
    line: int | None
    op: str
    count: int
    bytes: int
    kind: str
    """The kind of thing that they may decide: "shape", "branch", "number" (whole numbers), or "float", which decides
    nothing known."""
    certainty: str
    """The sureness of the values: "known", "assumed" (of finite numbers), "alike" (other ranks have what this one
    has), "drawn" from a seed, or "unknown" (zero)."""

    @property
    def may_decide(self) -> bool:
        """Whether a size or a branch may depend on them."""
        return self.kind != "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesUse:
    """What was done about values that the script read back from the card."""

    mode: str
    """"on", "off" or "all"."""
    seed: int
    routing: str
    host_bytes: int
    """The most that values took of the host's memory."""
    failures: dict[str, str]
    """Operations that the host could not compute, with its error; their results count as unknown."""
    routed: int = 0
    """The number of times that `routing` chose experts, and not the drawn scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """PyTorch's out-of-memory error, the user's line that raised it, and the memory that was alive then."""

    text: str
    file: str | None
    line: int | None
    requested_bytes: int
    """The size of the failed request; `allocated_bytes` and `reserved_bytes` are the levels just before it."""
    allocated_bytes: int
    reserved_bytes: int
    roles: dict[str, int]
    lines: list[LineUse]
    limit_bytes: int | None = None
    """The script's own limit of what it may reserve (`torch.cuda.set_per_process_memory_fraction`), where that refused
    the request and not the card; otherwise None."""
    library_lines: list[LineUse] = field(default_factory=list)
    """The same as `Prediction.library_lines`, for what was alive then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth from step to step: the bytes that each of the last steps left behind, the line that allocated most of
    them, and their holder."""

    bytes_per_step: int
    file: str | None
    line: int | None
    holder: str | None = None
    """The path from a variable to what holds the memory, as in `ullage.owners`; None if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data of the charts on a page; sizes in bytes after rounding."""

    by_role: dict[str, list[int]]
    """The bytes by role at each value of the timeline."""
    tree: list[tuple[str, str, str, int, int]]
    """The memory at the peak, as rows: role, module, source line, bytes, blocks."""
    segments: list[dict[str, Any]]
    """The segments at the peak: address, size, and blocks as (offset, bytes, role)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnUse:
    """The graphs (convolutions, attention) that ran in cuDNN, and the sources of their workspace sizes; in bytes.

    `problems` counts graphs by source: "cudnn": cuDNN's own answer; "table": measured on similar graphs; "given": by
    the user; "unknown": counted as zero.
    """

    version: int
    """The version of cuDNN, as 91900 for 9.19.0; 0 if nothing ran in it."""
    problems: dict[str, int]
    largest_workspace_bytes: int
    below_bytes: int
    """The bytes by which a real card may use less than was counted; 0 if all sizes are cuDNN's own."""
    above_bytes: int
    """The bytes by which a real card may use more than was counted."""
    benchmark_bytes: int
    """The bytes that the plan chosen on a real card with `torch.backends.cudnn.benchmark` may take in addition."""
    reasons: list[str]
    """The reasons why workspace sizes are not cuDNN's own answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Sizes that a library reports only with a real card, and that are therefore estimated; in bytes, at their peak."""

    kind: str
    """The kind of operation: `rnn`, `batch_norm`, `dropout`, `ctc` or `fft`; or `nccl`, whose buffers are beside all
    that was counted."""
    count: int
    guessed_bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The reserved memory if the driver placed segments at other addresses; sizes in bytes.

    Up to torch 2.11 the allocator takes the lower one of equally large free blocks, so addresses matter.
    """

    driver: str
    """The driver whose placement was emulated: one of `ullage.gpu.placement.PLACEMENTS`."""
    ties: int
    """The number of times that an address decided between equally large free blocks."""
    below_bytes: int
    """The bytes by which another placement would reserve less, at most."""
    above_bytes: int
    """The bytes by which another placement would reserve more, at most."""
    fits_somewhere: bool
    """Whether there is a placement under which memory does not run out."""
    is_certain: bool
    """Whether a replay reserved as much as the run did; if not, nothing is known about other placements."""

    @property
    def decides_nothing(self) -> bool:
        """Whether all compared placements reserve the same."""
        return self.is_certain and not self.below_bytes and not self.above_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideUse:
    """The memory that one library asked the driver for itself, in requested bytes, at its peak."""

    library: str
    """The file name of the library's shared object."""
    calls: int
    bytes: int
    """The bytes that were not freed at the end."""
    peak_bytes: int
    managed_peak_bytes: int
    """The peak of managed memory, which is host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The memory taken outside PyTorch's allocator, in bytes."""

    uses: list[OutsideUse]
    peak_bytes: int
    """The bytes by which the card's highest used memory exceeds PyTorch's reserved peak plus the context."""
    managed_on_card_bytes: int
    """The managed memory that was prefetched to the card, at its peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The peaks of another run of the script."""

    verdict: Verdict
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    @classmethod
    def of(cls, prediction: "Prediction", **more: Any) -> Self:
        """Return the peaks of a prediction, with what else the class has."""
        return cls(
            verdict=prediction.verdict,
            peak_allocated_bytes=prediction.peak_allocated_bytes,
            peak_reserved_bytes=prediction.peak_reserved_bytes,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPeaks(Peaks):
    """The peaks of a run whose unknown values were drawn from another seed."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeaks(Peaks):
    """The peaks of one rank of a distributed script."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPeaks(Peaks):
    """The peaks of one process of a command."""

    name: str
    """The name of the program that it runs."""
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeaks(Peaks):
    """The peaks of one of two runs: of the script as it was given, or with further arguments to resume."""

    arguments: list[str]
    phases: list[PhaseUse]


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Answer):
    """The prediction for one script on one card; every `*_bytes` is in bytes."""

    described_in: ClassVar[str] = "ullage.predicting.prediction.description.describe"

    verdict: Verdict
    reason: str
    script: str
    arguments: list[str]
    gpu: str
    torch: str
    world_size: int | None
    """The number of ranks of which the script was one; None if it was started alone."""
    rank: int
    ranks: list[RankPeaks] = field(default_factory=list)
    """The peaks of every rank, if all were run and this is the fullest; otherwise empty."""
    total_memory_bytes: int
    context_bytes: int
    context_interval_bytes: tuple[int, int]
    """The least and the most that the CUDA context may take."""
    context_source: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    cached_bytes: int
    """The reserved less the allocated bytes at the moment of the allocated peak."""
    headroom_bytes: int
    """The total memory less the peak reserved, the context, and memory taken outside PyTorch's allocator."""
    cudnn: CudnnUse
    """The use of cuDNN, and how exactly its workspaces are known; counted in both ends of the interval."""
    guesses: list[Guess]
    """The estimated sizes, which are counted in the peaks; their bounds are in both ends of the interval."""
    placement: Placement | None
    """The effect of other placements; None if addresses do not matter (from torch 2.12 on) or nothing was allocated."""
    outside: Outside
    """The memory taken outside PyTorch's allocator; counted in both ends of the interval."""
    interval_bytes: tuple[int, int]
    """The lowest and the highest used memory that the driver would report at the peak."""
    settled: bool
    growth: Growth | None
    """The growth from step to step; None if there is none."""
    peak_step: int | None
    """The step with the allocated peak."""
    steps: list[Step]
    roles: dict[str, int]
    """The requested bytes by role at the allocated peak, and rounding; they sum to `peak_allocated_bytes`."""
    role_peaks: dict[str, int]
    """The peak of each role by itself, in requested bytes."""
    lines: list[LineUse]
    timeline: dict[str, list[int]]
    reads: list[HostRead]
    values: ValuesUse
    draws: list[DrawPeaks] = field(default_factory=list)
    """The peaks of every seed, if values that nobody knows may have decided; otherwise empty. All other figures are of
    the seed whose run used most, but for the interval and the verdict, which are of all."""
    oom: Oom | None
    oom_count: int
    """The number of out-of-memory errors, including errors that the script handled."""
    notes: list[str]
    """Remarks that the reader needs to judge how far the numbers can be trusted."""
    unwritten: dict[str, int]
    """The CUDA functions that were called and returned "not supported", with the number of calls."""
    compiled_graphs: int
    """The number of graphs that torch.compile made."""
    eager: Peaks | None = None
    """The peaks of the same script with torch.compile switched off; None if that was not run."""
    changes_made: dict[str, int]
    """The number of times that each of `Request.changes` had an effect; one that had none is not there."""
    changes_refused: dict[str, str]
    """Why a change could not be made, by the change."""
    training: TrainingFacts | None = None
    """The way in which the run trains, with `Request.diagnose`; otherwise None. Not in the JSON."""
    picture: Picture | None
    """The data of the charts, if they were asked for; not in the JSON."""
    snapshot_error: str | None
    """The reason why the snapshot could not be written; None if it was, or was not asked for."""
    ended: str
    """The end of the run: "steps", "ended", "time" or "oom"."""
    seconds: dict[str, float]
    processes: list[ProcessPeaks] = field(default_factory=list)
    """The processes of a command that used the card, if there are several; all other figures are of the fullest."""
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory at the allocated peak by module and by the library's own line, where one line of the user's leads to
    most of it through a library (`trainer.train()`); otherwise empty."""
    phases: list[PhaseUse] = field(default_factory=list)
    """The peaks of each phase: loading, steps, and whatever else was run."""
    bands: list[PhaseBand] = field(default_factory=list)
    """The place of each phase in the timeline, if there is another than loading and steps."""
    runs: list[RunPeaks] = field(default_factory=list)
    """The peaks of the first run and of the resumed one, if there was one and this is the fullest; otherwise empty."""
    host: HostUse | None = None
    """The memory of one node's host that the run takes; None if the script's process could not tell."""
    job_request: JobRequest | None = None
    """The lines that ask a cluster for what was found, if they were asked for."""
    epoch: EpochUse | None = None
    """The use over an epoch in its real order, with `batches="heaviest"`; otherwise None."""
    avoidable: list[Avoidable] = field(default_factory=list)
    """The memory of the allocated peak that the script could do without, if that was asked for."""
    sent_bytes_per_step: int | None = None
    """The bytes that this rank sends to others by NCCL in a step, where collectives go round in rings: an estimate of
    the traffic, as NCCL chooses between rings, trees and multicast. None where no step has ended."""
    recomputed_share: float | None = None
    """The part of the forward pass that the backward pass computed again (activation checkpointing), each module
    counted by the size of its parameters: an estimate. None where no module was called."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with the schema's version first."""
        data = {"schema": SCHEMA, **asdict(self), "verdict": self.verdict.value, "cached": self.cached_bytes}
        del data["picture"]
        del data["training"]
        for name in ("epoch", "avoidable"):
            if not data[name]:
                del data[name]
        del data["cached_bytes"]  # `cached` stands beside the roles, which are named without a unit
        return data


def fullness_of(prediction: Prediction) -> tuple[int, int]:
    """Return what the runs of one script are compared by: the worst verdict counts most, then what may be used."""
    order = (Verdict.FITS, Verdict.UNKNOWN, Verdict.DOES_NOT_FIT)
    return order.index(prediction.verdict), prediction.interval_bytes[1]
