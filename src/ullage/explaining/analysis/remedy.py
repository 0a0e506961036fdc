"""Changes that would have prevented the failure: each remedy is a replay of this very run, not a rule of thumb."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Self, TypeVarTuple

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.growth import Accumulation, StepGrowth
from ullage.explaining.analysis.recording import Recording, insert
from ullage.explaining.analysis.step import largest_first
from ullage.recorded.program import Op, Program
from ullage.recorded.rebuild import UNBOUNDED_BYTES
from ullage.recorded.settings import Settings, SettingsError, parse_settings, with_options

SETTINGS: Final = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
)
_GARBAGE_COLLECTION: Final = ("garbage_collection_threshold:0.8", 0.95)  # it works below a limit only
_EMPTY_CACHE_INTERVALS: Final = (1, 10)
_PARALLEL_REPLAYS: Final = 2
_Arguments = TypeVarTuple("_Arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change and its effect on this run: bytes, and driver calls (its cost)."""

    setting: str | None = None
    """The allocator option that is changed, such as "expandable_segments:True"; None where the remedy is an action."""
    action: str | None = None
    """The action in words; None where the remedy is a setting."""
    proved: bool
    """Whether the run was replayed with the change; else the remedy is arithmetic."""
    fits: bool | None = None
    peak_reserved_bytes: int | None = None
    driver_calls: int | None = None
    more_calls: int | None = None
    """Driver calls beyond those that the run makes without it."""
    remark: str = ""
    alloc_conf: str | None = None
    """The whole text for PYTORCH_CUDA_ALLOC_CONF that was replayed: the run's own options and this one."""

    @property
    def name(self) -> str:
        """The setting or the action."""
        return self.setting or self.action or ""

    @property
    def short_name(self) -> str:
        """The name without its explanation."""
        return self.name.partition(", ")[0].partition(" (")[0]


