"""Search for the parallel layouts with which a model fits. Each rank is run alone on one emulated GPU."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from ullage.base.engines.engine import WorkEngine
from ullage.base.errors import ScriptError, UllageError
from ullage.base.secrets import without_secrets
from ullage.base.units import text_of_bytes
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.fit import fits_with, need_of
from ullage.predicting.fitting.search import ProbedNeed
from ullage.predicting.layouts.content_key import ContentKeys
from ullage.predicting.layouts.layout import CardLayout, LayoutSpace
from ullage.predicting.layouts.layout_fit import (
    FAILS,
    FITS,
    NOT_RUN,
    PARTLY,
    LayoutFit,
    LayoutRow,
    RankRun,
    frontier_of,
    ordered,
)
from ullage.predicting.layouts.layout_search import LayoutSearch, Trial
from ullage.predicting.layouts.option_map import CONTEXT, OptionMap, put
from ullage.predicting.layouts.rank_runs import RankAnswer, RankRuns
from ullage.predicting.layouts.representative import ranks_of
from ullage.predicting.layouts.result_store import ResultStore
from ullage.predicting.prediction.data.prediction import Prediction, Verdict
from ullage.predicting.prediction.request import Request

# More than 1, because a layout often waits for its own runs.
_LAYOUTS_PER_RUN: Final = 2
_MOST_THREADS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutQuestion:
    """The request to run with every parallel layout, and the option to vary."""

    request: Request
    space: LayoutSpace
    option_map: OptionMap
    axis: Axis | None
    margin_bytes: int
    every_stage: bool = False
    accumulate: int = 1
    """The number of micro-batches per step."""
    item_tokens: int | None = None
    layout_text: str = ""

    def request_of(self, layout: CardLayout, value: int, rank: int) -> Request:
        """Return the request for a run of one rank of a parallel layout."""
        arguments, environment = put(self.option_map, layout, self.request.arguments)
        if self.axis is not None:
            arguments = self.axis.put_into(arguments, value)
        request = replace(self.request, arguments=arguments, environment=environment)
        return request.with_options(world_size=self.space.cards, rank=rank)

    def fits(self, prediction: Prediction) -> bool:
        """Return whether the run finished without running out of memory."""
        return fits_with(prediction, self.margin_bytes)

    def items_of(self, layout: CardLayout, value: int | None) -> int | None:
        """Return the number of items per step, over all micro-batches and all ranks with different items."""
        if value is None:
            return None
        return value * self.accumulate * prod(layout.size(axis) for axis in self.option_map.items)


@dataclass(slots=True)
class LayoutsSearch:
    """A search for the parallel layouts with which a model fits."""

    question: LayoutQuestion
    runs: RankRuns
    progress: Callable[[str], None]
    rows: dict[CardLayout, LayoutRow] = field(default_factory=dict)

    def run(self, layouts: Sequence[CardLayout]) -> None:
        """Run the script with every layout. If the search is interrupted, the results so far remain.

        With context parallelism, ullage first runs only the first context-parallel rank of each layout. Then it runs
        the other context-parallel ranks of the Pareto-optimal layouts.
        """
        self._look_at_each(layouts, every_context=False)
        while unsure := self._unsure(layouts):
            self._look_at_each(unsure, every_context=True)

    def _unsure(self, layouts: Sequence[CardLayout]) -> list[CardLayout]:
        rows = [self.rows[each] for each in layouts]
        return [rows[place].layout for place in frontier_of(rows, (FITS, PARTLY)) if rows[place].verdict == PARTLY]

    def _look_at_each(self, layouts: Sequence[CardLayout], *, every_context: bool) -> None:
        threads = min(len(layouts), _LAYOUTS_PER_RUN * self.runs.engine.at_once, _MOST_THREADS)
        pool = ThreadPoolExecutor(max(1, threads))
        try:
            waiting = {pool.submit(self._look_at, layout, every_context=every_context) for layout in layouts}
            looked_at = 0
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for each in done:
                    looked_at += 1
                    what = f"every rank along {CONTEXT} of " if every_context else ""
                    self._note(each.result(), f"{what}{looked_at} of {len(layouts)} layouts")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # without this, the next layouts would begin
            self.runs.engine.cancel()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _note(self, row: LayoutRow, how_far: str) -> None:
        self.rows[row.layout] = row
        best = ordered(list(self.rows.values()))[0]
        value = "" if best.value is None else f" with {best.value}"
        so_far = f"; best so far {best.layout.text}{value}" if best.verdict == FITS else ""
        self.progress(f"{how_far}{so_far}")

    def _look_at(self, layout: CardLayout, *, every_context: bool) -> LayoutRow:
        question = self.question
        ranks = ranks_of(layout, question.option_map, every_stage=question.every_stage, every_context=every_context)
        answers: dict[Trial, RankAnswer] = {}

        def run(trials: Sequence[Trial]) -> Mapping[Trial, ProbedNeed]:
            futures = {trial: self.runs.submit(question.request_of(layout, *trial)) for trial in trials}
            answers.update({trial: future.result() for trial, future in futures.items()})
            return {
                trial: need_of(found := answers[trial], fits=isinstance(found, Prediction) and question.fits(found))
                for trial in trials
            }

        search = LayoutSearch(
            ranks=[each.rank for each in ranks],
            axis=question.axis,
            budget_bytes=question.request.total_bytes - question.margin_bytes,
            start=self._start(layout),
        )
        search.run(run)
        value = search.best if search.best is not None else search.next
        found = [
            RankRun(rank=each.rank, stands_for=each.stands_for, fits=question.fits(answer), prediction=answer)
            for each in ranks
            if isinstance(answer := answers.get((value or 0, each.rank)), Prediction)
        ]
        told = [answers.get((value or 0, each.rank)) for each in ranks]
        failed = [error for error in told if isinstance(error, UllageError)]
        shown = value if question.axis is not None else None
        proved = FITS if every_context or layout.size(CONTEXT) == 1 else PARTLY
        return LayoutRow(
            layout=layout,
            verdict=_verdict(found, failed, proved if search.best is not None else None),
            value=shown,
            next_value=search.next if question.axis is not None and search.best is not None else None,
            ranks=tuple(found),
            error=_error_of(failed, answers, search),
            items=question.items_of(layout, shown),
            runs=len(answers),
        )

    def _start(self, layout: CardLayout) -> Sequence[int]:
        axis = self.question.axis
        if axis is None:
            return ()
        row = self.rows.get(layout)
        return axis.start_in(self.question.request.arguments) if row is None or row.value is None else (row.value,)

    def answer(self, layouts: Sequence[CardLayout], *, is_whole: bool, seconds: float) -> LayoutFit:
        """Return the results of all finished runs for the given layouts."""
        question, runs = self.question, self.runs
        known = dict(self.rows)  # ordered by when their runs ended, which must not affect the result
        rows = ordered([known.get(each) or LayoutRow(layout=each, verdict=NOT_RUN) for each in layouts])
        return LayoutFit(
            script=str(question.request.script),
            arguments=list(without_secrets(question.request.arguments)),
            gpu=question.request.gpu.short_name,
            cards=question.space.cards,
            layout=question.layout_text,
            option=question.axis.option if question.axis is not None else None,
            item_tokens=question.item_tokens,
            total_memory_bytes=question.request.total_bytes,
            margin_bytes=question.margin_bytes,
            rows=rows,
            frontier=frontier_of(rows),
            engine=runs.engine.name,
            run_count=runs.run_count,
            known_count=runs.known_count,
            is_whole=is_whole,
            notes=tuple(self._notes(rows)),
            seconds=seconds,
        )

    def _notes(self, rows: Sequence[LayoutRow]) -> Iterable[str]:
        if self.runs.store.problem:
            yield self.runs.store.problem
        if self.question.margin_bytes:
            yield f"A margin of {text_of_bytes(self.question.margin_bytes)} is left free on every GPU"
        seen = dict.fromkeys(note for row in rows for run in row.ranks for note in run.prediction.notes)
        yield from list(seen)[:8]


def _verdict(found: Sequence[RankRun], failed: Sequence[UllageError], proved: str | None) -> str:
    if proved is not None:
        return proved
    if failed:
        return FAILS if all(isinstance(error, ScriptError) for error in failed) else NOT_RUN
    verdicts = {run.prediction.verdict for run in found}
    return (Verdict.DOES_NOT_FIT if Verdict.UNKNOWN not in verdicts else Verdict.UNKNOWN).value


def _error_of(failed: Sequence[UllageError], answers: Mapping[Trial, RankAnswer], search: LayoutSearch) -> str:
    if failed:
        return str(failed[0])
    following = (answer for (value, _), answer in answers.items() if value == search.next)
    error = next((answer for answer in following if isinstance(answer, UllageError)), None)
    return f"with {search.next}: {error}" if error is not None else ""


def fit_layouts(
    question: LayoutQuestion,
    engine: WorkEngine,
    store: ResultStore,
    *,
    picture: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    so_far: Callable[[LayoutFit], None] = lambda answer: None,
) -> LayoutFit:
    """Search for the layouts that fit, each with the largest value of the varied option.

    Args:
        question: the request that is tried with every layout.
        engine: the engine that performs the runs; it is cancelled if the search is interrupted.
        store: the store of results.
        picture: whether to run the best layout's fullest rank again, for its diagrams.
        progress: called with a short text whenever the result of a layout is known.
        so_far: called with the results so far if the search is interrupted, before the interruption is raised again.

    Raises:
        ScriptError: the script failed with every layout; the message is that of the first layout.
    """
    began = time.perf_counter()
    layouts = tuple(question.space.layouts())
    words = [value for _, values in question.space.choices for value in values]
    runs = RankRuns(engine, store, ContentKeys(question.request, words), progress)
    search = LayoutsSearch(question, runs, progress)

    try:
        search.run(layouts)
    except BaseException:
        with suppress(Exception):
            so_far(search.answer(layouts, is_whole=False, seconds=time.perf_counter() - began))
        raise
    found = search.answer(layouts, is_whole=True, seconds=time.perf_counter() - began)
    if found.exit_code == ScriptError.exit_code:
        first = found.rows[0]
        raise ScriptError(f"with each of {len(layouts)} layouts; with {first.layout.text}: {first.error}")
    return _with_picture(found, question, runs) if picture else found


def _with_picture(found: LayoutFit, question: LayoutQuestion, runs: RankRuns) -> LayoutFit:
    best = found.best
    if best is None or (fullest := best.fullest) is None:
        return found
    request = replace(question.request_of(best.layout, best.value or 0, fullest.rank), picture=True)
    drawn = runs.submit(request).result()
    if not isinstance(drawn, Prediction):
        return found
    ranks = tuple(replace(run, prediction=drawn) if run.rank == fullest.rank else run for run in best.ranks)
    return replace(found, rows=(replace(best, ranks=ranks), *found.rows[1:]))
