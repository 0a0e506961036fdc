"""Searches for changes that would have prevented the failure. Each change is tested by simulating the recorded run with
it.
"""

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
_GARBAGE_COLLECTION: Final = (
    "garbage_collection_threshold:0.8",
    0.95,
)  # garbage_collection_threshold has an effect only below a memory limit
_EMPTY_CACHE_INTERVALS: Final = (1, 10)
_PARALLEL_REPLAYS: Final = 2
_Arguments = TypeVarTuple("_Arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change to a run, and its effect on reserved memory and on the number of driver calls."""

    setting: str | None = None
    """The allocator option to set, such as "expandable_segments:True", or None."""
    action: str | None = None
    """The action to take, such as "torch.cuda.empty_cache() after every step", or None."""
    proved: bool
    """Whether the change was simulated. False means that its effect is only estimated."""
    fits: bool | None = None
    peak_reserved_bytes: int | None = None
    driver_calls: int | None = None
    more_calls: int | None = None
    """The number of additional driver calls caused by the change."""
    remark: str = ""
    alloc_conf: str | None = None
    """The complete value of PYTORCH_CUDA_ALLOC_CONF with this change."""

    @property
    def name(self) -> str:
        """The setting or the action."""
        return self.setting or self.action or ""

    @property
    def short_name(self) -> str:
        """The name of the setting or the action, without any explanation after a comma or a bracket."""
        return self.name.partition(", ")[0].partition(" (")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RemedyTrial:
    setting: str | None = None
    action: str | None = None
    settings: Settings
    program: Program


class RemedySearch:
    """Simulates the run with one change at a time. Two simulations run in parallel."""

    def __init__(self, recording: Recording, *, progress: Callable[[str], None] = lambda text: None) -> None:
        self._recording = recording
        self._progress = progress
        self._pool = ThreadPoolExecutor(_PARALLEL_REPLAYS)  # a replay releases the GIL
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
        """Whether the recording can be simulated. If it cannot, no changes are suggested."""
        rebuilt, done = self._recording.rebuilt, self._recording.done
        has_moved = rebuilt.is_whole or done.driver_calls or self._recording.failing_op is not None
        return bool(len(self._recording.history) and has_moved)

    def best_first(self, growth: StepGrowth | None = None, accumulation: Accumulation | None = None) -> list[Remedy]:
        """Return every remedy, the best first.

        Remedies that let the request succeed come first. Among them, remedies without additional driver calls come
        first. Among those, the remedies with the lowest peak of reserved memory come first.

        The order prefers spare memory because a run that continues needs more than it had at the failure. If the
        recording starts within a step, a replay proves a remedy only for the failed request.

        Args:
            growth: memory that grows from step to step; freeing what every step keeps is then a remedy too.
            accumulation: blocks that a loop keeps; freeing them is then a remedy too.
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

    def _begin(self, change: Callable[[Recording, *_Arguments], _RemedyTrial | None], *arguments: *_Arguments) -> None:
        def run() -> Remedy | None:
            trial = change(self._recording, *arguments)
            if trial is None:
                return None
            self._progress(f"replaying with {trial.setting or trial.action}")
            return _remedy_of(self._recording, trial)

        self._replayed.append(self._pool.submit(run))


def _with_option(recording: Recording, option: str) -> _RemedyTrial | None:
    own = recording.rebuilt.settings
    try:
        changed = _settings_with(option, own, recording.rebuilt.settings_text)
    except SettingsError:
        return None
    return _RemedyTrial(setting=option, settings=changed, program=recording.program) if changed != own else None


def _collecting_garbage(recording: Recording) -> _RemedyTrial | None:
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
    marks = steps[every - 1 :: every]
    if not marks:
        return None
    often = "every step" if every == 1 else f"every {every} steps"
    program = insert(recording.program, {op + 1: [(Op.EMPTY_CACHE, 0)] for op in marks})
    return _RemedyTrial(
        action=f"torch.cuda.empty_cache() after {often}", settings=recording.rebuilt.settings, program=program
    )


def _reordered(recording: Recording, steps: Sequence[int]) -> _RemedyTrial | None:
    reordered = largest_first(recording.program, steps)
    if reordered is None:
        return None
    action = "largest step first, then by size (the first step stays first)"
    return _RemedyTrial(action=action, settings=recording.rebuilt.settings, program=reordered)


def _freed_at_steps(recording: Recording, growth: StepGrowth) -> _RemedyTrial:
    action = f"free the {text_of_bytes(growth.bytes_per_step)} that each step keeps at the end of the step"
    frees = {op + 1: [(Op.FREE, key) for key in keys] for op, keys in growth.kept_by_step}
    return _RemedyTrial(action=action, settings=recording.rebuilt.settings, program=insert(recording.program, frees))


def _freed_in_the_loop(recording: Recording, accumulation: Accumulation) -> _RemedyTrial:
    freed: dict[int, list[tuple[Op, int]]] = {}
    for op, key in accumulation.frees:
        freed.setdefault(op, []).append((Op.FREE, key))
    action = "free these blocks during the loop, keeping an eighth of them"
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
    changed = parse_settings(with_options(own_text, option), semantics=own.semantics)
    return replace(changed, per_process_memory_fraction=own.per_process_memory_fraction)


def estimates_of(recording: Recording, missing_bytes: int, asked_bytes: int, room_bytes: int) -> Sequence[Remedy]:
    """Return remedies whose effect is only estimated, such as using less memory."""
    peak = recording.done.peak.allocated_bytes
    if missing_bytes <= 0 or not (peak or asked_bytes > room_bytes):
        return []
    share = max(1.0, 100 * missing_bytes / (peak + missing_bytes))
    action = f"use at least {share:.0f} % less memory, for this request alone: a smaller batch, or checkpointing"
    if asked_bytes > room_bytes > 0:
        action = (
            f"request less at once: this single request of {text_of_bytes(asked_bytes)} exceeds the "
            f"{text_of_bytes(room_bytes)} available in total; use at most {100 * room_bytes // asked_bytes} % of the "
            "batch size"
        )
    return [
        _estimate(action, f"{text_of_bytes(missing_bytes)} are missing in addition to a peak of {text_of_bytes(peak)}")
    ]


def higher_limit(free_bytes: int) -> Remedy:
    """Return the remedy "raise the limit" for a memory limit that is too low. `free_bytes` is the free GPU memory."""
    action = "raise the limit (torch.cuda.set_per_process_memory_fraction, or the system's limit)"
    return _estimate(action, f"{text_of_bytes(free_bytes)} were free on the GPU")


def _estimate(action: str, because: str) -> Remedy:
    return Remedy(action=action, proved=False, remark=f"an estimate: {because}")