class RemedySearch:
    """Replays of a run with one change each, two at once, which begin while the recording itself is still looked at.

    Leaving the `with` block gives up the replays that have not begun.
    """

    def __init__(self, recording: Recording, *, progress: Callable[[str], None] = lambda text: None) -> None:
        """Begin with the changes that need nothing but the recording.

        Args:
            recording: the run.
            progress: called with a short text for every replay.
        """
        self._recording = recording
        self._progress = progress
        self._pool = ThreadPoolExecutor(_PARALLEL_REPLAYS)  # a replay leaves the GIL to others
        self._replayed: list[Future[Remedy | None]] = []
        if not self.is_of_a_replay:
            return
        for option in SETTINGS:
            self._begin(_with_option, option)
        self._begin(_collecting_garbage)
        steps = recording.step_ops()
        for every in _EMPTY_CACHE_INTERVALS:
            self._begin(_emptied, steps, every)
        self._begin(_reordered, steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    @property
    def is_of_a_replay(self) -> bool:
        """Whether there is anything to replay; else there are no remedies."""
        rebuilt, done = self._recording.rebuilt, self._recording.done
        has_moved = rebuilt.is_whole or done.driver_calls or self._recording.failing_op is not None
        return bool(len(self._recording.history) and has_moved)

    def best_first(self, growth: StepGrowth | None = None, accumulation: Accumulation | None = None) -> list[Remedy]:
        """Return every remedy, the best first.

        Remedies that help come first; among them those without more driver calls; among these the ones that leave most
        room.

        A run that goes on will need more than it had when it failed, and a step that is recorded from its middle on
        proves a remedy for that request alone: room is what makes it hold.

        Args:
            growth: memory that grows: freeing what every step keeps is a remedy too.
            accumulation: blocks that a loop keeps: freeing them is one.
        """
        if growth is not None:
            self._begin(_freed_at_steps, growth)
        if accumulation is not None:
            self._begin(_freed_in_the_loop, accumulation)
        found = [remedy for replayed in self._replayed if (remedy := replayed.result()) is not None]
        if self._recording.failing_op is None:
            return sorted(found, key=lambda remedy: (remedy.peak_reserved_bytes or 0, remedy.driver_calls or 0))
        return sorted(
            found,
            key=lambda remedy: (
                not remedy.fits,
                (remedy.more_calls or 0) > 0,
                remedy.peak_reserved_bytes or 0,
                remedy.driver_calls or 0,
            ),
        )

    def _begin(
        self, change: "Callable[[Recording, *_Arguments], _RemedyTrial | None]", *arguments: *_Arguments
    ) -> None:
        """Have a change made and replayed, by whichever thread is free."""

        def run() -> Remedy | None:
            trial = change(self._recording, *arguments)
            if trial is None:
                return None
            self._progress(f"replaying with {trial.setting or trial.action}")
            return _remedy_of(self._recording, trial)

        self._replayed.append(self._pool.submit(run))


@dataclass(frozen=True, slots=True, kw_only=True)
class _RemedyTrial:
    """One change to a recorded run, before it is replayed."""

    setting: str | None = None
    action: str | None = None
    settings: Settings
    program: Program


def _with_option(recording: Recording, option: str) -> _RemedyTrial | None:
    """Return the run with an option more; None where it has it, or where it cannot be combined with its own."""
    own = recording.rebuilt.settings
    try:
        changed = _settings_with(option, own, recording.rebuilt.settings_text)
    except SettingsError:
        return None
    return _RemedyTrial(setting=option, settings=changed, program=recording.program) if changed != own else None


def _collecting_garbage(recording: Recording) -> _RemedyTrial | None:
    """Return the run with garbage collected below a limit; None where the run's room is not known."""
    if recording.rebuilt.room_bytes >= UNBOUNDED_BYTES:
        return None
    threshold, share = _GARBAGE_COLLECTION
    collecting = _settings_with(threshold, recording.rebuilt.settings, recording.rebuilt.settings_text)
    limit = text_of_bytes(int(share * recording.rebuilt.room_bytes))
    return _RemedyTrial(
        action=f"{threshold}, with set_per_process_memory_fraction at {limit}",
        settings=replace(collecting, per_process_memory_fraction=share),
        program=recording.program,
    )


def _emptied(recording: Recording, steps: Sequence[int], every: int) -> _RemedyTrial | None:
    """Return the run with its cache emptied at the end of every so many steps; None where it has too few."""
    marks = steps[every - 1 :: every]
    if not marks:
        return None
    often = "every step" if every == 1 else f"every {every} steps"
    program = insert(recording.program, {op + 1: [(Op.EMPTY_CACHE, 0)] for op in marks})
    return _RemedyTrial(
        action=f"torch.cuda.empty_cache() after {often}", settings=recording.rebuilt.settings, program=program
    )


def _reordered(recording: Recording, steps: Sequence[int]) -> _RemedyTrial | None:
    """Return the run with its largest step first; None where its steps have no other order."""
    reordered = largest_first(recording.program, steps)
    if reordered is None:
        return None
    action = "the largest step first, then by size (the first one stays put)"
    return _RemedyTrial(action=action, settings=recording.rebuilt.settings, program=reordered)


def _freed_at_steps(recording: Recording, growth: StepGrowth) -> _RemedyTrial:
    """Return the run with what every step keeps freed at its end."""
    action = f"free at each step's end the {text_of_bytes(growth.bytes_per_step)} that it keeps"
    frees = {op + 1: [(Op.FREE, key) for key in keys] for op, keys in growth.kept_by_step}
    return _RemedyTrial(action=action, settings=recording.rebuilt.settings, program=insert(recording.program, frees))


def _freed_in_the_loop(recording: Recording, accumulation: Accumulation) -> _RemedyTrial:
    """Return the run with the blocks that a loop keeps freed as it runs."""
    freed: dict[int, list[tuple[Op, int]]] = {}
    for op, key in accumulation.frees:
        freed.setdefault(op, []).append((Op.FREE, key))
    action = "free these blocks as the loop runs, keeping an eighth of them"
    return _RemedyTrial(action=action, settings=recording.rebuilt.settings, program=insert(recording.program, freed))


def _remedy_of(recording: Recording, trial: _RemedyTrial) -> Remedy:
    done = recording.run(trial.settings, trial.program)
    own_text, room_bytes = recording.rebuilt.settings_text, recording.rebuilt.room_bytes
    return Remedy(
        setting=trial.setting,
        action=trial.action,
        proved=True,
        fits=not done.ran_out and not done.broken and done.peak.reserved_bytes <= room_bytes,
        peak_reserved_bytes=done.peak.reserved_bytes,
        driver_calls=done.driver_calls,
        more_calls=done.driver_calls - recording.done.driver_calls,
        alloc_conf=with_options(own_text, trial.setting) if trial.setting is not None else None,
    )


def _settings_with(option: str, own: Settings, own_text: str) -> Settings:
    """Return what a process has that starts with an option beside the run's own; the limit stays that of the replay."""
    changed = parse_settings(with_options(own_text, option), semantics=own.semantics)
    return replace(changed, per_process_memory_fraction=own.per_process_memory_fraction)


def estimates_of(recording: Recording, missing_bytes: int, asked_bytes: int, room_bytes: int) -> Sequence[Remedy]:
    """Return the remedies that no replay can prove: how much less the run would have to hold or to request at once."""
    peak = recording.done.peak.allocated_bytes
    if missing_bytes <= 0 or not (peak or asked_bytes > room_bytes):
        return []
    share = max(1.0, 100 * missing_bytes / (peak + missing_bytes))
    action = f"use at least {share:.0f} % less memory, for this request alone: a smaller batch, or checkpointing"
    if asked_bytes > room_bytes > 0:
        action = (
            f"ask for less at once: this one request of {text_of_bytes(asked_bytes)} is larger than the whole "
            f"{text_of_bytes(room_bytes)} available; a batch at most {100 * room_bytes // asked_bytes} % as large"
        )
    return [_estimate(action, f"{text_of_bytes(missing_bytes)} are missing on top of a peak of {text_of_bytes(peak)}")]


def higher_limit(free_bytes: int) -> Remedy:
    """Return the remedy against a limit below the card's size; `free_bytes` were free on the card."""
    action = "a higher limit (torch.cuda.set_per_process_memory_fraction, or the system's)"
    return _estimate(action, f"{text_of_bytes(free_bytes)} were free on the card")


def _estimate(action: str, because: str) -> Remedy:
    return Remedy(action=action, proved=False, remark=f"an estimate: {because}")
