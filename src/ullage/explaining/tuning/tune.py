"""Searches for the best allocator settings of a recorded run, and for the smallest memory capacity that it needs."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Final

from ullage.base.errors import ExitCode, UsageError
from ullage.base.public import public
from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.assumption import closest
from ullage.explaining.analysis.contradiction import check
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.tuning.candidate import Space, Version, candidate_of, version_of
from ullage.explaining.tuning.search import SettingsSearch, frontier_of
from ullage.explaining.tuning.trial import RecordedRun, Trial
from ullage.recorded.history import Action, History, without_trace
from ullage.recorded.program import Op
from ullage.recorded.rebuild import UNBOUNDED_BYTES, Rebuilt
from ullage.recorded.settings import SINCE, line_to_paste, semantics_of, split_options
from ullage.report.answer import Answer

SCHEMA: Final = 1
# The torch version that is assumed if the run's version is unknown. The search then tries only options that this and
# all later versions have.
_UNKNOWN_VERSION: Final = (2, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastRoom:
    """The smallest memory capacity in bytes with which a run succeeds."""

    text: str
    room_bytes: int
    is_exact: bool
    """Whether the search showed that the run fails with any smaller capacity. False if the time limit ended the
    search.
    """


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tuning(Answer):
    """The result of a search for allocator settings. `best` is None if the present settings are best."""

    described_in: ClassVar[str] = "ullage.explaining.tuning.describe"

    source: str
    device: int
    torch_version: str
    room_bytes: int | None
    """The most bytes that the allocator can reserve, or None if unknown."""
    start_bytes: int
    """The bytes that were already reserved when recording began."""
    is_cut_short: bool
    """Whether the recording ends with a failed allocation. The memory needed afterwards is then unknown."""
    present: Trial
    best: Trial | None
    line: str | None
    """The shell command that sets the best allocator settings."""
    trials: tuple[Trial, ...]
    """The results of all simulations, best first."""
    in_any_room: tuple[Trial, ...]
    """Simulations with unlimited memory. They are made only if the run fails with all settings."""
    frontier: tuple[Trial, ...]
    """The simulations that no other one beats in both memory and driver calls, sorted by driver calls."""
    needs: tuple[LeastRoom, ...]
    """The smallest memory capacity for the present settings, and then for the best settings. Unknown ones are left
    out.
    """
    is_complete: bool
    """Whether the search finished before the time limit."""
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `ullage tune`."""
        return ExitCode.YES if self.best else ExitCode.NO

    def to_json(self) -> dict[str, Any]:
        """Return this result as plain data for `json.dumps`."""
        found = asdict(self)
        found["candidates"] = found.pop("trials")
        return {"schema": SCHEMA, **found}


