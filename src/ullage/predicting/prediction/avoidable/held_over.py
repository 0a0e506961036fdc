"""Find memory blocks of earlier training passes that no operator uses any more but that are alive at the memory peak.

A block that lives until the end of the run could still be used later. It counts only if every pass keeps one more block
of the same kind and no later pass uses them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import Phase
from ullage.predicting.prediction.avoidable.assignment import Assignment, assignment_of
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.holder_watch import SeenHolder
from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.avoidable.uses import LastUses, TrainingPasses
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind
from ullage.predicting.prediction.observation.role import Lives
from ullage.training.ownership.holders import BlockHolder
from ullage.training.ownership.holding import HolderKind

if TYPE_CHECKING:
    from ullage.gpu.tracing.source import Line

# Blocks with these roles normally stay alive after a training step.
_STAYS: Final = frozenset((Role.PARAMETERS, Role.GRADIENTS, Role.OPTIMIZER_STATE, Role.BUFFERS, Role.WORKSPACES))
# Memory that only such objects hold is lost to the script.
_UNREACHABLE: Final = frozenset((HolderKind.GARBAGE, HolderKind.TRACEBACK))
_PASSES_NEEDED: Final = 2
_ATTRIBUTE: Final = re.compile(r"\.(\w+)(\[[^\]]{0,500}\]){0,20}$")
# The path of a container, without the index of an element.
_KEY: Final = re.compile(r"^([^\[]* -> \w+)\[.*$")
_IN_CONTAINER: Final = re.compile(r"\[[^\]]{0,500}\]$")
_TYPE: Final = re.compile(r" -> \w+(?=\[|\.(?!py:))")
_GRAPH: Final = re.compile(r" -> grad_fn graph.*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOverBlock:
    """A memory block that stays alive after its last use."""

    number: int
    """The index of the memory block among all blocks of the run."""
    since: int
    """The index of the allocator event after which the script could have freed the block."""
    of_pass: int
    """The last training pass in which an operator used the block."""
    is_let_go: bool
    """Whether the script freed the block during the run."""
    holder: BlockHolder


def held_over(
    lives: Lives,
    roles: Sequence[Role],
    uses: LastUses,
    passes: TrainingPasses,
    seen: Iterable[SeenHolder],
    *,
    device: int,
    end: int,
) -> list[HeldOverBlock]:
    """Return the memory blocks that stay alive after their last use.

    Args:
        lives: the times of allocation and free of all blocks.
        roles: the roles of the blocks.
        uses: the last uses of the blocks.
        passes: the training passes of the run.
        seen: the holders that ullage recorded before the passes.
        device: the number of the device whose blocks are searched.
        end: the number of allocator events when the run ended or ran out of memory. Later frees do not count.
    """
    holders: defaultdict[int, list[SeenHolder]] = defaultdict(list)
    for one in seen:
        holders[one.address].append(one)
    made_in = passes.at(lives.born)
    found = []
    for number in _candidates(lives, roles, made_in, passes, device).tolist():
        of_pass = int(max(made_in[number], uses.last_pass[number], 1))
        done = int(passes.done[of_pass - 1])
        if done < 0:
            continue
        since = max(done, int(uses.when[number]), int(lives.born[number]))
        died = int(lives.died[number])
        if died <= since + 1:
            continue
        of_address = holders[int(lives.entries["address"][number])]
        holder = next((one.holder for one in of_address if since < one.index <= died), None)
        if holder is None:
            continue
        is_let_go = died < end
        # No earlier pass used the block. Filling a batch between two passes does not count as a use.
        is_between = made_in[number] == of_pass - 1 and (of_pass == 1 or lives.born[number] > passes.done[of_pass - 2])
        is_once = uses.first_pass[number] >= of_pass or bool(is_between)
        is_seen_idle = of_pass < len(passes) and bool(
            passes.has_stepped[of_pass]
        )  # a whole pass was run after the last use
        if is_let_go or (is_once and is_seen_idle):
            found.append(HeldOverBlock(number=number, since=since, of_pass=of_pass, is_let_go=is_let_go, holder=holder))
    return _without_chance(found, lives)


def _candidates(
    lives: Lives, roles: Sequence[Role], made_in: np.ndarray, passes: TrainingPasses, device: int
) -> np.ndarray:
    is_input = np.array([role is Role.INPUTS for role in roles], np.bool_)
    is_made = (
        ((made_in >= 1) | is_input) & (lives.entries["device"] == device) & (lives.entries["phase"] != Phase.OPTIMIZER)
    )
    numbers = np.flatnonzero(is_made)
    numbers = numbers[lives.died[numbers] > passes.done[np.maximum(made_in[numbers], 1) - 1]]
    return np.array([number for number in numbers.tolist() if roles[number] not in _STAYS], np.int64)


# A block that lives until the end stays in the result if every pass leaves such a block, or if the script cannot use it
# later.
def _without_chance(found: Sequence[HeldOverBlock], lives: Lives) -> list[HeldOverBlock]:
    kept: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for block in found:
        kept[_likeness(block, lives)].add(block.of_pass)
    return [
        block
        for block in found
        if block.is_let_go
        or block.holder.kind in _UNREACHABLE
        or block.holder.in_traceback
        or len(kept[_likeness(block, lives)]) >= _PASSES_NEEDED
    ]


def _likeness(block: HeldOverBlock, lives: Lives) -> tuple[int, str]:
    # The size is not part of the key: equal requests get blocks of several sizes if a free block is not split.
    return int(lives.entries["stack"][block.number]), block.holder.path


def rows_of_held_over(held: Sequence[HeldOverBlock], moment: PeakMoment, gains: Gains) -> list[Avoidable]:
    """Return one report row for each variable that holds unused memory at the memory peak, largest first."""
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
    return f"; {', '.join(others)} must release it too" if others else ""


def _in_python(path: str) -> str:
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
    until = "before it is freed" if count == 1 else "before they are freed"
    if not all(block.is_let_go for block in alive):
        until = "in the rest of the run"
    return (
        f"{what} last used in {of} {'is' if count == 1 else 'are'} alive at the peak in step {now}, and no operation "
        f"on the GPU uses {'it' if count == 1 else 'them'} {until}"
    )


def _remedy(holder: BlockHolder, assigned: Assignment | None) -> str:
    path = _in_python(_GRAPH.sub("", holder.path))
    if holder.in_traceback or holder.kind is HolderKind.TRACEBACK:
        return (
            "keep the text of the exception instead of the exception: its traceback holds the local variables of every "
            "function on the call stack"
        )
    if holder.kind is HolderKind.GARBAGE:
        return "break the reference cycle, or call gc.collect() at the end of the step"
    if assigned is not None and assigned.adds:
        return f"store a number (.item()) or a copy on the host (.detach().cpu()) in place of the tensor: {path}"
    if holder.path.endswith(path) is False and holder.variable == path:
        return f"write `del {path}` at the end of the step, or keep {path}.detach() or its number (.item())"
    if "." in path and holder.variable == "self":
        return f"set {path} to None at the end of the step, or do not keep it"
    name = holder.variable or path
    return (
        f"write `del {name}` at the end of the step, or move the step into a function, whose local variables are "
        "released when it returns"
    )
