"""The measured result of a script's run. The script's process makes the result, and the parent process reads it. This
module does not import torch. Sizes are in bytes.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from ullage.base.block_role import Role
from ullage.gpu.emulator.library import CudnnPlans, GuessFigures, OutsideFigures
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.epoch.use import EpochUse
from ullage.predicting.prediction.data.avoidable_memory import Avoidable
from ullage.predicting.prediction.data.plain_data import PlainData
from ullage.predicting.prediction.data.prediction import (
    Growth,
    HostRead,
    LineUse,
    PhaseBand,
    PhaseUse,
    Picture,
    Step,
    ValuesUse,
)
from ullage.predicting.prediction.host.memory import HostFigures

Ending = Literal["steps", "time", "ended", "oom", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The way in which a script ended: after enough steps, at the time limit, by itself, out of memory, or with another
    error.
    """

    kind: Ending
    type: str = ""
    """The class name of the error."""
    text: str = ""
    traceback: str = ""
    exit_code: int | None = None
    """The exit code with which the script itself ended, for example through `sys.exit`; None without such an exit
    code.
    """
    file: str | None = None
    """The file of the user's source line that raised the error."""
    line: int | None = None
    is_of_system: bool = False
    """Whether the script failed because the operating system refused a resource such as a file, a lock or a port. If
    so, no value from the GPU can be the cause.
    """
    is_of_child: bool = False
    """Whether a process that the script started has failed. If so, the script's own error does not contain the
    reason.
    """
    hint: str = ""
    """A sentence that names the ullage option that generates missing weights or data, if the script failed without
    these.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The memory in use at one point in time: the bytes of each role, and the source lines that allocated most of
    it.
    """

    roles: dict[str, int]
    lines: list[LineUse]
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory at this point in time, for each module and each source line of a library (see
    `Prediction.library_lines`).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OomLevels:
    """The size of the memory request that failed when memory ran out, and the device's allocated and reserved bytes
    just before it.
    """

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOom:
    """The state of the GPU at an out-of-memory error."""

    levels: OomLevels
    free_bytes: int
    """The memory that the CUDA driver had free at the error, in bytes."""
    limit_bytes: int | None
    """The limit that the script set for the reserved memory of its process (per_process_memory_fraction); None if it
    set no limit.
    """
    alive: Alive
    phase: str | None = None
    """The phase of the run in which memory ran out; None during loading and steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The peak of reserved memory, in bytes, that the run would have if its segments had other addresses."""

    ties: int
    """The number of times that several free blocks had the same size, so that the allocator chose one by its
    address.
    """
    low_bytes: int
    high_bytes: int
    fits_somewhere: bool
    """Whether the run fits into GPU memory with at least one of the compared ways to place segments."""
    is_certain: bool
    """Whether a replay of the run with the run's own segment addresses reserved as much memory as the run. If False,
    the other fields of this object are not known.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOutside:
    """The GPU memory that libraries requested from the driver without PyTorch's allocator."""

    by_library: dict[str, OutsideFigures]
    managed_on_card_bytes: int
    peak_used_bytes: int
    """The driver's peak of used GPU memory in bytes. It includes PyTorch's memory and the CUDA context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The memory use of the GPU that reserved the most memory. The default values are for a run that allocated
    nothing.
    """

    device: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    reserved_at_peak_bytes: int = 0
    """The reserved bytes at the time of the peak of allocated memory."""
    peak: Alive = field(default_factory=lambda: Alive(roles=dict.fromkeys(Role, 0), lines=[]))
    role_peaks: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    settled: bool = False
    growth: Growth | None = None
    timeline: dict[str, list[int]] = field(default_factory=dict)
    history_is_partial: bool = False
    """Whether the oldest entries of PyTorch's allocation history were lost."""
    cudnn_version: int = 0
    cudnn: CudnnPlans = field(default_factory=lambda: CudnnPlans(by_source={}, reasons=()))
    guesses: dict[str, GuessFigures] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    """The reserved memory that the run would have if its segments had other addresses; None if addresses do not
    matter.
    """
    picture: Picture | None = None
    at_oom: AtOom | None = None
    """The state of the GPU at the last out-of-memory error."""
    phases: list[PhaseUse] = field(default_factory=list)
    bands: list[PhaseBand] = field(default_factory=list)
    avoidable: list[Avoidable] = field(default_factory=list)
    """The memory that the script could avoid; empty if the user did not request the search for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(PlainData):
    """The way in which a run ended, and its memory use. The default values are for a script that did not import
    torch.
    """

    outcome: Outcome
    torch: str
    """The version of the installed torch."""
    imported: bool
    """Whether the script imported torch."""
    import_seconds: float
    step_seconds: list[float]
    notes: list[str]
    changes_made: dict[str, int] = field(default_factory=dict)
    """The number of times that each change in `Request.changes` took effect. A change that never took effect is left
    out.
    """
    changes_refused: dict[str, str] = field(default_factory=dict)
    """The requested changes that ullage could not make, each with the reason."""
    training: TrainingFacts | None = None
    """Facts about how the script trains, if `Request.diagnose` requested them; otherwise None."""
    snapshot_error: str | None = None
    oom_count: int = 0
    reads: list[HostRead] = field(default_factory=list)
    values: ValuesUse = field(
        default_factory=lambda: ValuesUse(mode="off", seed=0, routing="drawn", host_bytes=0, failures={})
    )
    missed_values: bool = False
    """Whether the script read back a value after ullage had stopped tracking tensor values. ullage stops if the first
    steps read no value back.
    """
    largest_not_asked: int = 0
    """The size of the largest group of ranks for which ullage used this rank's own values in place of the other ranks'
    values.
    """
    unwritten: dict[str, int] = field(default_factory=dict)
    outside: TakenOutside = TakenOutside(by_library={}, managed_on_card_bytes=0, peak_used_bytes=0)
    lost_entries: int = 0
    compiled_graphs: int = 0
    architectures: list[str] = field(default_factory=list)
    """The GPU architectures for which the installed build of torch contains code."""
    world_size: int | None = None
    """The number of ranks of the distributed run, as the script's process reads it; None if the run has only one
    process.
    """
    rank: int = 0
    host: HostFigures | None = None
    """The host memory of the script's process. None if the emulated GPU's memory is part of the host memory, so that
    ullage cannot measure host memory separately.
    """
    measured: Measured | None = None
    """The memory use of the GPU; None if the script allocated nothing on a GPU."""
    epoch: EpochUse | None = None
    """The memory use of an epoch; None if the user did not request it, or if the training did not use a DataLoader."""
    sent_bytes_per_step: int | None = None
    """The bytes that this rank sent to other ranks per training step; None if no step ended."""
    recomputed_share: float | None = None
    """The fraction of the forward pass that the backward pass computed again; None if no module was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport(PlainData):
    """The report that a process sends while it exits, before its exit status is known."""

    result: RunResult
    """The result of the run. If the Python interpreter recorded an unhandled error, this error is the outcome."""
    outcome_of_success: Outcome
    """The outcome of the run if the process ends with exit status 0. This status means that the script handled the
    recorded error.
    """
    did_nothing: bool
    """Whether the process did not use the GPU."""

    def result_with(self, status: int | None) -> RunResult | None:
        """Return the result of a process that ended with the given exit status; None if the process did nothing and did
        not fail.

        Args:
            status: None if a signal ended the process, such as an interrupt that is not handled.
        """
        outcome = self.result.outcome
        if status == 0:
            outcome = self.outcome_of_success
        elif status is not None and outcome.kind != "oom" and (outcome.kind == "ended" or status != 1):
            outcome = Outcome(kind="error", type="SystemExit", exit_code=status)
        if self.did_nothing and outcome.kind == "ended":
            return None
        return replace(self.result, outcome=outcome)
