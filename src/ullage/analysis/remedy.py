"""Changes that would have prevented the failure: each remedy is a replay of this very run, not a rule of thumb."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from ullage._units import text_of_bytes
from ullage.analysis.accumulation import Accumulation
from ullage.analysis.growth import StepGrowth
from ullage.analysis.recording import Recording, insert
from ullage.analysis.step import largest_first
from ullage.program import Op, Program
from ullage.rebuild import UNBOUNDED_BYTES
from ullage.settings import Settings, SettingsError, parse_settings, with_options

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change and its effect on this run: bytes, and driver calls (its cost)."""

    setting: str | None
    """The allocator option that is changed, such as "expandable_segments:True"; None where the remedy is an action."""
    action: str | None
    """The action in words; None where the remedy is a setting."""
    proved: bool
    """Whether the run was replayed with the change; else the remedy is arithmetic."""
    fits: bool | None
    peak_reserved_bytes: int | None
    driver_calls: int | None
    more_calls: int | None
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


def remedies_of(
    recording: Recording,
    growth: StepGrowth | None = None,
    accumulation: Accumulation | None = None,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Remedy]:
    """Replay the run with every remedy and return them, the best first.

    Remedies that help come first; among them those without more driver calls; among these the ones that leave most
    room.

    A run that goes on will need more than it had when it failed, and a step that is recorded from its middle on proves
    a remedy for that request alone: room is what makes it hold.

    Where memory grows, freeing what every step keeps is a remedy too; where a loop keeps blocks, freeing them.
    """
    # One after the other is made while those before it are replayed.
    work = chain(_settings_to_try(recording), _actions_to_try(recording, growth, accumulation))

    def run(trial: _RemedyTrial) -> Remedy:
        progress(f"replaying with {trial.setting or trial.action}")
        return _remedy_of(recording, trial)

    with ThreadPoolExecutor(_PARALLEL_REPLAYS) as pool:
        found = list(pool.map(run, work))
    if recording.failing_op is None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _RemedyTrial:
    """One change to a recorded run, before it is replayed."""

    setting: str | None = None
    action: str | None = None
    settings: Settings
    program: Program


def _settings_to_try(recording: Recording) -> Iterator[_RemedyTrial]:
    own, own_text = recording.rebuilt.settings, recording.rebuilt.settings_text
    for text in SETTINGS:
        try:
            changed = _settings_with(text, own, own_text)
        except SettingsError:  # cannot be combined with the settings in force
            continue
        if changed != own:
            yield _RemedyTrial(setting=text, settings=changed, program=recording.program)
    if recording.rebuilt.room_bytes < UNBOUNDED_BYTES:
        threshold, share = _GARBAGE_COLLECTION
        collecting = replace(_settings_with(threshold, own, own_text), per_process_memory_fraction=share)
        limit = text_of_bytes(int(share * recording.rebuilt.room_bytes))
        action = f"{threshold}, with set_per_process_memory_fraction at {limit}"
        yield _RemedyTrial(action=action, settings=collecting, program=recording.program)


def _actions_to_try(
    recording: Recording, growth: StepGrowth | None, accumulation: Accumulation | None
) -> Iterator[_RemedyTrial]:
    own = recording.rebuilt.settings
    steps = recording.step_ops()
    for every in _EMPTY_CACHE_INTERVALS:
        marks = steps[every - 1 :: every]
        if marks:
            often = "every step" if every == 1 else f"every {every} steps"
            program = insert(recording.program, {op + 1: [(Op.EMPTY_CACHE, 0)] for op in marks})
            yield _RemedyTrial(action=f"torch.cuda.empty_cache() after {often}", settings=own, program=program)

    reordered = largest_first(recording.program, steps)
    if reordered is not None:
        action = "the largest step first, then by size (the first one stays put)"
        yield _RemedyTrial(action=action, settings=own, program=reordered)

    if growth is not None:
        action = f"free at each step's end the {text_of_bytes(growth.bytes_per_step)} that it keeps"
        frees = {op + 1: [(Op.FREE, key) for key in keys] for op, keys in growth.kept_by_step}
        yield _RemedyTrial(action=action, settings=own, program=insert(recording.program, frees))

    if accumulation is not None:
        freed: dict[int, list[tuple[Op, int]]] = {}
        for op, key in accumulation.frees:
            freed.setdefault(op, []).append((Op.FREE, key))
        action = "free these blocks as the loop runs, keeping an eighth of them"
        yield _RemedyTrial(action=action, settings=own, program=insert(recording.program, freed))


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
    return Remedy(
        setting=None,
        action=action,
        proved=False,
        fits=None,
        peak_reserved_bytes=None,
        driver_calls=None,
        more_calls=None,
        remark=f"an estimate: {because}",
    )
