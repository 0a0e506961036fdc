"""The rows of what is held over: one for each variable, with its line, its gain, and what to write."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ullage.predicting.prediction.avoidable.assignment import Assignment, assignment_of
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.held_over import HeldOverBlock
from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind
from ullage.training.ownership.holders import BlockHolder
from ullage.training.ownership.holding import HolderKind

if TYPE_CHECKING:
    from ullage.gpu.tracing.source import Line

_ATTRIBUTE: Final = re.compile(r"\.(\w+)(\[[^\]]*\])*$")
_KEY: Final = re.compile(r"^([^\[]* -> \w+)\[.*$")
"""A path into a container that a variable is: what lies in it is one row."""
_IN_CONTAINER: Final = re.compile(r"\[[^\]]*\]$")
_TYPE: Final = re.compile(r" -> \w+(?=\[|\.(?!py:))")
_GRAPH: Final = re.compile(r" -> grad_fn graph.*$")


def rows_of_held_over(held: Sequence[HeldOverBlock], moment: PeakMoment, gains: Gains) -> list[Avoidable]:
    """Return a row for each holder of blocks at the peak, the largest first."""
    groups: defaultdict[tuple[str, str, str], list[HeldOverBlock]] = defaultdict(list)
    for block in held:
        holder = block.holder
        groups[holder.file, holder.function, _KEY.sub(r"\1", _GRAPH.sub("", holder.path))].append(block)
    rows = []
    for blocks in groups.values():
        alive = [block for block in blocks if moment.has(block.number) and block.since < moment.index]
        if alive and moment.is_worth(moment.size_of([block.number for block in alive])):
            rows.append(_row(blocks, alive, moment, gains))
    return sorted(rows, key=lambda row: -row.peak_bytes)


def _row(
    blocks: Sequence[HeldOverBlock], alive: Sequence[HeldOverBlock], moment: PeakMoment, gains: Gains
) -> Avoidable:
    largest = max(alive, key=lambda block: moment.size_of([block.number]))
    holder = largest.holder
    hold = _assigned(holder, moment.stack_of(largest.number))
    row = moment.row(
        AvoidableKind.HELD_OVER,
        [block.number for block in alive],
        gains.with_ends({block.number: block.since for block in blocks}),
        names=_names(holder),
        hold=hold,
        evidence=_evidence(alive, moment),
        remedy=_remedy(holder, hold) + _also(holder),
    )
    variables = dict.fromkeys(name for name in (holder.variable, *holder.others) if name.isidentifier())
    return replace(row, hold_function=holder.function, variables=tuple(variables))


def _names(holder: BlockHolder) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_in_python(path) for path in (holder.path, *holder.others)))


def _also(holder: BlockHolder) -> str:
    others = _names(holder)[1:]
    return f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} to let go of it too" if others else ""


def _in_python(path: str) -> str:
    """Return a path as one writes it, as far as that is possible: self.last, losses[*]."""
    return _TYPE.sub("", path)


def _assigned(holder: BlockHolder, stack: "Sequence[Line]") -> Assignment | None:
    path = _GRAPH.sub("", holder.path)
    attribute = _ATTRIBUTE.search(path)
    names = [attribute[1]] if attribute else []
    names += [holder.variable] if holder.variable else []
    into = _IN_CONTAINER.search(path) is not None
    return assignment_of(names, stack=stack, file=holder.file, function=holder.function, into=into)


def _evidence(alive: Sequence[HeldOverBlock], moment: PeakMoment) -> str:
    count = len(alive)
    what = "a block" if count == 1 else f"{count} blocks"
    now = moment.step_of(moment.index)
    steps = sorted({moment.step_of(block.since) for block in alive})
    of = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    of = "an earlier pass of the same step" if steps == [now] else of
    until = "before it is let go of" if count == 1 else "before they are let go of"
    if not all(block.is_let_go for block in alive):
        until = "in the rest of the run"
    return (
        f"{what} that {of} used last {'is' if count == 1 else 'are'} alive at the peak in step {now}, and no operation "
        f"on the card uses {'it' if count == 1 else 'them'} {until}"
    )


def _remedy(holder: BlockHolder, assigned: Assignment | None) -> str:
    path = _in_python(_GRAPH.sub("", holder.path))
    if holder.in_traceback or holder.kind is HolderKind.TRACEBACK:
        return (
            "keep the exception's text instead of the exception: its traceback keeps the variables of every function "
            "that it has left"
        )
    if holder.kind is HolderKind.GARBAGE:
        return "break the cycle of references, or call gc.collect() at the end of the step"
    if assigned is not None and assigned.adds:
        return f"put a number (.item()) or a copy on the host (.detach().cpu()) there instead of the tensor: {path}"
    if holder.path.endswith(path) is False and holder.variable == path:
        return f"write `del {path}` at the end of the step, or keep {path}.detach() or its number"
    if "." in path and holder.variable == "self":
        return f"set {path} to None at the end of the step, or do not keep it"
    name = holder.variable or path
    return f"write `del {name}` at the end of the step, or put the step into a function, whose variables end with it"
