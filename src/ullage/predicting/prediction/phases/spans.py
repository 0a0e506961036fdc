"""The phases of a run as spans of the journal: loading, steps, evaluation, saving, resuming, generate.

They are found after the run in what was noted of it (`prediction.phases.hooks`). It knows no torch.
"""

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
    """What a call that begins and ends does."""

    STATE = 0
    """A `state_dict`: of saving, if something is written."""
    WRITE = 1
    READ = 2
    LOAD = 3
    """A model's `load_state_dict`."""
    LOAD_OPTIMIZER = 4
    SAVE = 5
    """A library's own saving, the whole of it."""
    RESTORE = 6
    """A library's own resuming, if there is something to resume from."""
    EVALUATE = 7
    GENERATE = 8


_SAVING: Final = frozenset({NotedCall.STATE, NotedCall.WRITE})
_RESUMING: Final = frozenset({NotedCall.READ, NotedCall.LOAD, NotedCall.LOAD_OPTIMIZER, NotedCall.RESTORE})
_WHOLE: Final = {
    NotedCall.SAVE: PhaseName.SAVING,
    NotedCall.EVALUATE: PhaseName.EVALUATION,
    NotedCall.GENERATE: PhaseName.GENERATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """The calls of modules from outside of any other, in order: columns of equal length; indices in the journal."""

    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    with_grad: tuple[bool, ...] = ()
    training: tuple[bool, ...] = ()
    trained: tuple[bool, ...] = ()
    """Whether a parameter of the module requires a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedCalls:
    """The calls that begin and end: columns of equal length."""

    kinds: tuple[NotedCall, ...] = ()
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    of_other_threads: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptied:
    """What a device had reserved after its cache was emptied: columns of equal length."""

    indices: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What was noted of a run, as indices of the journal."""

    forwards: Forwards
    calls: NotedCalls
    emptied: Emptied
    backward_starts: tuple[int, ...]
    step_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What was done just after entry `begin` of the journal up to and with entry `end`."""

    name: PhaseName
    begin: int
    end: int
    of_other_thread: bool = False


def reached(marks: Marks) -> set[str]:
    """Return what a run has come to after its first step and before the one that has just ended: "eval", "save"."""
    first_step = marks.step_ends[0] if marks.step_ends else _NEVER
    calls = zip(marks.calls.kinds, marks.calls.begins, strict=True)
    kinds = {kind for kind, begin in calls if begin >= first_step}
    evaluating = (marks.forwards.begins[number] >= first_step for number in _evaluating(marks))
    has_evaluated = NotedCall.EVALUATE in kinds or any(evaluating)
    has_saved = bool(kinds & {NotedCall.WRITE, NotedCall.SAVE})
    return {word for word, is_so in (("eval", has_evaluated), ("save", has_saved)) if is_so}


# ---- from notes to spans


def spans_of(marks: Marks, entries: Entries) -> list[Span]:
    """Return the spans of evaluation, saving, resuming and generate, by their beginnings; one may lie in another."""
    whole = _whole(marks.calls)
    main = [span for span in whole if not span.of_other_thread]
    saving = _saving(marks, whole)
    resuming = _resuming(marks)
    stops = sorted(span.begin for span in [*saving, *resuming, *(one for one in main if one.name == PhaseName.SAVING)])
    evaluation = _evaluation(marks, entries, main, stops)
    not_freed = np.flatnonzero(entries["kind"] != EntryKind.FREE)
    found = [_with_frees(span, not_freed, len(entries)) for span in [*saving, *resuming, *evaluation]]
    return sorted([*whole, *found], key=lambda span: (span.begin, -span.end))


def _with_frees(span: Span, not_freed: np.ndarray, length: int) -> Span:
    """Return the span with what is freed just after it: the variables of a function that has returned."""
    at = int(np.searchsorted(not_freed, span.end, side="right"))
    return replace(span, end=int(not_freed[at]) - 1 if at < len(not_freed) else length - 1)


def _whole(calls: NotedCalls) -> list[Span]:
    """Return the calls that are a phase each, without those within another of the same name and thread."""
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


def _saving(marks: Marks, whole: Sequence[Span]) -> list[Span]:
    """Return what was written beside what libraries save as a whole: each with the `state_dict` before it."""
    barriers = _work(marks) + _begins(marks.calls, _RESUMING)
    outer = [span for span in whole if span.name == PhaseName.SAVING]
    return [
        Span(name=PhaseName.SAVING, begin=begin, end=end, of_other_thread=other)
        for kinds, begin, end, other in _groups(marks.calls, _SAVING, barriers)
        if NotedCall.WRITE in kinds and not _is_within(begin, end, outer)
    ]


def _resuming(marks: Marks) -> list[Span]:
    """Return what was read into optimizers, and into models after the first step.

    A model alone that is read before it is trained is not resumed: its weights are loaded.
    """
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
    """Return where something is computed or a step ends: what lies on both sides of it does not belong together."""
    forwards = [begin for begin, trained in zip(marks.forwards.begins, marks.forwards.trained, strict=True) if trained]
    return [*forwards, *marks.backward_starts, *marks.step_ends]


def _groups(
    calls: NotedCalls, wanted: frozenset[NotedCall], barriers: Iterable[int]
) -> list[tuple[set[NotedCall], int, int, bool]]:
    """Put calls together between which no barrier lies: their kinds, where they begin and end, and whose they are."""
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


def _evaluating(marks: Marks) -> list[int]:
    """Return which calls of modules evaluate.

    That is a module with parameters that are trained, in evaluation mode, and without gradients; or with gradients, if
    it is in training mode when it is trained, and no backward pass follows before that.
    """
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
    """Return the first of ascending indices at or after a moment; `_NEVER` if there is none."""
    at = bisect_left(indices, moment)
    return indices[at] if at < len(indices) else int(_NEVER)


def _passes(marks: Marks, evaluating: Sequence[int]) -> list[int]:
    """Return where forward passes of training and backward passes begin; a backward pass may be part of a forward."""
    forwards = marks.forwards
    others = set(range(len(forwards.begins))).difference(evaluating)
    inside = [Span(name=PhaseName.EVALUATION, begin=forwards.begins[at], end=forwards.ends[at]) for at in evaluating]
    backward = [start for start in marks.backward_starts if not _is_within(start, start, inside)]
    return [
        *(forwards.begins[at] for at in others if forwards.trained[at] and forwards.with_grad[at]),
        *backward,
    ]


def _evaluation(marks: Marks, entries: Entries, whole: Sequence[Span], stops: Iterable[int]) -> list[Span]:
    """Return where modules evaluate, beside what libraries evaluate, generate or save as a whole.

    An evaluation lasts from its first module to where gradients are switched on again after its last.
    """
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
    """Return the entries that no evaluation without gradients can have made: of training, or with gradients on."""
    of_main_thread = (entries["flags"] & OTHER_THREAD) == 0
    with_grad = (entries["flags"] & GRAD_ENABLED) != 0
    trains = (entries["phase"] == Phase.BACKWARD) | (entries["phase"] == Phase.OPTIMIZER)
    return np.flatnonzero((of_main_thread & with_grad) | trains | (entries["kind"] == EntryKind.MARK))


def base_spans(marks: Marks, named: Iterable[Span], ran_out_at: int | None) -> list[Span]:
    """Return loading, the first step and the later ones, without what lies in them and has another name.

    Loading ends where the first forward pass of training begins.
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
    """Return the pieces of (low, high] that lie in none of the spans, which are in the order of their beginnings."""
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
    """Return what was done at a moment, from the inside out, if that is neither loading nor a step."""
    names = [
        span.name.value
        for span in spans_of(marks, entries)
        if span.begin <= moment <= span.end and not span.of_other_thread
    ]
    return " in ".join(reversed(names)) or None
