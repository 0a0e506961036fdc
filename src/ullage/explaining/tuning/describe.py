"""Writes the report on a search for allocator settings."""

from collections.abc import Iterator
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import is_full
from ullage.explaining.tuning.trial import Trial
from ullage.explaining.tuning.tune import LeastRoom, Tuning
from ullage.recorded.settings import split_options
from ullage.report.report import Picture, Plot, Point, Remarks, Report, Section, Table, TableRow, Tone

_ROWS_SHOWN: Final = 10
_WELL_KNOWN: Final = (
    "expandable_segments:True"  # PyTorch's own error suggests this setting, so the table always shows it.
)
_FRONTIER_ROWS: Final = 4
_NEARLY_ALL_REACHED: Final = 0.995
_NOTHING: Final = "(nothing set)"


def describe(tuning: Tuning) -> Report:
    """Return the report on a search for allocator settings."""
    return Report(
        headline=_headline(tuning),
        tone=_tone(tuning),
        subject=tuning.source,
        sentence=_sentence(tuning),
        sections=tuple(_sections(tuning)),
        pictures=tuple(_pictures(tuning)),
    )


def _headline(tuning: Tuning) -> str:
    best, now = tuning.best, tuning.present
    if best is None and _is_all_before(tuning):
        return "UNCERTAIN"
    if best is None:
        return "NOTHING BETTER" if now.fits else "NO SETTING HELPS"
    if not now.fits:
        return "PASSES THE FAILED REQUEST" if _is_thin(tuning, best) else "FITS WITH OTHER SETTINGS"
    saved = now.peak_reserved_bytes - best.peak_reserved_bytes
    return f"{text_of_bytes(saved)} LESS" if saved else f"{now.driver_calls - best.driver_calls:,} FEWER DRIVER CALLS"


def _tone(tuning: Tuning) -> Tone:
    if tuning.best is not None:
        return Tone.UNSURE if _is_thin(tuning, tuning.best) else Tone.GOOD
    if not tuning.present.fits:
        return Tone.BAD
    return Tone.UNSURE if _is_all_before(tuning) else Tone.PLAIN


# The training step had not ended at the failed request and may need more memory.
def _is_thin(tuning: Tuning, best: Trial) -> bool:
    room = tuning.room_bytes
    return tuning.is_cut_short and room is not None and is_full(room, room - best.peak_reserved_bytes)


def _is_all_before(tuning: Tuning) -> bool:
    return tuning.present.fits and 0 < tuning.present.peak_reserved_bytes == tuning.start_bytes


def _sentence(tuning: Tuning) -> str:
    best, now = tuning.best, tuning.present
    if best is not None and tuning.line is not None:
        return f"{_gain(tuning, best)}{_need(tuning)} Before the process starts:\n\n  {tuning.line}"
    tried = f"{len(tuning.trials)} settings were replayed"
    if not now.fits:
        room = text_of_bytes(tuning.room_bytes) if tuning.room_bytes is not None else "any capacity"
        return f"The run does not fit in {room} with any settings: {tried}.{_need(tuning)}"
    if _is_all_before(tuning):
        return (
            f"All of the {text_of_bytes(tuning.start_bytes)} were reserved before recording began, and the run "
            "reserved no more. Record from the start of the process to see the effect of other settings."
        )
    return (
        f"The present settings ({now.text or 'nothing set'}) reserve at most {text_of_bytes(now.peak_reserved_bytes)}, "
        f"and no other settings are enough of an improvement: {tried}.{_need(tuning)}"
    )


def _gain(tuning: Tuning, best: Trial) -> str:
    now, until = tuning.present, " up to and including the request that failed" if tuning.is_cut_short else ""
    peak = text_of_bytes(best.peak_reserved_bytes)
    if not now.fits:
        room = f" of {text_of_bytes(tuning.room_bytes)}" if tuning.room_bytes is not None else ""
        thin = (
            " Little GPU memory is left for the rest of the training step. A smaller batch is safer."
            if _is_thin(tuning, best)
            else ""
        )
        return f"With {best.text or 'nothing set'} this run fits{until}; it reserves at most {peak}{room}.{thin}"
    before = text_of_bytes(now.peak_reserved_bytes)
    calls = f"{best.driver_calls:,} driver calls instead of {now.driver_calls:,}"
    if best.peak_reserved_bytes == now.peak_reserved_bytes:
        return (
            f"With {best.text or 'nothing set'} this run makes {calls}, and still reserves at most {peak} of GPU "
            "memory."
        )
    return (
        f"With {best.text or 'nothing set'} this run reserves at most {peak} of GPU memory instead of {before}. "
        f"The run makes {calls}."
    )


def _need(tuning: Tuning) -> str:
    if not tuning.needs:
        return ""
    present, best = tuning.needs[0], tuning.needs[-1]
    bound = "at least" if all(need.is_exact for need in tuning.needs) else "at most"
    if present == best:
        return f" The run needs {bound} {text_of_bytes(present.room_bytes)} of GPU memory."
    with_what = "" if tuning.best is not None else f" with {best.text or 'nothing set'}"
    return (
        f" The run needs {bound} {text_of_bytes(best.room_bytes)} of GPU memory{with_what}. "
        f"With the present settings, the run needs {bound} {text_of_bytes(present.room_bytes)}."
    )


