"""What would have let a recorded run through: each remedy is a replay of this very run, not a rule of thumb."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from ullage._units import text_of_bytes
from ullage.analysis.growth import Growth
from ullage.analysis.pile import Pile
from ullage.analysis.recording import Recording, insert
from ullage.analysis.step import largest_first
from ullage.program import Op, Program
from ullage.rebuild import UNBOUNDED_BYTES
from ullage.settings import Settings, SettingsError, parse_settings

SETTINGS: Final = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
)
_COLLECT: Final = ("garbage_collection_threshold:0.8", 0.95)  # it works below a limit only
_EVERY: Final = (1, 10)
_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change and what it does to this run; bytes, and calls of the driver (its cost)."""

    setting: str | None
    """For PYTORCH_ALLOC_CONF; None where it is something to do."""
    action: str | None
    """In words; None where it is a setting."""
    proved: bool
    """Whether the run was replayed with it; else it is arithmetic."""
    fits: bool | None
    peak_reserved_bytes: int | None
    driver_calls: int | None
    more_calls: int | None
    """Than without it."""
    remark: str = ""

    @property
    def name(self) -> str:
        """The setting or the action."""
        return self.setting or self.action or ""

    @property
    def short_name(self) -> str:
        """The same without what explains it."""
        return self.name.partition(", ")[0].partition(" (")[0]


def remedies_of(
    recording: Recording,
    growth: Growth | None = None,
    pile: Pile | None = None,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Remedy]:
    """Replay the run with every remedy; those that help first, of them those that need no more calls of the driver, of
    these what leaves most room.

    A run that goes on will need more than it had when it failed, and a step that is recorded from its middle on proves
    a remedy for that request alone: room is what makes it hold.

    Where memory grows, letting go of what every step keeps is a remedy too; where blocks pile up, letting go of them.
    """
    own = recording.rebuilt.settings
    work: list[tuple[str | None, str | None, Settings, Program]] = []
    for text in SETTINGS:
        try:
            changed = parse_settings(text, semantics=own.semantics, before=own)
        except SettingsError:  # not beside what is set
            continue
        if changed != own:
            work.append((text, None, _kept(own, changed), recording.program))
    threshold, share = _COLLECT
    collecting = replace(
        parse_settings(threshold, semantics=own.semantics, before=own), per_process_memory_fraction=share
    )
    limit = text_of_bytes(int(share * recording.rebuilt.room_bytes))
    if recording.rebuilt.room_bytes < UNBOUNDED_BYTES:
        work.append(
            (None, f"{threshold}, with set_per_process_memory_fraction at {limit}", collecting, recording.program)
        )
    steps = recording.step_ops()
    for every in _EVERY:
        marks = steps[every - 1 :: every]
        if marks:
            often = "every step" if every == 1 else f"every {every} steps"
            program = insert(recording.program, {op + 1: [(Op.EMPTY_CACHE, 0)] for op in marks})
            work.append((None, f"torch.cuda.empty_cache() after {often}", own, program))

    reordered = largest_first(recording.program, steps)
    if reordered is not None:
        work.append((None, "the largest step first, down to the smallest (after the first)", own, reordered))

    if growth is not None:
        action = f"letting go, at the end of each step, of the {text_of_bytes(growth.bytes_per_step)} that it keeps"
        frees = {op + 1: [(Op.FREE, key) for key in keys] for op, keys in growth.kept_by_step}
        work.append((None, action, own, insert(recording.program, frees)))

    if pile is not None:
        freed: dict[int, list[tuple[Op, int]]] = {}
        for op, key in pile.letting_go:
            freed.setdefault(op, []).append((Op.FREE, key))
        action = "letting go of what piles up, as it comes: an eighth of it is kept"
        work.append((None, action, own, insert(recording.program, freed)))

    def run(item: tuple[str | None, str | None, Settings, Program]) -> Remedy:
        setting, action, settings, program = item
        progress(f"replaying with {setting or action}")
        done = recording.run(settings, program)
        return Remedy(
            setting=setting,
            action=action,
            proved=True,
            fits=not done.ran_out and not done.broken and done.peak.reserved_bytes <= recording.rebuilt.room_bytes,
            peak_reserved_bytes=done.peak.reserved_bytes,
            driver_calls=done.driver_calls,
            more_calls=done.driver_calls - recording.done.driver_calls,
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
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


def _kept(own: Settings, changed: Settings) -> Settings:
    """Options that PyTorch would reset when others are set at run time stay: here they are all set at the start."""
    default = Settings()
    fields = ("max_split_bytes", "roundup_divisions", "garbage_collection_threshold")
    kept = {name: getattr(own, name) for name in fields if getattr(changed, name) == getattr(default, name)}
    return replace(changed, **kept)


def estimates_of(recording: Recording, missing_bytes: int, asked_bytes: int, room_bytes: int) -> Sequence[Remedy]:
    """What no replay can prove: how much less the run would have to hold, or to ask for at once."""
    peak = recording.done.peak.allocated_bytes
    if missing_bytes <= 0 or not peak:
        return []
    share = max(1.0, 100 * missing_bytes / (peak + missing_bytes))
    action = f"hold at least {share:.0f} % less, for this request alone: a smaller batch, or checkpointing"
    if asked_bytes > room_bytes > 0:
        action = (
            f"ask for less at once: this one request of {text_of_bytes(asked_bytes)} is larger than all of the "
            f"{text_of_bytes(room_bytes)} that there is; a batch at most {100 * room_bytes // asked_bytes} % as large"
        )
    return [
        Remedy(
            setting=None,
            action=action,
            proved=False,
            fits=None,
            peak_reserved_bytes=None,
            driver_calls=None,
            more_calls=None,
            remark=f"an estimate: {text_of_bytes(missing_bytes)} are missing beside {text_of_bytes(peak)} at the most",
        )
    ]
