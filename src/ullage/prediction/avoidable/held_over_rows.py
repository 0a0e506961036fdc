"""The rows of what is held over: one for each variable, with its line, its gain, and what to write."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ullage.ownership.holders import BlockHolder
from ullage.ownership.holding import HolderKind
from ullage.prediction.avoidable.assignment import assignment_of
from ullage.prediction.avoidable.avoidable import Avoidable, AvoidableKind
from ullage.prediction.avoidable.gain import Gains
from ullage.prediction.avoidable.held_over import HeldBlock
from ullage.prediction.avoidable.moment import Moment

if TYPE_CHECKING:
    from ullage.tracing.source import Line

_ATTRIBUTE: Final = re.compile(r"\.(\w+)(\[[^\]]*\])*$")
_KEY: Final = re.compile(r"^([^\[]* -> \w+)\[.*$")
"""A path into a container that a variable is: what lies in it is one row."""
_IN_CONTAINER: Final = re.compile(r"\[[^\]]*\]$")
_GRAPH: Final = re.compile(r" -> grad_fn graph.*$")


def rows_of(held: Sequence[HeldBlock], moment: Moment, gains: Gains) -> list[Avoidable]:
    """Return a row for each holder of blocks at the peak, the largest first."""
    groups: defaultdict[tuple[str, str, str], list[HeldBlock]] = defaultdict(list)
    for block in held:
        holder = block.holder
        groups[holder.file, holder.function, _KEY.sub(r"\1", holder.path)].append(block)
    rows = []
    for blocks in groups.values():
        alive = [block for block in blocks if moment.has(block.number) and block.since < moment.index]
        size = moment.size_of([block.number for block in alive])
        if moment.is_worth(size):
            rows.append(_row(blocks, alive, size, moment, gains))
    return sorted(rows, key=lambda row: -row.peak_bytes)


def _row(blocks: Sequence[HeldBlock], alive: Sequence[HeldBlock], size: int, moment: Moment, gains: Gains) -> Avoidable:
    peaks = gains.without({block.number: block.since for block in blocks})
    largest = max(alive, key=lambda block: moment.size_of([block.number]))
    holder = largest.holder
    line = moment.line_of(largest.number)
    hold = _assigned(holder, moment.stack_of(largest.number))
    return Avoidable(
        kind=AvoidableKind.HELD_OVER,
        peak_bytes=size,
        gain_bytes=moment.allocated_bytes - peaks.allocated_bytes,
        gain_reserved_bytes=moment.gain_reserved(peaks.reserved_bytes),
        blocks=len(alive),
        names=_names(holder),
        file=line.file if line else None,
        line=line.line if line else None,
        function=line.function if line else None,
        module=moment.module_of(largest.number),
        hold_file=hold[0] if hold else None,
        hold_line=hold[1] if hold else None,
        evidence=_evidence(alive, moment),
        remedy=_remedy(holder),
    )


def _names(holder: BlockHolder) -> tuple[str, ...]:
    return tuple(dict.fromkeys([holder.path, *holder.others]))


def _assigned(holder: BlockHolder, stack: "Sequence[Line]") -> tuple[str, int] | None:
    path = _GRAPH.sub("", holder.path)
    attribute = _ATTRIBUTE.search(path)
    names = [attribute[1]] if attribute else []
    names += [holder.variable] if holder.variable else []
    into = _IN_CONTAINER.search(path) is not None
    return assignment_of(names, stack=stack, file=holder.file, function=holder.function, into=into)


def _evidence(alive: Sequence[HeldBlock], moment: Moment) -> str:
    count = len(alive)
    what = "a block" if count == 1 else f"{count} blocks"
    steps = sorted({moment.step_of(block.since) for block in alive})
    of = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    until = "before it is let go of" if count == 1 else "before they are let go of"
    if not all(block.is_let_go for block in alive):
        until = "in the rest of the run"
    return (
        f"{what} that {of} used last {'is' if count == 1 else 'are'} alive at the peak in step "
        f"{moment.step_of(moment.index)}, and no operation on the card uses {'it' if count == 1 else 'them'} {until}"
    )


def _remedy(holder: BlockHolder) -> str:
    path = _GRAPH.sub("", holder.path)
    name = holder.variable or path
    if holder.kind is HolderKind.TRACEBACK:
        return "let go of the exception: its traceback keeps the variables of every function that it has left"
    if holder.kind is HolderKind.GARBAGE:
        return "break the cycle of references, or call gc.collect() at the end of the step"
    if path != holder.path:
        return f"keep {path}.detach(), or its number by .item(), instead of what a graph hangs on"
    if _ATTRIBUTE.search(path):
        return f"set {path} to None at the end of the step, or do not keep it"
    if _IN_CONTAINER.search(path):
        return f"put .item() or .detach().cpu() of it into {name}, or empty {name} at the end of the step"
    return f"write `del {name}` at the end of the step, or put the step into a function, whose variables end with it"