def tune(
    history: History,
    *,
    source: str = "",
    torch_version: str | None = None,
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
    budget_seconds: float = 20.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Search for the allocator settings with which a run succeeds and reserves the least memory.

    Args:
        history: the recording of one device.
        source: the name of the recording in the report.
        torch_version: selects the allocator version that is modelled and the options that exist; None: inferred.
        alloc_conf: the allocator settings of the run, if the snapshot does not record them.
        capacity_bytes: the most that the allocator may reserve; None: inferred from a request that failed.
        budget_seconds: the time limit for the search; the search for the least capacity may take as long again. The
            same file gives the same result unless this limit ends the search.
        progress: called with a short text as the search goes on.

    Raises:
        SettingsError: `alloc_conf` or `torch_version` cannot be read.
        UsageError: nothing was recorded, or the run used a different allocator than PyTorch's own.
    """
    if not len(history):
        raise UsageError(without_trace("replay"))
    progress("rebuilding the run")
    given = semantics_of(torch_version) if torch_version is not None else None
    assumed = closest(history, semantics=given, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    told = torch_version or assumed.semantics
    is_version_known, torch_version = told is not None, told or history.release.usual
    semantics = semantics_of(torch_version)
    rebuilt = assumed.program_of(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    check(history, rebuilt)
    rebuilt, room = _with_room(history, rebuilt)
    now = ",".join(f"{name}:{value}" for name, value in split_options(rebuilt.settings_text))
    run = RecordedRun.of(rebuilt)
    # If the version is unknown, an option that older versions do not have could end the user's process.
    version = version_of(torch_version) if is_version_known else _least_version(history)
    space = Space(version=version, kept=candidate_of(now).kept, has_limit=room < UNBOUNDED_BYTES)
    search = SettingsSearch(run=run, space=space, room_bytes=room, semantics=semantics, progress=progress)
    present = search.try_present(now, rebuilt.settings, budget_seconds)
    search.run_from(candidate_of(now))
    best = search.better()
    wide = _in_any_room(search, budget_seconds) if best is None and not present.fits else None
    complete = search.is_complete and (wide is None or wide.is_complete)
    return Tuning(
        source=source,
        device=history.device,
        torch_version=torch_version,
        room_bytes=room if room < UNBOUNDED_BYTES else None,
        start_bytes=run.start_bytes,
        is_cut_short=_is_cut_short(history),
        present=present,
        best=best,
        line=line_to_paste(best.text) if best is not None else None,
        trials=tuple(search.ranked()),
        in_any_room=tuple(wide.ranked()) if wide else (),
        frontier=tuple(frontier_of((wide or search).trials.values())),
        needs=_needs(wide or search, budget_seconds),
        is_complete=complete,
        notes=_notes(history, rebuilt, run, best, room=room),
    )


def _with_room(history: History, rebuilt: Rebuilt) -> tuple[Rebuilt, int]:
    # If a request was refused while memory was free, it met a limit, and that limit is the capacity.
    if rebuilt.room_is_known:
        rebuilt = Recording.of(history, rebuilt).rebuilt
    if rebuilt.settings.backend != "native":
        raise UsageError(
            f"backend:{rebuilt.settings.backend} passes every request to the driver and ignores these settings; "
            "expected a run with PyTorch's own allocator (backend:native)"
        )
    return rebuilt, rebuilt.room_bytes


def _in_any_room(search: SettingsSearch, budget_seconds: float) -> SettingsSearch:
    assert search.present is not None
    search.progress("no settings fit; looking for those that need the least memory")
    text = search.present.text
    wide = SettingsSearch(
        run=search.run,
        space=replace(search.space, has_limit=False),
        room_bytes=UNBOUNDED_BYTES,
        semantics=search.semantics,
        progress=search.progress,
    )
    wide.try_present(text, search.settings_of(search.present), budget_seconds / 2)
    wide.run_from(candidate_of(text))
    return wide


def _needs(search: SettingsSearch, budget_seconds: float) -> tuple[LeastRoom, ...]:
    assert search.present is not None
    best = search.better() or search.present
    found = []
    for trial in dict.fromkeys((search.present, best)):
        search.progress(f"looking for the least capacity with {trial.text or 'nothing set'}")
        deadline = time.monotonic() + budget_seconds / 2
        room = search.run.smallest_room(search.settings_of(trial), deadline=deadline)
        if room is not None:
            found.append(LeastRoom(text=trial.text, room_bytes=room[0], is_exact=room[1]))
    return tuple(found)


def _least_version(history: History) -> Version:
    least = history.release.least
    return max(_UNKNOWN_VERSION, version_of(least)) if least is not None else _UNKNOWN_VERSION


def _is_cut_short(history: History) -> bool:
    at = [int((history.action == action).nonzero()[0].max(initial=-1)) for action in (Action.OOM, Action.ALLOC)]
    return at[0] > at[1]


def _notes(history: History, rebuilt: Rebuilt, run: RecordedRun, best: Trial | None, *, room: int) -> tuple[str, ...]:
    # The notes on the capacity concern another GPU, or the capacity is known now.
    is_given = room != rebuilt.room_bytes
    notes = [note for note in rebuilt.notes if not (is_given and "capacity" in note)]
    failures = int((history.action == Action.OOM).sum())
    if _is_cut_short(history):
        notes.append(
            "the recording ends with a request that failed: the result is valid up to and including that request"
        )
    if failures > _is_cut_short(history):
        notes.append(
            f"{failures} request{'s' if failures > 1 else ''} failed while recording, and the program continued; its "
            "later requests are replayed, and a failed request that succeeds in the replay is freed at once"
        )
    if not rebuilt.is_whole:
        notes.append(
            f"recording began after the start of the process: {text_of_bytes(run.start_bytes)} were reserved by that "
            "time and stay the same with all settings; record from the start of the process to see the effect of "
            "settings on them"
        )
    gave_back = int((rebuilt.program.op == Op.EMPTY_CACHE).sum())
    if gave_back and room == UNBOUNDED_BYTES:
        notes.append(
            f"memory was returned to the driver {gave_back} times without a failed request, which is assumed to be "
            "empty_cache(). If the GPU was full at that time, specify the allocator's capacity (--capacity)"
        )
    if best is not None:
        notes += ["proved for this run only: with other shapes, other settings may be better", *_notes_of(best)]
    return tuple(notes)


def _notes_of(best: Trial) -> list[str]:
    notes = []
    for name, (major, minor) in SINCE.items():
        if f"{name}:" in best.text:
            notes.append(f"torch before {major}.{minor} does not know {name} and would abort")
    if "per_process_memory_fraction:" in best.text:
        notes.append(
            "per_process_memory_fraction is a fraction of the GPU's total memory; here it was computed from the "
            "capacity, so set a lower value if other processes use the GPU, too"
        )
    if "expandable_segments:True" in best.text:
        notes.append("expandable segments need Linux")
    return notes
