"""Find the beginning and the end of each phase of a run, such as loading, steps and evaluation."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from ullage.gpu.tracing.journal import GRAD_ENABLED, OTHER_THREAD, Entries, EntryKind, Phase
from ullage.predicting.prediction.phases.name import PhaseName

_NEVER: Final = np.iinfo(np.int64).max


class NotedCall(IntEnum):
    """The kind of a recorded call, such as saving or loading a checkpoint."""

    STATE = 0
    """A call of `state_dict`. It belongs to saving if the script writes a file afterwards."""
    WRITE = 1
    READ = 2
    LOAD = 3
    """A call of a model's `load_state_dict`."""
    LOAD_OPTIMIZER = 4
    SAVE = 5
    """A call of a library function that saves a whole checkpoint."""
    RESTORE = 6
    """A call of a library function that resumes from a checkpoint if a checkpoint exists."""
    EVALUATE = 7
    GENERATE = 8
    CREATE_STATE = 9
    """A call that makes an optimizer step with zero gradients, so that the optimizer creates its state."""


_SAVING: Final = frozenset({NotedCall.STATE, NotedCall.WRITE})
_RESUMING: Final = frozenset({NotedCall.READ, NotedCall.LOAD, NotedCall.LOAD_OPTIMIZER, NotedCall.RESTORE})
_WHOLE: Final = {
    NotedCall.SAVE: PhaseName.SAVING,
    NotedCall.EVALUATE: PhaseName.EVALUATION,
    NotedCall.GENERATE: PhaseName.GENERATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """The beginnings and the ends of the outermost module calls, in order."""

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    with_grad: tuple[bool, ...] = ()
    training: tuple[bool, ...] = ()
    trained: tuple[bool, ...] = ()
    """Whether a parameter of the called module requires a gradient, for each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCalls:
    """The beginnings and the ends of the recorded calls."""

    kinds: tuple[NotedCall, ...] = ()
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    of_other_threads: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptied:
    """A GPU's reserved memory at each time that the script emptied the allocator's cache."""

    indices: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The recorded calls, backward passes and steps of a run."""

    forwards: Forwards
    calls: NotedCalls
    emptied: Emptied
    backward_starts: tuple[int, ...]
    step_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A phase of a run, with the allocator events after `begin` up to and including `end`."""

    name: PhaseName
    begin: int
    end: int
    of_other_thread: bool = False


def reached(marks: Marks) -> set[str]:
    """Return the phases ("eval", "save") that the run has reached between its first and its latest step."""
    first_step = marks.step_ends[0] if marks.step_ends else _NEVER
    calls = zip(marks.calls.kinds, marks.calls.begins, strict=True)
    kinds = {kind for kind, begin in calls if begin >= first_step}
    evaluating = (marks.forwards.begins[number] >= first_step for number in _evaluating(marks))
    has_evaluated = NotedCall.EVALUATE in kinds or any(evaluating)
    has_saved = bool(kinds & {NotedCall.WRITE, NotedCall.SAVE})
    return {word for word, is_so in (("eval", has_evaluated), ("save", has_saved)) if is_so}


# ---- from notes to spans


def spans_of(marks: Marks, entries: Entries) -> list[Span]:
    """Return the beginning and the end of each evaluation, saving, resuming and generate phase. Phases may be
    nested.
    """
    whole = _whole(marks.calls)
    main = [span for span in whole if not span.of_other_thread]
    saving = _saving(marks, whole)
    resuming = _resuming(marks)
    stops = sorted(span.begin for span in [*saving, *resuming, *(one for one in main if one.name == PhaseName.SAVING)])
    evaluation = _evaluation(marks, entries, main, stops)
    not_freed = np.flatnonzero(entries["kind"] != EntryKind.FREE)
    found = [_with_frees(span, not_freed, len(entries)) for span in [*saving, *resuming, *evaluation]]
    return sorted([*whole, *found], key=lambda span: (span.begin, -span.end))


# Frees directly after a phase release the local variables of a function that has returned.
def _with_frees(span: Span, not_freed: np.ndarray, length: int) -> Span:
    at = int(np.searchsorted(not_freed, span.end, side="right"))
    return replace(span, end=int(not_freed[at]) - 1 if at < len(not_freed) else length - 1)


def _whole(calls: NotedCalls) -> list[Span]:
    found: list[Span] = []
    for kind, begin, end, other in zip(calls.kinds, calls.begins, calls.ends, calls.of_other_threads, strict=True):
        name = _WHOLE.get(kind)
        if name is None:
            continue
        is_inside = any(
            span.name == name and span.of_other_thread == other and span.begin <= begin and end <= span.end
            for span in found
        )
        if not is_inside:
            found.append(Span(name=name, begin=begin, end=end, of_other_thread=other))
    return found


# The call of `state_dict` comes before the file is written.
def _saving(marks: Marks, whole: Sequence[Span]) -> list[Span]:
    barriers = _work(marks) + _begins(marks.calls, _RESUMING)
    outer = [span for span in whole if span.name == PhaseName.SAVING]
    return [
        Span(name=PhaseName.SAVING, begin=begin, end=end, of_other_thread=other)
        for kinds, begin, end, other in _groups(marks.calls, _SAVING, barriers)
        if NotedCall.WRITE in kinds and not _is_within(begin, end, outer)
    ]


# Loading a model before training does not count, because that loads the initial weights.
def _resuming(marks: Marks) -> list[Span]:
    barriers = _work(marks) + _begins(marks.calls, {NotedCall.WRITE})
    first_step = marks.step_ends[0] if marks.step_ends else _NEVER
    return [
        Span(name=PhaseName.RESUMING, begin=begin, end=end, of_other_thread=other)
        for kinds, begin, end, other in _groups(marks.calls, _RESUMING, barriers)
        if NotedCall.READ in kinds
        and (NotedCall.LOAD_OPTIMIZER in kinds or (NotedCall.LOAD in kinds and begin >= first_step))
    ]


def _begins(calls: NotedCalls, kinds: Collection[NotedCall]) -> list[int]:
    return [begin for kind, begin in zip(calls.kinds, calls.begins, strict=True) if kind in kinds]


def _work(marks: Marks) -> list[int]:
    forwards = [begin for begin, trained in zip(marks.forwards.begins, marks.forwards.trained, strict=True) if trained]
    return [*forwards, *marks.backward_starts, *marks.step_ends]


def _groups(
    calls: NotedCalls, wanted: frozenset[NotedCall], barriers: Iterable[int]
) -> list[tuple[set[NotedCall], int, int, bool]]:
    barriers = sorted(barriers)
    groups: list[tuple[set[NotedCall], int, int, bool]] = []
    for other in (False, True):
        open_group: tuple[set[NotedCall], int, int, bool] | None = None
        rows = zip(calls.begins, calls.ends, calls.kinds, calls.of_other_threads, strict=True)
        for begin, end, kind, is_other in sorted(rows):
            if kind not in wanted or is_other != other:
                continue
            if open_group is not None and not _lies_between(barriers, open_group[2], begin):
                open_group = (open_group[0] | {kind}, open_group[1], max(open_group[2], end), other)
                groups[-1] = open_group
            else:
                open_group = ({kind}, begin, end, other)
                groups.append(open_group)
    return groups


def _lies_between(barriers: Sequence[int], after: int, until: int) -> bool:
    return bisect_right(barriers, after) < bisect_right(barriers, until)


def _is_within(begin: int, end: int, spans: Iterable[Span]) -> bool:
    return any(span.begin <= begin and end <= span.end for span in spans)


# A call with gradients off is evaluation if the module has trainable parameters and is in evaluation mode. With
# gradients on, the module must also be trained in training mode, and no backward pass may follow before the next
# training call.
def _evaluating(marks: Marks) -> list[int]:
    forwards = marks.forwards
    is_pass = [trained and grad for trained, grad in zip(forwards.trained, forwards.with_grad, strict=True)]
    trains = [
        begin
        for begin, it, training in zip(forwards.begins, is_pass, forwards.training, strict=True)
        if it and training
    ]
    found = []
    for number, (begin, end) in enumerate(zip(forwards.begins, forwards.ends, strict=True)):
        if forwards.training[number] or not forwards.trained[number]:
            continue
        if not forwards.with_grad[number]:
            found.append(number)
            continue
        if trains and trains[0] < begin and _first_after(marks.backward_starts, end) >= _first_after(trains, end):
            found.append(number)
    return found


def _first_after(indices: Sequence[int], moment: int) -> int:
    at = bisect_left(indices, moment)
    return indices[at] if at < len(indices) else int(_NEVER)


def _passes(marks: Marks, evaluating: Sequence[int]) -> list[int]:
    forwards = marks.forwards
    others = set(range(len(forwards.begins))).difference(evaluating)
    inside = [Span(name=PhaseName.EVALUATION, begin=forwards.begins[at], end=forwards.ends[at]) for at in evaluating]
    backward = [start for start in marks.backward_starts if not _is_within(start, start, inside)]
    return [
        *(forwards.begins[at] for at in others if forwards.trained[at] and forwards.with_grad[at]),
        *backward,
    ]


# An evaluation ends when gradients are switched on again after its last module call.
def _evaluation(marks: Marks, entries: Entries, whole: Sequence[Span], stops: Iterable[int]) -> list[Span]:
    forwards, evaluating = marks.forwards, _evaluating(marks)
    barriers = sorted([*marks.step_ends, *stops, *_passes(marks, evaluating)])
    borders = _borders(entries)
    spans: list[Span] = []
    for number in evaluating:
        begin, end = forwards.begins[number], forwards.ends[number]
        if _is_within(begin, end, whole):
            continue
        if not forwards.with_grad[number]:
            at = int(np.searchsorted(borders, end, side="right"))
            last = int(borders[at]) - 1 if at < len(borders) else len(entries) - 1
            end = max(end, min(last, _first_after(barriers, end)))
        if spans and not _lies_between(barriers, spans[-1].end, begin):
            spans[-1] = replace(spans[-1], end=max(spans[-1].end, end))
        else:
            spans.append(Span(name=PhaseName.EVALUATION, begin=begin, end=end))
    return spans


def _borders(entries: Entries) -> np.ndarray:
    of_main_thread = (entries["flags"] & OTHER_THREAD) == 0
    with_grad = (entries["flags"] & GRAD_ENABLED) != 0
    trains = (entries["phase"] == Phase.BACKWARD) | (entries["phase"] == Phase.OPTIMIZER)
    return np.flatnonzero((of_main_thread & with_grad) | trains | (entries["kind"] == EntryKind.MARK))


def base_spans(marks: Marks, named: Iterable[Span], ran_out_at: int | None) -> list[Span]:
    """Split a run into loading, the first training step and the later steps. Return the time spans of all three.

    Time spans of other phases, such as evaluation, are cut out.
    """
    begins = _passes(marks, _evaluating(marks))
    ends = list(marks.step_ends)
    if ran_out_at is not None and (begins or ends) and (not ends or ran_out_at > ends[-1]):
        ends.append(ran_out_at)
    start = min([*begins, *ends[:1]], default=None)
    if start is None:
        return []
    borders = [-1, start, *(end for end in ends if end >= start)]
    names = [PhaseName.LOADING, PhaseName.FIRST_STEP, *[PhaseName.STEADY_STEP] * len(ends)]
    cuts = [span for span in named if not span.of_other_thread]
    return [
        Span(name=name, begin=begin, end=end)
        for name, low, high in zip(names, borders, borders[1:], strict=False)
        for begin, end in _without(low, high, cuts)
    ]


def _without(low: int, high: int, cuts: Iterable[Span]) -> list[tuple[int, int]]:
    pieces = []
    for cut in cuts:
        if cut.begin >= high or cut.end <= low:
            continue
        if cut.begin > low:
            pieces.append((low, cut.begin))
        low = max(low, cut.end)
    if low < high:
        pieces.append((low, high))
    return pieces


def name_at(marks: Marks, entries: Entries, moment: int) -> str | None:
    """Return the name of the innermost phase at an allocator event, or None during loading or a step."""
    names = [
        span.name.value
        for span in spans_of(marks, entries)
        if span.begin <= moment <= span.end and not span.of_other_thread
    ]
    return " in ".join(reversed(names)) or None
