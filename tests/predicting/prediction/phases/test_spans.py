"""The spans of a run's phases, from what was noted of it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ullage.gpu.tracing.journal import ENTRY, Entries, EntryKind, Phase
from ullage.predicting.prediction.data.prediction import PhaseUse
from ullage.predicting.prediction.description.tables import moment_of_peak
from ullage.predicting.prediction.phases.name import PhaseName
from ullage.predicting.prediction.phases.spans import (
    Emptied,
    Forwards,
    Marks,
    NotedCall,
    NotedCalls,
    Span,
    base_spans,
    name_at,
    reached,
    spans_of,
)

SAVING, EVALUATION = PhaseName.SAVING, PhaseName.EVALUATION


def journal(length: int, *, quiet: range | None = None, trains: range | None = None) -> Entries:
    """A journal of allocations with gradients on, but for those of an evaluation."""
    entries = np.zeros(length, ENTRY)
    entries["kind"] = EntryKind.ALLOC
    entries["flags"] = 1
    if quiet is not None:
        entries["flags"][list(quiet)] = 0
    if trains is not None:
        entries["phase"][list(trains)] = Phase.BACKWARD
    return entries


def marks(
    *calls: tuple[NotedCall, int, int] | tuple[NotedCall, int, int, bool],
    forwards: tuple[tuple[int, int, str], ...] = (),
    backward: tuple[int, ...] = (),
    step_ends: tuple[int, ...] = (),
) -> Marks:
    """Notes of a run; a forward is (begin, end, letters): g with gradients, t in training mode, p trained."""
    whole = [(*call, False)[:4] for call in calls]
    return Marks(
        forwards=Forwards(
            begins=tuple(begin for begin, _, _ in forwards),
            ends=tuple(end for _, end, _ in forwards),
            with_grad=tuple("g" in how for _, _, how in forwards),
            training=tuple("t" in how for _, _, how in forwards),
            trained=tuple("p" in how for _, _, how in forwards),
        ),
        calls=NotedCalls(
            kinds=tuple(call[0] for call in whole),
            begins=tuple(call[1] for call in whole),
            ends=tuple(call[2] for call in whole),
            of_other_threads=tuple(call[3] for call in whole),
        ),
        emptied=Emptied(),
        backward_starts=backward,
        step_ends=step_ends,
    )


def spans(noted: Marks, entries: Entries | None = None) -> list[tuple[str, int, int]]:
    found = spans_of(noted, journal(100) if entries is None else entries)
    return [(span.name.value, span.begin, span.end) for span in found]


def test_what_is_written_belongs_together_with_the_state_before_it() -> None:
    noted = marks(
        (NotedCall.STATE, 10, 12), (NotedCall.STATE, 13, 13), (NotedCall.WRITE, 15, 18), (NotedCall.WRITE, 19, 20)
    )
    assert spans(noted) == [("saving", 10, 20)]


def test_a_state_of_which_nothing_is_written_is_no_saving() -> None:
    assert spans(marks((NotedCall.STATE, 10, 12))) == []
    apart = marks((NotedCall.STATE, 10, 12), (NotedCall.WRITE, 30, 31), step_ends=(20,))
    assert spans(apart) == [("saving", 30, 31)]


def test_a_library_saves_as_a_whole() -> None:
    noted = marks(
        (NotedCall.SAVE, 10, 30), (NotedCall.STATE, 11, 12), (NotedCall.WRITE, 13, 14), (NotedCall.SAVE, 15, 20)
    )
    assert spans(noted) == [("saving", 10, 30)]


def test_weights_that_are_loaded_are_not_resumed() -> None:
    assert spans(marks((NotedCall.READ, 1, 5), (NotedCall.LOAD, 6, 7))) == []
    both = marks((NotedCall.READ, 1, 5), (NotedCall.LOAD, 6, 7), (NotedCall.LOAD_OPTIMIZER, 8, 9))
    assert spans(both) == [("resuming", 1, 9)]
    in_memory = marks((NotedCall.LOAD, 6, 7), (NotedCall.LOAD_OPTIMIZER, 8, 9))
    assert spans(in_memory) == []
    after_a_step = marks((NotedCall.READ, 30, 31), (NotedCall.LOAD, 32, 33), step_ends=(20,))
    assert spans(after_a_step) == [("resuming", 30, 33)]


def test_an_evaluation_lasts_until_gradients_are_on_again() -> None:
    noted = marks(forwards=((5, 8, "gtp"), (20, 22, "p"), (25, 27, "p")), backward=(9,), step_ends=(15,))
    assert spans(noted, journal(60, quiet=range(18, 40))) == [("evaluation", 20, 39)]


@pytest.mark.parametrize("how", ["tp", "t", ""], ids=["in training mode", "of no trained module", "of a frozen one"])
def test_what_runs_without_gradients_in_a_step_is_none(how: str) -> None:
    assert spans(marks(forwards=((20, 22, how),), step_ends=(15,)), journal(60, quiet=range(18, 40))) == []


def test_an_evaluation_with_gradients_that_nothing_goes_back_through() -> None:
    trains, evaluates, trains_again = (5, 8, "gtp"), (20, 22, "gp"), (30, 32, "gtp")
    noted = marks(forwards=(trains, evaluates, trains_again), backward=(9, 33), step_ends=(15, 40))
    assert spans(noted) == [("evaluation", 20, 22)]
    with_forces = marks(forwards=(trains, evaluates, trains_again), backward=(9, 21, 33), step_ends=(15, 40))
    assert spans(with_forces) == [("evaluation", 20, 22)]
    frozen_statistics = marks(forwards=((5, 8, "gp"), (20, 22, "gp")), backward=(9, 23), step_ends=(15, 40))
    assert spans(frozen_statistics) == []


def test_two_evaluations_have_a_step_between_them() -> None:
    noted = marks(forwards=((20, 22, "p"), (30, 32, "gtp"), (50, 52, "p")), backward=(33,), step_ends=(15, 40))
    entries = journal(60, quiet=range(18, 60))
    entries["flags"][24:46] = 1
    assert spans(noted, entries) == [("evaluation", 20, 23), ("evaluation", 50, 59)]


def test_a_generate_inside_an_evaluation_is_part_of_it() -> None:
    noted = marks((NotedCall.EVALUATE, 18, 45), (NotedCall.GENERATE, 25, 30), forwards=((20, 22, "p"), (26, 27, "p")))
    assert spans(noted) == [("evaluation", 18, 45), ("generate", 25, 30)]
    assert name_at(noted, journal(100), 26) == "generate in evaluation"
    assert name_at(noted, journal(100), 50) is None


def test_what_is_freed_after_a_save_is_its_variables() -> None:
    entries = journal(60)
    entries["kind"][31:34] = EntryKind.FREE
    assert spans(marks((NotedCall.WRITE, 20, 30)), entries) == [("saving", 20, 33)]


def test_loading_and_steps_are_what_is_left() -> None:
    noted = marks(forwards=((10, 12, "gtp"),), backward=(13,), step_ends=(20, 40, 60))
    named = [Span(name=EVALUATION, begin=3, end=5), Span(name=SAVING, begin=25, end=30)]
    found = [(span.name.value, span.begin, span.end) for span in base_spans(noted, named, None)]
    assert found == [
        ("loading", -1, 3),
        ("loading", 5, 10),
        ("first step", 10, 20),
        ("steady step", 20, 25),
        ("steady step", 30, 40),
        ("steady step", 40, 60),
    ]


def test_a_thread_that_saves_cuts_no_step() -> None:
    noted = marks((NotedCall.WRITE, 22, 38, True), forwards=((10, 12, "gtp"),), backward=(13,), step_ends=(20, 40))
    named = spans_of(noted, journal(60))
    assert [(span.name, span.of_other_thread) for span in named] == [(SAVING, True)]
    assert [(span.begin, span.end) for span in base_spans(noted, named, None)] == [(-1, 10), (10, 20), (20, 40)]
    assert name_at(noted, journal(60), 30) is None


def test_a_step_in_which_memory_runs_out_counts() -> None:
    noted = marks(forwards=((10, 12, "gtp"),))
    assert [span.name.value for span in base_spans(noted, [], 30)] == ["loading", "first step"]
    assert base_spans(marks(), [], 30) == []


def test_what_a_run_has_come_to() -> None:
    before = marks((NotedCall.EVALUATE, 2, 4), (NotedCall.WRITE, 5, 6), step_ends=(20,))
    assert reached(before) == set()
    after = marks((NotedCall.WRITE, 25, 26), forwards=((22, 23, "p"),), step_ends=(20, 40))
    assert reached(after) == {"eval", "save"}


def _use(name: str, allocated: int, before: int, first_step: int = 0, count: int = 1) -> PhaseUse:
    return PhaseUse(
        name=name,
        first_step=first_step,
        count=count,
        before_bytes=before,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=allocated,
        file="train.py",
        line=1,
    )


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        (_use("evaluation", 9, 2, 2), "at the peak in evaluation, after step 2"),
        (_use("evaluation", 9, 2, 2, count=3), "at the peak in evaluation"),
        (_use("evaluation", 7, 2, 2), "at the peak in step 3"),
        (_use("evaluation", 9, 9, 2), "at the peak in step 3"),
    ],
)
def test_the_moment_of_the_peak_is_that_of_its_phase(evaluation: PhaseUse, said: str) -> None:
    """Its step counts from the end of the one before, so that an evaluation lies in the step that follows."""
    phases = [_use("loading", 1, 0), _use("steady step", 8, 2, 2, 3), evaluation]
    found: Any = SimpleNamespace(phases=phases, runs=[], arguments=[], peak_allocated_bytes=9, peak_step=3)
    assert moment_of_peak(found) == said
    found.runs = [SimpleNamespace(arguments=["a"], phases=[]), SimpleNamespace(arguments=[], phases=phases)]
    found.phases = [*phases, _use("resuming", 9, 0)]  # the whole of the second run, in the table of the first
    assert moment_of_peak(found) == said
