"""The result of `ullage predict`: whether the script fits, and how much memory it uses.

PyTorch's figures (allocated and reserved memory) are exact. The total use is a range, because only a real GPU knows the
exact sizes of its CUDA context and of some cuDNN workspaces.
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
"""The version of the prediction's JSON format. It increases when a field is removed or changes its meaning."""


class Verdict(StrEnum):
    """Whether a script fits on a GPU: yes, no, or uncertain (`UNKNOWN`)."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `ullage predict` for this result."""
        codes = {Verdict.FITS: ExitCode.YES, Verdict.DOES_NOT_FIT: ExitCode.NO, Verdict.UNKNOWN: ExitCode.UNKNOWN}
        return codes[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The memory peaks of an optimizer step. `complete` is False if the run ended during the step."""

    step: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    end_allocated_bytes: int
    oom: bool
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseUse:
    """The memory peaks of one phase of a run, such as loading or evaluation."""

    name: str
    first_step: int
    """The first training step of the phase. Without a step, it is the last step before the phase, or 0."""
    peak_allocated_bytes: int
    before_bytes: int
    """The bytes that were already allocated at the beginning of the phase."""
    peak_reserved_bytes: int
    file: str | None
    """The file of the user's source line that allocated the peak of the phase, or None if it is unknown."""
    line: int | None
    count: int
    """The number of times that the script ran this phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBand:
    """The first and the last time bin of a phase, such as evaluation, in the timeline."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUse:
    """The memory that one source line allocated for one role, such as parameters."""

    role: str
    file: str | None
    line: int | None
    function: str | None
    phase: str
    bytes: int
    blocks: int
    module: str = ""
    """The module that was running, with a star in place of each number. It is empty in a row about a source line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """Tensor values that the script read on the CPU at one source line, for example with `item()`."""

    file: str | None
    line: int | None
    op: str
    count: int
    bytes: int
    kind: str
    """The effect that the read values may have on the script: "shape" (the size of a tensor), "branch" (control flow),
    "number" (an integer), or "float" (no known effect).
    """
    certainty: str
    """The certainty of the values: "known" (as on a real GPU), "assumed" (correct if all numbers are finite), "alike"
    (the same on all ranks), "drawn" (random), or "unknown" (zero instead).
    """

    @property
    def may_decide(self) -> bool:
        """Whether the values that the script read may decide a tensor size or a branch."""
        return self.kind != "float"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesUse:
    """The tensor values that the script read on the CPU, and how ullage computed them."""

    mode: str
    """The mode in which ullage tracks tensor values: "on", "off" or "all"."""
    seed: int
    routing: str
    host_bytes: int
    """The peak of host memory that ullage used for tensor values, in bytes."""
    failures: dict[str, str]
    """The operators that ullage could not compute on the CPU, each with its error."""
    faults: dict[str, str] = field(default_factory=dict)
    """The errors of ullage itself, by operator or event. They made tensor values unknown."""
    routed: int = 0
    """The number of times that ullage itself chose the experts of a mixture-of-experts layer, as `--routing` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oom:
    """An out-of-memory error of PyTorch, with its source line and the memory in use."""

    text: str
    file: str | None
    line: int | None
    requested_bytes: int
    """The size of the failed allocation in bytes. `allocated_bytes` and `reserved_bytes` are from just before it."""
    allocated_bytes: int
    reserved_bytes: int
    roles: dict[str, int]
    lines: list[LineUse]
    limit_bytes: int | None = None
    """The script's own memory limit (`torch.cuda.set_per_process_memory_fraction`) if it caused the error, or None."""
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory in use for each module, and for each source line in library code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that grows from step to step, with its source line and the variable that holds it."""

    bytes_per_step: int
    file: str | None
    line: int | None
    holder: str | None = None
    """The path from a variable to the object that holds the growing memory, or None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The data for the charts on an HTML page. Sizes are in bytes, as rounded up by the allocator."""

    by_role: dict[str, list[int]]
    """The allocated bytes of each role, such as parameters, over time."""
    tree: list[tuple[str, str, str, int, int]]
    """The memory at the peak. Each row has a role, module, source line, size, and number of blocks."""
    segments: list[dict[str, Any]]
    """The allocator's segments at the memory peak. Each has an address, a size, and blocks (offset, bytes, role)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnUse:
    """The operations that ran in cuDNN and their workspace sizes in bytes.

    `problems` counts operations by the source of the size: "cudnn", "table" (measured sizes), "given" (by the user), or
    "unknown".
    """

    version: int
    """The version number of cuDNN, such as 91900 for 9.19.0, or 0 without cuDNN operations."""
    problems: dict[str, int]
    largest_workspace_bytes: int
    below_bytes: int
    """The bytes by which cuDNN workspaces may be smaller on a real GPU."""
    above_bytes: int
    """The bytes by which cuDNN workspaces may be larger on a real GPU."""
    benchmark_bytes: int
    """The additional bytes that cuDNN may use with `torch.backends.cudnn.benchmark`."""
    reasons: list[str]
    """The reasons why cuDNN itself gave no workspace sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The estimated peak of library memory that only a real GPU can report, in bytes."""

    kind: str
    """The kind of operation: `rnn`, `batch_norm`, `dropout`, `ctc`, `fft`, or `nccl` (buffers outside the reserved
    memory).
    """
    count: int
    guessed_bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The possible reserved memory if the driver returns other addresses for the allocator's segments, in bytes.

    Segment addresses matter up to torch 2.11: among free blocks of equal size, the allocator takes the one at the
    lowest address.
    """

    driver: str
    """The driver whose segment addresses ullage emulates: one of `ullage.gpu.placement.PLACEMENTS`."""
    ties: int
    """The number of times that the allocator chose among free blocks of equal size by address."""
    below_bytes: int
    """The bytes by which reserved memory may be lower than predicted, if the driver returns other segment addresses."""
    above_bytes: int
    """The bytes by which reserved memory may be higher than predicted, if the driver returns other segment
    addresses.
    """
    fits_somewhere: bool
    """Whether the run fits on the GPU in at least one of the replays with different segment addresses."""
    is_certain: bool
    """Whether a replay with the run's own addresses reproduced its reserved memory. If False, the other fields are
    unknown.
    """

    @property
    def decides_nothing(self) -> bool:
        """Whether the run reserves the same amount of memory with all compared placements of segments."""
        return self.is_certain and not self.below_bytes and not self.above_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideUse:
    """The peak of GPU memory that one library requested directly from the driver, in bytes."""

    library: str
    """The file name of the shared library, such as `libcufft.so.11`."""
    calls: int
    bytes: int
    """The bytes that the library had not freed at the end of the run."""
    peak_bytes: int
    managed_peak_bytes: int
    """The library's peak of CUDA managed memory in bytes. It counts as host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The GPU memory that libraries requested directly from the driver, in bytes."""

    uses: list[OutsideUse]
    peak_bytes: int
    """The peak of used GPU memory, minus PyTorch's peak of reserved memory and the CUDA context."""
    managed_on_card_bytes: int
    """The peak of CUDA managed memory that the script prefetched to the GPU, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The memory peaks of one run, if the same script was run several times."""

    verdict: Verdict
    peak_allocated_bytes: int
    peak_reserved_bytes: int

    @classmethod
    def of(cls, prediction: "Prediction", **more: Any) -> Self:
        """Create an object with the memory peaks of a prediction."""
        return cls(
            verdict=prediction.verdict,
            peak_allocated_bytes=prediction.peak_allocated_bytes,
            peak_reserved_bytes=prediction.peak_reserved_bytes,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPeaks(Peaks):
    """The memory peaks of a run with another random seed."""

    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeaks(Peaks):
    """The memory peaks of one rank of a distributed script."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPeaks(Peaks):
    """The memory peaks of one process of the predicted command."""

    name: str
    """The name of the process's program."""
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPeaks(Peaks):
    """The memory peaks of a script's first run or of its resumed run."""

    arguments: list[str]
    phases: list[PhaseUse]


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction(Answer):
    """The prediction for a script on a GPU. Fields that end in `_bytes` are in bytes."""

    described_in: ClassVar[str] = "ullage.predicting.prediction.description.describe"

    verdict: Verdict
    reason: str
    script: str
    arguments: list[str]
    gpu: str
    torch: str
    world_size: int | None
    """The number of ranks, or None without distributed training."""
    rank: int
    ranks: list[RankPeaks] = field(default_factory=list)
    """The memory peaks of all ranks, if all were run. Other fields are for the rank that uses the most memory."""
    total_memory_bytes: int
    context_bytes: int
    context_interval_bytes: tuple[int, int]
    """The smallest and the largest possible size of the CUDA context."""
    context_source: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    cached_bytes: int
    """The reserved bytes minus the allocated bytes, at the peak of allocated memory."""
    headroom_bytes: int
    """The GPU's memory that remains free at the peak of reserved memory."""
    cudnn: CudnnUse
    """The cuDNN operations of the run, and the accuracy of their workspace sizes."""
    guesses: list[Guess]
    """The estimated sizes of library memory. They are part of the memory peaks."""
    placement: Placement | None
    """The reserved memory with other segment addresses. It is None if addresses do not matter (from torch 2.12)."""
    outside: Outside
    """The memory that libraries requested directly from the driver."""
    interval_bytes: tuple[int, int]
    """The lowest and the highest number of bytes that the driver may report as used at the peak."""
    settled: bool
    growth: Growth | None
    """The growth of memory from step to step, or None if memory does not grow."""
    peak_step: int | None
    """The training step with the peak of allocated memory."""
    steps: list[Step]
    roles: dict[str, int]
    """The bytes of each role, such as parameters, at the peak. Their sum is `peak_allocated_bytes`."""
    role_peaks: dict[str, int]
    """The peak of each role, such as parameters, in requested bytes. These peaks may be at different times."""
    lines: list[LineUse]
    timeline: dict[str, list[int]]
    reads: list[HostRead]
    values: ValuesUse
    draws: list[DrawPeaks] = field(default_factory=list)
    """The memory peaks with several random seeds, if random values may affect the result.

    The rest of the prediction describes the seed with the highest peak.
    """
    oom: Oom | None
    oom_count: int
    """The number of out-of-memory errors, including errors that the script handled."""
    notes: list[str]
    """Notes about the accuracy of the prediction."""
    unwritten: dict[str, int]
    """The CUDA functions that the emulated GPU does not support, with the number of calls."""
    compiled_graphs: int
    """The number of graphs that torch.compile compiled."""
    eager: Peaks | None = None
    """The memory peaks without torch.compile, or None if ullage did not run the script without it."""
    changes_made: dict[str, int]
    """The number of times that each change in `Request.changes` took effect."""
    changes_refused: dict[str, str]
    """The requested changes that ullage could not make, each with the reason."""
    training: TrainingFacts | None = None
    """Facts about the training, or None if `Request.diagnose` is off. They are not part of the JSON."""
    picture: Picture | None
    """The data for the charts on an HTML page, or None if not requested. They are not part of the JSON."""
    snapshot_error: str | None
    """The reason why ullage could not write the memory snapshot, or None."""
    ended: str
    """The reason why the run ended: "steps" (enough steps), "ended" (by itself), "time" (time limit) or "oom"."""
    seconds: dict[str, float]
    processes: list[ProcessPeaks] = field(default_factory=list)
    """The memory peaks of all processes of a command. The rest of the prediction describes the process with the highest
    peak.
    """
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory at the peak by module and library line. It is filled if one line of the user's code, such as
    `trainer.train()`, leads to most of the memory.
    """
    phases: list[PhaseUse] = field(default_factory=list)
    """The memory peaks of each phase, such as loading, steps and evaluation."""
    bands: list[PhaseBand] = field(default_factory=list)
    """The position of each phase, such as evaluation, in the timeline. The list is empty if the run only loads and
    trains.
    """
    runs: list[RunPeaks] = field(default_factory=list)
    """The memory peaks of the first and the resumed run, if ullage ran both.

    The rest of the prediction describes the run that used more memory.
    """
    host: HostUse | None = None
    """The host memory that the run needs on one node, or None if it was not measured."""
    job_request: JobRequest | None = None
    """The lines of a cluster job script that request the predicted resources, or None if not requested."""
    epoch: EpochUse | None = None
    """The memory use of a whole epoch, or None unless `batches="heaviest"` requests it."""
    avoidable: list[Avoidable] = field(default_factory=list)
    """The parts of the peak memory that the script could save. The list is empty if the user did not request the
    search.
    """
    sent_bytes_per_step: int | None = None
    """The estimated bytes that this rank sends through NCCL per training step, or None without a step.

    The estimate assumes ring algorithms, although NCCL also uses trees and multicast.
    """
    recomputed_share: float | None = None
    """The estimated fraction of the forward pass that activation checkpointing computes again, weighted by parameters.
    It is None if no module was called.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as plain data for `json.dumps`."""
        data = {"schema": SCHEMA, **asdict(self), "verdict": self.verdict.value, "cached": self.cached_bytes}
        del data["picture"]
        del data["training"]
        for name in ("epoch", "avoidable"):
            if not data[name]:
                del data[name]
        del data["cached_bytes"]  # `cached` is a key like the roles, whose names have no unit
        return data


def fullness_of(prediction: Prediction) -> tuple[int, int]:
    """Return a sort key for predictions: scripts that fit come first, then lower memory use."""
    order = (Verdict.FITS, Verdict.UNKNOWN, Verdict.DOES_NOT_FIT)
    return order.index(prediction.verdict), prediction.interval_bytes[1]
