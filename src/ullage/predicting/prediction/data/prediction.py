"""The result of `ullage predict`: a verdict, and the figures from which it is made.

The verdict is made from a range: the lowest and the highest use of memory that the driver may report. It is a range
because only a real GPU knows the sizes of its CUDA context and of some cuDNN workspaces. PyTorch's own figures
(allocated, reserved) are exact.
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
"""The version of the JSON format; it increases when a field is removed or changes its meaning."""


class Verdict(StrEnum):
    """Whether a script fits on a GPU: yes, no, or uncertain (`UNKNOWN`)."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code with which `ullage predict` reports this verdict."""
        codes = {Verdict.FITS: ExitCode.YES, Verdict.DOES_NOT_FIT: ExitCode.NO, Verdict.UNKNOWN: ExitCode.UNKNOWN}
        return codes[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The memory peaks of one optimizer step; `complete` is False if the run ended during the step."""

    step: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    oom: bool
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """The memory peaks of one phase of a run: loading, a step, evaluation, saving, resuming, generate."""

    name: str
    first_step: int
    """The number of the step with which the phase began. For a phase without steps, the number of steps before it; 0
    means before the first step.
    """
    peak_allocated_bytes: int
    before_bytes: int
    """The number of bytes that were allocated already when the part of the phase with the peak began."""
    peak_reserved_bytes: int
    file: str | None
    """The file of the user's source line whose allocation reached the allocated peak; None if there is none, or if the
    memory was allocated before the phase.
    """
    line: int | None
    count: int
    """The number of times that the phase was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBand:
    """The part of the timeline in which a phase was run, given by its first and its last time bin."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUse:
    """The memory in use at one point in time that one source line of the user allocated for one role."""

    role: str
    file: str | None
    line: int | None
    function: str | None
    phase: str
    bytes: int
    blocks: int
    module: str = ""
    """The name of the module that was running, with a star in place of each number; empty if the row is for a line of
    the user's code.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """Values that the script read back from the GPU at one source line."""

    file: str | None
    line: int | None
    op: str
    count: int
    bytes: int
    kind: str
    """The possible effect of the values: "shape" (a tensor's size), "branch" (control flow), "number" (an integer), or
    "float", which is not known to affect a size or a branch.
    """
    certainty: str
    """The certainty of the values: "known" (as on a real GPU), "assumed" (correct if all numbers are finite), "alike"
    (other ranks have the same value), "drawn" (random, from a seed), or "unknown" (replaced by zero).
    """

    @property
    def may_decide(self) -> bool:
        """Whether a tensor size or a branch may depend on the values."""
        return self.kind != "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesUse:
    """A summary of how values were tracked and answered that the script read back from the GPU."""

    mode: str
    """The mode of tracking values: "on", "off" or "all"."""
    seed: int
    routing: str
    host_bytes: int
    """The peak of host memory that was used to track values, in bytes."""
    failures: dict[str, str]
    """The operations that could not be computed on the host, with the error; the values of their results are
    unknown.
    """
    routed: int = 0
    """The number of times that experts of a mixture-of-experts layer were chosen by `routing` and not by the random
    scores.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """PyTorch's out-of-memory error, the user's source line that raised it, and the memory that was in use at that
    time.
    """

    text: str
    file: str | None
    line: int | None
    requested_bytes: int
    """The size of the failed request in bytes; `allocated_bytes` and `reserved_bytes` are the amounts just before
    it.
    """
    allocated_bytes: int
    reserved_bytes: int
    roles: dict[str, int]
    lines: list[LineUse]
    limit_bytes: int | None = None
    """The limit that the script set for its own reserved memory (`torch.cuda.set_per_process_memory_fraction`), if that
    limit refused the request; None if the GPU was full.
    """
    library_lines: list[LineUse] = field(default_factory=list)
    """The same as `Prediction.library_lines`, for the memory in use when memory ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of memory from step to step: the bytes that each of the last steps left allocated, the source line that
    allocated most of them, and the variable that holds them.
    """

    bytes_per_step: int
    file: str | None
    line: int | None
    holder: str | None = None
    """The path from a variable to the object that holds the memory, as in `ullage.owners`; None if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data of the charts on an HTML page; sizes in bytes after rounding."""

    by_role: dict[str, list[int]]
    """Allocated bytes at each point of the timeline, by role."""
    tree: list[tuple[str, str, str, int, int]]
    """The memory at the peak, as rows: role, module, source line, bytes, number of blocks."""
    segments: list[dict[str, Any]]
    """The allocator's segments at the peak: address, size, and blocks as (offset, bytes, role)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnUse:
    """The operations (convolutions, attention) that ran in cuDNN, and the sources of their workspace sizes; in bytes.

    `problems` counts operations by source: "cudnn": cuDNN's own answer; "table": measured on similar operations;
    "given": by the user; "unknown": counted as zero.
    """

    version: int
    """The version of cuDNN as a number, such as 91900 for 9.19.0; 0 if no operation ran in cuDNN."""
    problems: dict[str, int]
    largest_workspace_bytes: int
    below_bytes: int
    """The number of bytes by which a real GPU may use less than was counted; 0 if cuDNN itself gave all sizes."""
    above_bytes: int
    """The number of bytes by which a real GPU may use more than was counted."""
    benchmark_bytes: int
    """The additional workspace bytes of the plan that a real GPU may choose with `torch.backends.cudnn.benchmark`."""
    reasons: list[str]
    """The reasons why cuDNN could not be asked for workspace sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Estimated sizes of memory that a library reports only with a real GPU; in bytes, at their peak."""

    kind: str
    """The kind of operation: `rnn`, `batch_norm`, `dropout`, `ctc` or `fft`; or `nccl`, for the buffers of NCCL, which
    are used in addition to all counted memory.
    """
    count: int
    guessed_bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The reserved memory for other ways in which a driver may place segments in the address space; sizes in bytes.

    Up to torch 2.11 the allocator chooses the block with the lower address among equally large free blocks, so that
    addresses matter.
    """

    driver: str
    """The driver whose placement of segments was emulated: one of `ullage.gpu.placement.PLACEMENTS`."""
    ties: int
    """The number of times that the addresses decided which of several equally large free blocks was used."""
    below_bytes: int
    """The maximum number of bytes by which another placement would reserve less."""
    above_bytes: int
    """The maximum number of bytes by which another placement would reserve more."""
    fits_somewhere: bool
    """Whether there is a placement with which memory does not run out."""
    is_certain: bool
    """Whether a replay with the run's own placement reserved as much as the run; if not, the other figures are not
    known.
    """

    @property
    def decides_nothing(self) -> bool:
        """Whether all compared placements reserve the same amount of memory."""
        return self.is_certain and not self.below_bytes and not self.above_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideUse:
    """The peak of memory that one library requested from the driver without PyTorch's allocator, in requested bytes."""

    library: str
    """The file name of the library's shared object."""
    calls: int
    bytes: int
    """The number of bytes that the library had not freed when the run ended."""
    peak_bytes: int
    managed_peak_bytes: int
    """The peak of managed memory, which is in host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The memory that libraries took outside PyTorch's allocator, in bytes."""

    uses: list[OutsideUse]
    peak_bytes: int
    """The number of bytes by which the peak of used GPU memory exceeds PyTorch's peak of reserved memory plus the
    context.
    """
    managed_on_card_bytes: int
    """The peak of managed memory that was prefetched to the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The memory peaks of a further run of the script."""

    verdict: Verdict
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    @classmethod
    def of(cls, prediction: "Prediction", **more: Any) -> Self:
        """Return the peaks of a prediction, with the additional fields of the class as keywords."""
        return cls(
            verdict=prediction.verdict,
            peak_allocated_bytes=prediction.peak_allocated_bytes,
            peak_reserved_bytes=prediction.peak_reserved_bytes,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPeaks(Peaks):
    """The memory peaks of a run with another seed for the random values."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeaks(Peaks):
    """The memory peaks of one rank of a distributed script."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPeaks(Peaks):
    """The memory peaks of one process of a command."""

    name: str
    """The name of the program that the process runs."""
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeaks(Peaks):
    """The memory peaks of the first run of a script, or of its second run, which resumes with additional arguments."""

    arguments: list[str]
    phases: list[PhaseUse]


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Answer):
    """The prediction for one script on one GPU. All fields whose names end in `_bytes` are in bytes."""

    described_in: ClassVar[str] = "ullage.predicting.prediction.description.describe"

    verdict: Verdict
    reason: str
    script: str
    arguments: list[str]
    gpu: str
    torch: str
    world_size: int | None
    """The number of ranks of the distributed run; None if the script runs as a single process."""
    rank: int
    ranks: list[RankPeaks] = field(default_factory=list)
    """The peaks of every rank if all ranks were run, in which case this prediction is for the rank that uses most;
    otherwise empty.
    """
    total_memory_bytes: int
    context_bytes: int
    context_interval_bytes: tuple[int, int]
    """The smallest and the largest possible size of the CUDA context."""
    context_source: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    cached_bytes: int
    """The reserved bytes minus the allocated bytes at the time of the allocated peak."""
    headroom_bytes: int
    """The total memory minus the reserved peak, the context, and memory taken outside PyTorch's allocator."""
    cudnn: CudnnUse
    """The use of cuDNN, and how exactly its workspaces are known; counted in both ends of `interval_bytes`."""
    guesses: list[Guess]
    """The estimated sizes, which are counted in the peaks; their bounds are counted in both ends of
    `interval_bytes`.
    """
    placement: Placement | None
    """The effect of other placements of segments; None if addresses do not matter (from torch 2.12 on), or if no memory
    was allocated.
    """
    outside: Outside
    """The memory taken outside PyTorch's allocator; counted in both ends of `interval_bytes`."""
    interval_bytes: tuple[int, int]
    """The range of used memory at the peak: the lowest and the highest amount that the driver may report."""
    settled: bool
    growth: Growth | None
    """The growth of memory from step to step; None if memory does not grow."""
    peak_step: int | None
    """The number of the step with the allocated peak."""
    steps: list[Step]
    roles: dict[str, int]
    """The requested bytes at the allocated peak by role, and the bytes added by rounding; their sum is
    `peak_allocated_bytes`.
    """
    role_peaks: dict[str, int]
    """The separate peak of each role, in requested bytes."""
    lines: list[LineUse]
    timeline: dict[str, list[int]]
    reads: list[HostRead]
    values: ValuesUse
    draws: list[DrawPeaks] = field(default_factory=list)
    """The peaks of every seed, if random or unknown values may have affected the result; otherwise empty. The verdict
    and `interval_bytes` are for all seeds together, and all other figures are for the seed whose run used most.
    """
    oom: Oom | None
    oom_count: int
    """The number of out-of-memory errors, including errors that the script handled."""
    notes: list[str]
    """Remarks on how far the numbers can be trusted."""
    unwritten: dict[str, int]
    """The CUDA functions that the script called and the emulation does not support, with the number of calls. Each call
    returned the error "not supported".
    """
    compiled_graphs: int
    """The number of graphs that torch.compile compiled."""
    eager: Peaks | None = None
    """The peaks of the same script with torch.compile switched off; None if it was not run in this way."""
    changes_made: dict[str, int]
    """Changes in `Request.changes` that had an effect, with the number of times."""
    changes_refused: dict[str, str]
    """Changes that could not be made, with the reason."""
    training: TrainingFacts | None = None
    """Facts about how the run trains, if requested with `Request.diagnose`; otherwise None. Not in the JSON."""
    picture: Picture | None
    """The data of the charts if they were requested; otherwise None. Not in the JSON."""
    snapshot_error: str | None
    """The reason why the snapshot could not be written; None if it was written, or was not requested."""
    ended: str
    """Why the run ended: "steps" (enough steps), "ended" (the script ended), "time" (the time limit) or "oom"."""
    seconds: dict[str, float]
    processes: list[ProcessPeaks] = field(default_factory=list)
    """The processes of a command that used the GPU, if there are several; all other figures are for the process that
    used most.
    """
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory at the allocated peak by module and by source line of the library, if one line of the user's code
    leads to most of it through a library (`trainer.train()`); otherwise empty.
    """
    phases: list[PhaseUse] = field(default_factory=list)
    """The peaks of each phase of the run, such as loading, steps and evaluation."""
    bands: list[PhaseBand] = field(default_factory=list)
    """The position of each phase in the timeline, if there are other phases than loading and steps; otherwise empty."""
    runs: list[RunPeaks] = field(default_factory=list)
    """The peaks of the first and of the resumed run, if the script was run twice; otherwise empty. All other figures
    are for the run that used more.
    """
    host: HostUse | None = None
    """The host memory of one node that the run takes; None if the script's process could not measure it."""
    job_request: JobRequest | None = None
    """The lines of a job script that request the predicted resources; None if they were not requested."""
    epoch: EpochUse | None = None
    """The memory use over an epoch with its batches in their real order, with `batches="heaviest"`; otherwise None."""
    avoidable: list[Avoidable] = field(default_factory=list)
    """The memory at the allocated peak that the script could avoid, if the search for it was requested; otherwise
    empty.
    """
    sent_bytes_per_step: int | None = None
    """The bytes that this rank sends to other ranks through NCCL per step, for ring algorithms: an estimate, because
    NCCL chooses between rings, trees and multicast. None if no step ended.
    """
    recomputed_share: float | None = None
    """The fraction of the forward pass that the backward pass computed again (activation checkpointing): an estimate in
    which each module counts by the size of its parameters. None if no module was called.
    """

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with the version of the JSON format as the first key."""
        data = {"schema": SCHEMA, **asdict(self), "verdict": self.verdict.value, "cached": self.cached_bytes}
        del data["picture"]
        del data["training"]
        for name in ("epoch", "avoidable"):
            if not data[name]:
                del data[name]
        del data["cached_bytes"]  # `cached` is a key like the roles, whose names have no unit
        return data


def fullness_of(prediction: Prediction) -> tuple[int, int]:
    """Return a sort key that orders predictions of one script: by verdict, the worst last, then by the highest possible
    use.
    """
    order = (Verdict.FITS, Verdict.UNKNOWN, Verdict.DOES_NOT_FIT)
    return order.index(prediction.verdict), prediction.interval_bytes[1]
