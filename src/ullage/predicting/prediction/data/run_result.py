"""The measured result of a script's run: made in the script's process and read by the parent. It does not import torch.

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
    """How a script ended: after enough steps, after the time limit, by itself, out of memory, or with another error."""

    kind: Ending
    type: str = ""
    """The class name of the error."""
    text: str = ""
    traceback: str = ""
    exit_code: int | None = None
    """The exit code with which the script ended itself."""
    file: str | None = None
    """The file of the user's source line that raised the error."""
    line: int | None = None
    is_of_system: bool = False
    """Whether the operating system refused a resource such as a file, a lock or a port, so that no value from the GPU
    can be the cause.
    """
    is_of_child: bool = False
    """Whether a process that the script started has failed, in which case the error does not contain the reason."""
    hint: str = ""
    """A sentence that names the ullage option that generates missing weights or data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The memory in use at one point in time: bytes by role, and the source lines that allocated most of it."""

    roles: dict[str, int]
    lines: list[LineUse]
    library_lines: list[LineUse] = field(default_factory=list)
    """The same as `Prediction.library_lines`, for this point in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomLevels:
    """The size of the request that failed when memory ran out, and the device's allocated and reserved bytes just
    before it.
    """

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOom:
    """The state of the device when memory ran out."""

    levels: OomLevels
    free_bytes: int
    """The memory that the driver had free, in bytes."""
    limit_bytes: int | None
    """The limit for reserved memory that the process set for itself (per_process_memory_fraction); None if it set
    none.
    """
    alive: Alive
    phase: str | None = None
    """The phase of the run; None during loading and steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """The peak of reserved memory, in bytes, that the run would have had with other addresses of its segments."""

    ties: int
    """The number of times that an address decided between equally large free blocks of different segments."""
    low_bytes: int
    high_bytes: int
    fits_somewhere: bool
    """Whether there is a placement of segments with which memory does not run out."""
    is_certain: bool
    """Whether a replay of the run with its own placement reserved as much as the run; if not, the other figures are not
    known.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOutside:
    """The GPU memory that was taken outside PyTorch's allocator."""

    by_library: dict[str, OutsideFigures]
    managed_on_card_bytes: int
    peak_used_bytes: int
    """The peak of used memory that the driver reports, which includes PyTorch's memory and the CUDA context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The memory use of the device that reserved most; the defaults are for a run that allocated nothing."""

    device: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    reserved_at_peak_bytes: int = 0
    """The reserved bytes at the time of the allocated peak."""
    peak: Alive = field(default_factory=lambda: Alive(roles=dict.fromkeys(Role, 0), lines=[]))
    role_peaks: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    settled: bool = False
    growth: Growth | None = None
    timeline: dict[str, list[int]] = field(default_factory=dict)
    history_is_partial: bool = False
    """Whether the beginning of PyTorch's record of requests was lost."""
    cudnn_version: int = 0
    cudnn: CudnnPlans = field(default_factory=lambda: CudnnPlans(by_source={}, reasons=()))
    guesses: dict[str, GuessFigures] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    """The effect of other placements of segments; None if addresses do not matter."""
    picture: Picture | None = None
    at_oom: AtOom | None = None
    """The state when memory ran out for the last time."""
    phases: list[PhaseUse] = field(default_factory=list)
    bands: list[PhaseBand] = field(default_factory=list)
    avoidable: list[Avoidable] = field(default_factory=list)
    """The memory that could be avoided; empty if the search for it was not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(PlainData):
    """How a run ended and how much memory it used; the defaults are for a script that did not import torch."""

    outcome: Outcome
    torch: str
    """The version of the installed torch."""
    imported: bool
    """Whether the script imported torch."""
    import_seconds: float
    step_seconds: list[float]
    notes: list[str]
    changes_made: dict[str, int] = field(default_factory=dict)
    """Changes in `Request.changes` that had an effect, with the number of times."""
    changes_refused: dict[str, str] = field(default_factory=dict)
    """Changes that could not be made, with the reason."""
    training: TrainingFacts | None = None
    """Facts about how the run trains, if requested with `Request.diagnose`; otherwise None."""
    snapshot_error: str | None = None
    oom_count: int = 0
    reads: list[HostRead] = field(default_factory=list)
    values: ValuesUse = field(
        default_factory=lambda: ValuesUse(mode="off", seed=0, routing="drawn", host_bytes=0, failures={})
    )
    missed_values: bool = False
    """Whether the script read a value back after values were no longer tracked because no earlier step had read one."""
    largest_not_asked: int = 0
    """The number of ranks in the largest group in which this rank's own values were used in place of the values of the
    others.
    """
    unwritten: dict[str, int] = field(default_factory=dict)
    outside: TakenOutside = TakenOutside(by_library={}, managed_on_card_bytes=0, peak_used_bytes=0)
    lost_entries: int = 0
    compiled_graphs: int = 0
    architectures: list[str] = field(default_factory=list)
    """The GPU architectures for which this build of torch contains code."""
    world_size: int | None = None
    """The number of ranks of the run, as read in the process itself; None if the process is not one of several
    ranks.
    """
    rank: int = 0
    host: HostFigures | None = None
    """The host memory of the process itself; None if GPU memory is part of the host memory, so that it cannot be
    measured separately.
    """
    measured: Measured | None = None
    """The memory use of the device; None if nothing was allocated on a device."""
    epoch: EpochUse | None = None
    """The memory use over an epoch; None if it was not requested, or if the training did not use a DataLoader."""
    sent_bytes_per_step: int | None = None
    """The bytes sent to other ranks per step; None if no step ended."""
    recomputed_share: float | None = None
    """The fraction of the forward pass that was computed again in the backward pass; None if no module was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport(PlainData):
    """The report that a process sends while it exits, when its exit status is not known yet."""

    result: RunResult
    """The result of the run; its outcome is the error that the interpreter recorded as unhandled, if there is one."""
    outcome_of_success: Outcome
    """The outcome of the run if the exit status is 0, which means that the recorded error was handled."""
    did_nothing: bool
    """Whether the process did not use the GPU."""

    def result_with(self, status: int | None) -> RunResult | None:
        """Return the result for the status with which the process ended; None if the process did nothing and did not
        fail.

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
