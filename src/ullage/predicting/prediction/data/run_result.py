"""The measured result of a script's run. The script's process sends it to the parent process.

Sizes are in bytes.
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
    """The reason why a script ended, such as enough steps, a time limit or an error."""

    kind: Ending
    type: str = ""
    """The class name of the script's error."""
    text: str = ""
    traceback: str = ""
    exit_code: int | None = None
    """The exit code that the script set, for example with `sys.exit`, or None."""
    file: str | None = None
    """The file of the user's source line that raised the error."""
    line: int | None = None
    is_of_system: bool = False
    """Whether the script failed because of a file, a lock or a port, and not because of a value from the GPU."""
    is_of_child: bool = False
    """Whether the script failed because a process that it started failed."""
    hint: str = ""
    """A sentence with the ullage option that generates missing weights or data, if they caused the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The memory in use at one time, by role and by source line."""

    roles: dict[str, int]
    lines: list[LineUse]
    library_lines: list[LineUse] = field(default_factory=list)
    """The memory in use for each module, and for each source line in library code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomLevels:
    """The size of a failed allocation, and the allocated and reserved bytes just before it."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOom:
    """The state of the GPU at an out-of-memory error."""

    levels: OomLevels
    free_bytes: int
    """The bytes that the driver had free at the error."""
    limit_bytes: int | None
    """The script's limit for reserved memory (`torch.cuda.set_per_process_memory_fraction`), or None without a
    limit.
    """
    alive: Alive
    phase: str | None = None
    """The phase in which memory ran out, such as evaluation. It is None during loading and steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The peak of reserved memory, in bytes, if segments had other addresses."""

    ties: int
    """The number of times that the allocator chose among free blocks of equal size by address."""
    low_bytes: int
    high_bytes: int
    fits_somewhere: bool
    """Whether the run fits on the GPU in at least one of the replays with different segment addresses."""
    is_certain: bool
    """Whether a replay with the run's own addresses reproduced its reserved memory. If False, the other fields are
    unknown.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOutside:
    """The GPU memory that libraries requested directly from the driver."""

    by_library: dict[str, OutsideFigures]
    managed_on_card_bytes: int
    peak_used_bytes: int
    """The peak of used GPU memory in bytes, including PyTorch's memory and the CUDA context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The memory use of the GPU with the most reserved memory."""

    device: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    reserved_at_peak_bytes: int = 0
    """The reserved bytes at the peak of allocated memory."""
    peak: Alive = field(default_factory=lambda: Alive(roles=dict.fromkeys(Role, 0), lines=[]))
    role_peaks: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    settled: bool = False
    growth: Growth | None = None
    timeline: dict[str, list[int]] = field(default_factory=dict)
    history_is_partial: bool = False
    """Whether PyTorch's allocation history lost its oldest entries."""
    cudnn_version: int = 0
    cudnn: CudnnPlans = field(default_factory=lambda: CudnnPlans(by_source={}, reasons=()))
    guesses: dict[str, GuessFigures] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    """The reserved memory with other segment addresses, or None if addresses do not matter."""
    picture: Picture | None = None
    at_oom: AtOom | None = None
    """The state of the GPU at the last out-of-memory error."""
    phases: list[PhaseUse] = field(default_factory=list)
    bands: list[PhaseBand] = field(default_factory=list)
    avoidable: list[Avoidable] = field(default_factory=list)
    """The memory that the script could avoid. It is empty if the user did not request the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(PlainData):
    """The memory use of a run, and the reason why it ended."""

    outcome: Outcome
    torch: str
    """The version of the installed torch."""
    imported: bool
    """Whether the script imported torch."""
    import_seconds: float
    step_seconds: list[float]
    notes: list[str]
    changes_made: dict[str, int] = field(default_factory=dict)
    """The number of times that each change in `Request.changes` took effect."""
    changes_refused: dict[str, str] = field(default_factory=dict)
    """The requested changes that ullage could not make, each with the reason."""
    training: TrainingFacts | None = None
    """Facts about the training, or None if `Request.diagnose` is off."""
    snapshot_error: str | None = None
    oom_count: int = 0
    reads: list[HostRead] = field(default_factory=list)
    values: ValuesUse = field(
        default_factory=lambda: ValuesUse(mode="off", seed=0, routing="drawn", host_bytes=0, failures={})
    )
    missed_values: bool = False
    """Whether the script read a tensor value on the CPU after ullage had stopped tracking values."""
    largest_not_asked: int = 0
    """The number of ranks in the largest process group whose messages ullage did not exchange.

    In such a group, this rank's own values replaced the values of the other ranks.
    """
    unwritten: dict[str, int] = field(default_factory=dict)
    outside: TakenOutside = TakenOutside(by_library={}, managed_on_card_bytes=0, peak_used_bytes=0)
    lost_entries: int = 0
    compiled_graphs: int = 0
    architectures: list[str] = field(default_factory=list)
    """The GPU architectures that the installed build of torch supports."""
    world_size: int | None = None
    """The number of ranks that the script sees, or None if there is only one process."""
    rank: int = 0
    host: HostFigures | None = None
    """The host memory of the script's process, or None if it was not measured.

    It cannot be measured if the emulated GPU's memory is part of it.
    """
    measured: Measured | None = None
    """The memory use of the GPU, or None if the script allocated nothing on a GPU."""
    epoch: EpochUse | None = None
    """The memory use of a whole epoch, or None without a request for it or without a DataLoader."""
    sent_bytes_per_step: int | None = None
    """The bytes that this rank sent to other ranks per training step, or None without a step."""
    recomputed_share: float | None = None
    """The fraction of the forward pass that activation checkpointing computed again. It is None if no module was
    called.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport(PlainData):
    """The report of a process that is about to exit. Its exit status is not known yet."""

    result: RunResult
    """The result of the run, with the unhandled error if there was one."""
    outcome_of_success: Outcome
    """The outcome of the run if the exit status is 0, which means that the script handled the error."""
    did_nothing: bool
    """Whether the process did not use the GPU."""

    def result_with(self, status: int | None) -> RunResult | None:
        """Return the result of the process, or None if the process did not use the GPU and did not fail.

        Args:
            status: the exit status of the process, or None if a signal ended it.
        """
        outcome = self.result.outcome
        if status == 0:
            outcome = self.outcome_of_success
        elif status is not None and outcome.kind != "oom" and (outcome.kind == "ended" or status != 1):
            outcome = Outcome(kind="error", type="SystemExit", exit_code=status)
        if self.did_nothing and outcome.kind == "ended":
            return None
        return replace(self.result, outcome=outcome)
