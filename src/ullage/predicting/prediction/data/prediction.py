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
"""The version of the JSON format of a prediction. It increases when a field is removed or changes its meaning."""


class Verdict(StrEnum):
    """The verdict on whether a script fits on a GPU: yes, no, or uncertain (`UNKNOWN`)."""

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
    """The memory peaks of one optimizer step. `complete` is False if the run ended during the step."""

    step: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    oom: bool
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """The memory peaks of one phase of a run, such as loading, evaluation or saving."""

    name: str
    first_step: int
    """The number of the training step with which the phase began. If the phase has no steps, the number of steps before
    the phase; 0 means before the first step.
    """
    peak_allocated_bytes: int
    before_bytes: int
    """The bytes that were already allocated when the phase began. If the script ran the phase several times, the figure
    is from the time with the highest peak.
    """
    peak_reserved_bytes: int
    file: str | None
    """The file of the user's source line whose allocation reached the phase's peak of allocated memory. None if no such
    line is known, or if the memory was allocated before the phase.
    """
    line: int | None
    count: int
    """The number of times that the script ran this phase, such as an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBand:
    """The place of a phase, such as evaluation, in the timeline: the phase's first and last time bin."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUse:
    """The bytes of one role, such as parameters, that one line of the user's code allocated and that are in use at one
    point in time.
    """

    role: str
    file: str | None
    line: int | None
    function: str | None
    phase: str
    bytes: int
    blocks: int
    module: str = ""
    """The name of the module that was running, with a star in place of each number. The name is empty if the row is
    about a line of the user's code.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """A group of values that the script read back from the GPU at one source line."""

    file: str | None
    line: int | None
    op: str
    count: int
    bytes: int
    kind: str
    """The effect of the values that the script read: "shape" (a tensor's size), "branch" (control flow), "number"
    (integer), or "float" (not known to affect a size or a branch).
    """
    certainty: str
    """The certainty of the values: "known" (as on a real GPU), "assumed" (correct if all numbers are finite), "alike"
    (other ranks have the same value), "drawn" (random, from a seed), or "unknown" (replaced by zero).
    """

    @property
    def may_decide(self) -> bool:
        """Whether a tensor size or a branch of the script may depend on the values that the script read back."""
        return self.kind != "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesUse:
    """A summary of the values that the script read back from the GPU, and of how ullage determined them."""

    mode: str
    """The mode in which ullage tracks tensor values: "on", "off" or "all"."""
    seed: int
    routing: str
    host_bytes: int
    """The peak of host memory that ullage used to track tensor values, in bytes."""
    failures: dict[str, str]
    """The operators that ullage could not compute on the host, each with its error. The values in their results are
    unknown.
    """
    routed: int = 0
    """The number of times that the option `routing` chose the experts of a mixture-of-experts layer, in place of the
    random scores.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """An out-of-memory error of PyTorch, the user's source line that raised it, and the memory that was in use at that
    time.
    """

    text: str
    file: str | None
    line: int | None
    requested_bytes: int
    """The size of the failed memory request in bytes. `allocated_bytes` and `reserved_bytes` are the memory just before
    this request.
    """
    allocated_bytes: int
    reserved_bytes: int
    roles: dict[str, int]
    lines: list[LineUse]
    limit_bytes: int | None = None
    """The limit that the script set for its own reserved memory (`torch.cuda.set_per_process_memory_fraction`), if the
    request exceeded that limit; None if the GPU was full.
    """
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory in use when memory ran out, for each module and each source line of a library (see
    `Prediction.library_lines`).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of memory from step to step: the bytes that each of the last steps left allocated, the source line that
    allocated most of them, and the variable that holds them.
    """

    bytes_per_step: int
    file: str | None
    line: int | None
    holder: str | None = None
    """The path from a variable to the object that holds the growing memory; None if it is not known. The module
    `ullage.owners` explains such paths.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data for the charts on an HTML page. Sizes are in bytes after the allocator's rounding."""

    by_role: dict[str, list[int]]
    """The allocated bytes of each role, such as parameters, at each point of the timeline."""
    tree: list[tuple[str, str, str, int, int]]
    """The memory in use at the memory peak, as rows of role, module, source line, bytes, and number of memory
    blocks.
    """
    segments: list[dict[str, Any]]
    """The allocator's segments at the memory peak. Each has its address, its size, and its blocks. A block is (offset,
    bytes, role).
    """


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
    """The number of bytes by which cuDNN workspaces on a real GPU may be smaller than ullage counted; 0 if cuDNN itself
    gave all sizes.
    """
    above_bytes: int
    """The number of bytes by which cuDNN workspaces on a real GPU may be larger than ullage counted."""
    benchmark_bytes: int
    """The additional workspace bytes of the cuDNN plan that a real GPU may choose with
    `torch.backends.cudnn.benchmark`.
    """
    reasons: list[str]
    """The reasons why ullage could not ask cuDNN for workspace sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The estimated size of memory that a library reports only on a real GPU. The size is in bytes, at the time when
    this memory is at its peak.
    """

    kind: str
    """The kind of operation: `rnn`, `batch_norm`, `dropout`, `ctc` or `fft`. The kind `nccl` stands for NCCL's buffers,
    which the peak of reserved memory does not include.
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
    """The driver whose choice of segment addresses ullage emulated: one of `ullage.gpu.placement.PLACEMENTS`."""
    ties: int
    """The number of times that several free blocks had the same size, so that the allocator chose one by its
    address.
    """
    below_bytes: int
    """The maximum number of bytes by which the run would reserve less if its segments had other addresses."""
    above_bytes: int
    """The maximum number of bytes by which the run would reserve more if its segments had other addresses."""
    fits_somewhere: bool
    """Whether the run fits into GPU memory with at least one of the compared ways to place segments."""
    is_certain: bool
    """Whether a replay of the run with the run's own segment addresses reserved as much memory as the run. If False,
    the other fields of this object are not known.
    """

    @property
    def decides_nothing(self) -> bool:
        """Whether all compared ways to place segments reserve the same amount of memory."""
        return self.is_certain and not self.below_bytes and not self.above_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideUse:
    """The peak of GPU memory that one library requested from the driver without PyTorch's allocator, in requested
    bytes.
    """

    library: str
    """The file name of the library's shared object, such as `libcufft.so.11`."""
    calls: int
    bytes: int
    """The bytes of driver memory that the library had not freed when the run ended."""
    peak_bytes: int
    managed_peak_bytes: int
    """The peak of the library's CUDA managed memory in bytes. Managed memory counts as host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The GPU memory that libraries requested from the driver without PyTorch's allocator, in bytes."""

    uses: list[OutsideUse]
    peak_bytes: int
    """The bytes by which the driver's peak of used GPU memory exceeds PyTorch's peak of reserved memory plus the CUDA
    context.
    """
    managed_on_card_bytes: int
    """The peak of CUDA managed memory that the script prefetched to the GPU, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The memory peaks of one of several runs of the same script."""

    verdict: Verdict
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    @classmethod
    def of(cls, prediction: "Prediction", **more: Any) -> Self:
        """Return the memory peaks of a prediction as an object of this class. Keyword arguments set the fields that a
        subclass adds.
        """
        return cls(
            verdict=prediction.verdict,
            peak_allocated_bytes=prediction.peak_allocated_bytes,
            peak_reserved_bytes=prediction.peak_reserved_bytes,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPeaks(Peaks):
    """The memory peaks of a run of the same script with another seed for random values."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeaks(Peaks):
    """The memory peaks of one rank of a distributed script."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPeaks(Peaks):
    """The memory peaks of one process that a predicted command started."""

    name: str
    """The name of the program that the predicted process runs."""
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeaks(Peaks):
    """The memory peaks of one of two runs of a script. One is the first run; the other resumes with additional
    arguments.
    """

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
    """The memory peaks of every rank, if ullage ran all ranks; otherwise empty. All other figures are for the rank that
    uses the most memory.
    """
    total_memory_bytes: int
    context_bytes: int
    context_interval_bytes: tuple[int, int]
    """The smallest and the largest possible size of the CUDA context."""
    context_source: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    cached_bytes: int
    """The reserved bytes minus the allocated bytes, at the time of the peak of allocated memory."""
    headroom_bytes: int
    """The GPU's total memory, minus the peak of reserved memory, the CUDA context, and memory taken outside PyTorch's
    allocator.
    """
    cudnn: CudnnUse
    """The cuDNN operators of the run, and how exactly ullage knows their workspace sizes. The range `interval_bytes`
    takes this uncertainty into account.
    """
    guesses: list[Guess]
    """The memory sizes that ullage estimated. They are part of the memory peaks. The range `interval_bytes` takes the
    possible error of each estimate into account.
    """
    placement: Placement | None
    """The reserved memory that the run would have if its segments had other addresses. None if addresses do not matter
    (from torch 2.12 on), or if the run allocated nothing.
    """
    outside: Outside
    """The memory that libraries took outside PyTorch's allocator. Both ends of the range `interval_bytes` include this
    memory.
    """
    interval_bytes: tuple[int, int]
    """The lowest and the highest number of bytes that the driver may report as used GPU memory at the peak."""
    settled: bool
    growth: Growth | None
    """The growth of memory from one training step to the next; None if memory does not grow."""
    peak_step: int | None
    """The number of the training step with the peak of allocated memory."""
    steps: list[Step]
    roles: dict[str, int]
    """The requested bytes of each role at the peak of allocated memory, and the bytes that the allocator's rounding
    adds. Their sum is `peak_allocated_bytes`.
    """
    role_peaks: dict[str, int]
    """The peak of each role, such as parameters, in requested bytes. The roles may reach their peaks at different
    times.
    """
    lines: list[LineUse]
    timeline: dict[str, list[int]]
    reads: list[HostRead]
    values: ValuesUse
    draws: list[DrawPeaks] = field(default_factory=list)
    """The memory peaks of the runs with several seeds, if random or unknown values may have affected the result;
    otherwise empty. The verdict and `interval_bytes` are for all seeds; all other figures are for the seed that used
    the most memory.
    """
    oom: Oom | None
    oom_count: int
    """The number of out-of-memory errors of the run, including errors that the script handled."""
    notes: list[str]
    """The notes on how far the user can trust the figures of the prediction."""
    unwritten: dict[str, int]
    """The CUDA functions that the script called although the emulated GPU does not support them, with the number of
    calls. Each call returned the error "not supported".
    """
    compiled_graphs: int
    """The number of graphs that torch.compile compiled during the run."""
    eager: Peaks | None = None
    """The memory peaks of the same script with torch.compile switched off; None if ullage did not run it in this
    way.
    """
    changes_made: dict[str, int]
    """The number of times that each change in `Request.changes` took effect. A change that never took effect is left
    out.
    """
    changes_refused: dict[str, str]
    """The requested changes that ullage could not make, each with the reason."""
    training: TrainingFacts | None = None
    """The facts about how the script trains, if `Request.diagnose` requested them; otherwise None. The JSON does not
    contain them.
    """
    picture: Picture | None
    """The data for the charts on an HTML page, if the user requested a page; otherwise None. The JSON does not
    contain it.
    """
    snapshot_error: str | None
    """The reason why ullage could not write the memory snapshot; None if it was written or not requested."""
    ended: str
    """The reason why the run ended: "steps" (enough steps), "ended" (the script ended), "time" (the time limit) or
    "oom".
    """
    seconds: dict[str, float]
    processes: list[ProcessPeaks] = field(default_factory=list)
    """The processes that used the GPU, if a command started several of them. All other figures are for the process that
    used the most memory.
    """
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory at the peak of allocated memory, for each module and each source line of a library. Filled only if one
    line of the user's code, such as `trainer.train()`, leads to most of that memory through a library.
    """
    phases: list[PhaseUse] = field(default_factory=list)
    """The memory peaks of each phase of the run, such as loading, steps and evaluation."""
    bands: list[PhaseBand] = field(default_factory=list)
    """The position of each phase in the timeline; empty if the run has no phases other than loading and steps."""
    runs: list[RunPeaks] = field(default_factory=list)
    """The memory peaks of the script's first run and of its resumed run, if ullage ran the script twice; otherwise
    empty. All other figures are for the run that used more memory.
    """
    host: HostUse | None = None
    """The host memory that the run needs on one node; None if the script's process could not measure it."""
    job_request: JobRequest | None = None
    """The lines of a cluster job script that request the predicted resources; None if the user did not request them."""
    epoch: EpochUse | None = None
    """The memory use of an epoch with its batches in their real order, if `batches="heaviest"` requests it; otherwise
    None.
    """
    avoidable: list[Avoidable] = field(default_factory=list)
    """The memory that the script could avoid at its peak of allocated memory; empty if the user did not request a
    search for it.
    """
    sent_bytes_per_step: int | None = None
    """The estimated bytes that this rank sends to other ranks through NCCL per training step; None if no step ended.
    The estimate assumes ring algorithms, although NCCL also chooses trees and multicast.
    """
    recomputed_share: float | None = None
    """The estimated fraction of the forward pass that the backward pass computed again (activation checkpointing).
    Modules with more parameters have more weight. None if no module was called.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as plain data for `json.dumps`, with the version of the JSON format as the first
        key.
        """
        data = {"schema": SCHEMA, **asdict(self), "verdict": self.verdict.value, "cached": self.cached_bytes}
        del data["picture"]
        del data["training"]
        for name in ("epoch", "avoidable"):
            if not data[name]:
                del data[name]
        del data["cached_bytes"]  # `cached` is a key like the roles, whose names have no unit
        return data


def fullness_of(prediction: Prediction) -> tuple[int, int]:
    """Return a sort key for the predictions of one script. The best verdict is first. Equal verdicts are in ascending
    order of the highest possible memory use.
    """
    order = (Verdict.FITS, Verdict.UNKNOWN, Verdict.DOES_NOT_FIT)
    return order.index(prediction.verdict), prediction.interval_bytes[1]