def _sections(tuning: Tuning) -> Iterator[Section]:
    if tuning.best is not None:
        yield _head_to_head(tuning.present, tuning.best, tuning.needs)
    yield _table(tuning)
    notes = list(tuning.notes)
    if not tuning.is_complete:
        notes.append(
            f"the time limit ended the search after {len(tuning.trials)} settings; more time may find better "
            "settings (--budget)"
        )
    yield Remarks(title="To know", items=tuple(notes))


def _head_to_head(now: Trial, best: Trial, needs: tuple[LeastRoom, ...]) -> Table:
    more_bytes = _more_bytes(best.peak_reserved_bytes - now.peak_reserved_bytes) if now.fits else ""
    rows = [
        ("requests that fail", str(now.ooms), str(best.ooms), _more(best.ooms - now.ooms)),
        ("peak reserved", text_of_bytes(now.peak_reserved_bytes), text_of_bytes(best.peak_reserved_bytes), more_bytes),
        (
            "driver calls",
            f"{now.driver_calls:,}",
            f"{best.driver_calls:,}",
            _more(best.driver_calls - now.driver_calls),
        ),
        ("retries", str(now.retries), str(best.retries), _more(best.retries - now.retries)),
    ]
    if len(needs) == 2:
        before, after = (need.room_bytes for need in needs)
        name = "needs at least" if all(need.is_exact for need in needs) else "fits in"
        rows.append((name, text_of_bytes(before), text_of_bytes(after), _more_bytes(after - before)))
    return Table(
        title="Present and best settings, both replayed",
        columns=("", "now", "best", "change"),
        rows=tuple(TableRow(cells=cells) for cells in rows),
    )


def _more(number: int) -> str:
    return f"{number:+,}" if number else "same"


def _more_bytes(number: int) -> str:
    return ("+" if number > 0 else "") + text_of_bytes(number) if number else "same"


def _table(tuning: Tuning) -> Table:
    where = " (with unlimited capacity)" if tuning.in_any_room else ""
    return Table(
        title=f"Settings that were tried{where}, best first (◆: unbeaten in peak and driver calls)",
        columns=("settings", "", "peak reserved", "driver calls", "retries"),
        rows=tuple(_row(trial, tuning) for trial in _shown(tuning)),
    )


def _shown(tuning: Tuning) -> list[Trial]:
    trials = tuning.in_any_room or tuning.trials
    now = next(trial for trial in trials if trial.text == tuning.present.text)
    top = [now] if tuning.best is None else [tuning.best, now]
    frontier = [trial for trial in tuning.frontier if trial not in top]
    # The slice and the sum keep both ends of the frontier.
    thinned = frontier[:: max(1, -(-len(frontier) // _FRONTIER_ROWS))] + frontier[-1:]
    chosen = [trial for trial in trials if trial in thinned or (trial.text == _WELL_KNOWN and trial not in top)]
    leaders: dict[frozenset[str], Trial] = {}
    for trial in trials:
        leaders.setdefault(frozenset(name for name, _ in split_options(trial.text)), trial)
    came_to = {_outcome(trial) for trial in (*top, *chosen)}
    for trial in sorted(leaders.values(), key=lambda trial: trial.options):
        is_better = trial.fits and (not now.fits or trial.peak_reserved_bytes < now.peak_reserved_bytes)
        if is_better and _outcome(trial) not in came_to and len(chosen) < _ROWS_SHOWN - len(top):
            chosen.append(trial)
            came_to.add(_outcome(trial))
    return top + [trial for trial in trials if trial in chosen]


def _outcome(trial: Trial) -> tuple[int, ...]:
    return (trial.ooms, trial.peak_reserved_bytes, trial.driver_calls, trial.retries)


def _row(trial: Trial, tuning: Tuning) -> TableRow:
    mark = "◀" if trial == tuning.best else "now" if trial.text == tuning.present.text else ""
    if trial in tuning.frontier:
        mark = f"{mark} ◆".strip()
    peak = text_of_bytes(trial.peak_reserved_bytes)
    if not trial.fits:
        peak = "fails at the end" if trial.reached > _NEARLY_ALL_REACHED else f"fails at {trial.reached:.0%}"
    tone = Tone.GOOD if trial == tuning.best else Tone.PLAIN if trial.fits else Tone.BAD
    return TableRow(
        cells=(_shown_text(trial), mark, peak, f"{trial.driver_calls:,}", str(trial.retries)),
        tone=tone,
    )


def _shown_text(trial: Trial) -> str:
    return ", ".join(f"{name}:{value}" for name, value in split_options(trial.text)) or _NOTHING


def _pictures(tuning: Tuning) -> Iterator[Picture]:
    fitting = [trial for trial in tuning.in_any_room or tuning.trials if trial.fits]
    if not fitting:
        return
    yield Plot(
        title="Peak of reserved memory and number of driver calls; each point is a replay with different settings",
        x_label="driver calls",
        y_label="peak reserved",
        y_is_bytes=True,
        points=tuple(
            Point(
                x=trial.driver_calls,
                y=trial.peak_reserved_bytes,
                tone=Tone.GOOD if trial == tuning.best else Tone.UNSURE if trial == tuning.present else Tone.PLAIN,
                remark=_shown_text(trial),
            )
            for trial in fitting
        ),
        line=tuple((trial.driver_calls, trial.peak_reserved_bytes) for trial in tuning.frontier),
        line_label="no settings have less of both",
        limit=tuning.room_bytes,
        limit_label=f"capacity: {text_of_bytes(tuning.room_bytes)}" if tuning.room_bytes else "",
    )
