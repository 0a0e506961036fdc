"""What a run of the script tells its parent: made in the script's process, read in ours. It knows no torch.

Sizes are bytes.
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
    """How a script ended: enough steps, enough time, by itself, out of memory, or with another error."""

    kind: Ending
    type: str = ""
    """The error's class."""
    text: str = ""
    traceback: str = ""
    exit_code: int | None = None
    """The exit code with which the script ended itself."""
    file: str | None = None
    """The file of the user's line."""
    line: int | None = None
    is_of_system: bool = False
    """Whether the operating system refused something: a file, a lock, a port. No value of the card's is the cause."""
    is_of_child: bool = False
    """Whether a process that the script has started has failed, and the error does not say why."""
    hint: str = ""
    """A sentence that says which option makes up what is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """What was alive at a moment: bytes by role, and the lines that allocated most of it."""

    roles: dict[str, int]
    lines: list[LineUse]
    library_lines: list[LineUse] = field(default_factory=list)
    """The same as `Prediction.library_lines`, for this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomLevels:
    """What was asked for when memory ran out, and the device's levels just before it."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOom:
    """The moment at which memory ran out."""

    levels: OomLevels
    free_bytes: int
    """The memory that the driver had left."""
    limit_bytes: int | None
    """The most that the process may reserve by its own limit (per_process_memory_fraction); None if it has none."""
    alive: Alive
    phase: str | None = None
    """The phase of the run, if that is neither loading nor a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What a run would have reserved at most, in bytes, had segments lain elsewhere."""

    ties: int
    """The number of times that an address decided between equally large free blocks of different segments."""
    low_bytes: int
    high_bytes: int
    fits_somewhere: bool
    """Whether memory does not run out under some placement."""
    is_certain: bool
    """Whether a replay of the run under its own placement reserved what the run did: only then the rest is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOutside:
    """What was taken of the card beside PyTorch's allocator."""

    by_library: dict[str, OutsideFigures]
    managed_on_card_bytes: int
    peak_used_bytes: int
    """The most that was in use as the driver sees it, PyTorch's and the context included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was allocated on the device that reserved most; the defaults are those of a run that allocated nothing."""

    device: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    reserved_at_peak_bytes: int = 0
    """The bytes that were reserved when the most was allocated."""
    peak: Alive = field(default_factory=lambda: Alive(roles=dict.fromkeys(Role, 0), lines=[]))
    role_peaks: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    settled: bool = False
    growth: Growth | None = None
    timeline: dict[str, list[int]] = field(default_factory=dict)
    history_is_partial: bool = False
    """Whether PyTorch's record of requests had lost its beginning."""
    cudnn_version: int = 0
    cudnn: CudnnPlans = field(default_factory=lambda: CudnnPlans(by_source={}, reasons=()))
    guesses: dict[str, GuessFigures] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    """None where addresses do not count."""
    picture: Picture | None = None
    at_oom: AtOom | None = None
    """The last time."""
    phases: list[PhaseUse] = field(default_factory=list)
    bands: list[PhaseBand] = field(default_factory=list)
    avoidable: list[Avoidable] = field(default_factory=list)
    """Empty where it was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(PlainData):
    """How a run ended and what it used; the defaults are those of a script that did not import torch."""

    outcome: Outcome
    torch: str
    """The version that is installed."""
    imported: bool
    """Whether the script imported torch."""
    import_seconds: float
    step_seconds: list[float]
    notes: list[str]
    changes_made: dict[str, int] = field(default_factory=dict)
    """The number of times that each of `Request.changes` had an effect; one that had none is not there."""
    changes_refused: dict[str, str] = field(default_factory=dict)
    """Why a change could not be made."""
    training: TrainingFacts | None = None
    """The way in which the run trains, with `Request.diagnose`; otherwise None."""
    snapshot_error: str | None = None
    oom_count: int = 0
    reads: list[HostRead] = field(default_factory=list)
    values: ValuesUse = field(
        default_factory=lambda: ValuesUse(mode="off", seed=0, routing="drawn", host_bytes=0, failures={})
    )
    missed_values: bool = False
    """Whether something was read after values were no longer looked after, as nothing had been read until then."""
    largest_not_asked: int = 0
    """The size of the largest group in which this rank's own numbers were taken for what the others have."""
    unwritten: dict[str, int] = field(default_factory=dict)
    outside: TakenOutside = TakenOutside(by_library={}, managed_on_card_bytes=0, peak_used_bytes=0)
    lost_entries: int = 0
    compiled_graphs: int = 0
    architectures: list[str] = field(default_factory=list)
    """The architectures that this build of torch has code for."""
    world_size: int | None = None
    """The number of ranks of which the process was one, as itself found it; None: it was alone."""
    rank: int = 0
    host: HostFigures | None = None
    """The process's own memory of the host; None: not told, because the card's memory is the host's too."""
    measured: Measured | None = None
    """None: nothing was allocated on a device."""
    epoch: EpochUse | None = None
    """None where none was asked for, or no loader fed the training."""
    sent_bytes_per_step: int | None = None
    """None where no step has ended."""
    recomputed_share: float | None = None
    """None where no module was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport(PlainData):
    """What a process tells while it exits, when nobody in it knows with which status it will end."""

    result: RunResult
    """The result, with the error that nobody handled as its outcome, where the interpreter has noted one."""
    outcome_of_success: Outcome
    """The outcome if the status is 0: what the interpreter has noted was handled then."""
    did_nothing: bool
    """Whether the process did nothing on the card."""

    def result_with(self, status: int | None) -> RunResult | None:
        """Return the result by the status with which the process has ended; None where it has nothing to tell.

        Args:
            status: None where a signal has ended it, as an interrupt that nobody handles does.
        """
        outcome = self.result.outcome
        if status == 0:
            outcome = self.outcome_of_success
        elif status is not None and outcome.kind != "oom" and (outcome.kind == "ended" or status != 1):
            outcome = Outcome(kind="error", type="SystemExit", exit_code=status)
        if self.did_nothing and outcome.kind == "ended":
            return None
        return replace(self.result, outcome=outcome)
