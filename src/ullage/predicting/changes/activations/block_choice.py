"""Choose which repeated blocks to checkpoint, to save enough memory with little recomputation."""

# Blocks run in order, and the backward pass runs from the last block to the first. A checkpointed block keeps only its
# input until its own backward pass. Then it allocates everything that it saves again, at a time when all earlier blocks
# still keep their activations. So an early block saves as much as a late block of the same size, and at a lower peak.
#
# Settings: "all", "every_second", "first:6", and "only:layer1.0-2,layer3.4" with list names and block numbers. Blocks
# are counted over all lists, in the order in which the lists are registered.

import re
from collections.abc import Sequence
from typing import Final

from ullage.base.errors import UsageError, quoted

ALL, EVERY_SECOND, FIRST, ONLY = "all", "every_second", "first:", "only:"
Position = tuple[int, int]
"""The position of a module among the model's repeated blocks: (index of the module list, index in that list)."""
# The search compares at most this many selections of blocks. With more, it drops some and may miss the best one.
_MOST_STATES: Final = 4096
# Blocks are selected for this many memory targets, from small savings to the largest possible saving.
_STEPS: Final = 64
# A selection of blocks to checkpoint: operations to recompute, bytes saved, and block numbers.
_State = tuple[int, int, tuple[int, ...]]


def choose_blocks(saved_bytes: Sequence[int], flops: Sequence[int], needed_bytes: int) -> tuple[int, ...]:
    """Return the numbers of the blocks to checkpoint, in ascending order.

    If no selection saves enough, return all blocks that save any memory.

    Args:
        saved_bytes: the bytes that each block keeps for the backward pass, without its input and output, in the order
            in which the blocks run.
        flops: the floating-point operations of each block's forward pass, which checkpointing runs a second time.
        needed_bytes: the number of bytes by which the peak has to fall.
    """
    if needed_bytes <= 0:
        return ()
    limit = sum(saved_bytes) - needed_bytes
    states: list[_State] = [(0, 0, ())]
    before = 0
    for number, (size, cost) in enumerate(zip(saved_bytes, flops, strict=True)):
        chosen = [
            (operations + cost, saved + size, (*blocks, number))
            for operations, saved, blocks in states
            if size > 0 and before - saved + size <= limit
        ]
        states = _best(states + chosen)
        before += size
    enough = [state for state in states if state[1] >= needed_bytes]
    if not enough:
        return tuple(number for number, size in enumerate(saved_bytes) if size > 0)
    return min(enough, key=lambda state: (state[0], state[2]))[2]


def choices(saved_bytes: Sequence[int], flops: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the sets of model blocks to try for activation checkpointing.

    Each set saves much memory for little recomputation.
    """
    total = sum(size for size in saved_bytes if size > 0)
    if len(set(zip(saved_bytes, flops, strict=True))) == 1:
        return [tuple(range(count)) for count in range(1, len(saved_bytes) + 1)]
    found = (choose_blocks(saved_bytes, flops, max(1, total * step // _STEPS)) for step in range(1, _STEPS + 1))
    return [each for each in dict.fromkeys(found) if each]


def _best(states: Sequence[_State]) -> list[_State]:
    found: list[_State] = []
    for state in sorted(states, key=lambda each: (each[0], -each[1], each[2])):
        if not found or state[1] > found[-1][1]:
            found.append(state)
    if len(found) <= _MOST_STATES:
        return found
    step = len(found) / _MOST_STATES
    return [found[int(number * step)] for number in range(_MOST_STATES)] + [found[-1]]


# ---- settings


def positions(setting: str, lists: Sequence[tuple[str, int]]) -> list[Position]:
    """Return the blocks that a setting such as "first:6" selects.

    Args:
        setting: the setting as text.
        lists: the path of each list of blocks, and the number of blocks in the list.

    Raises:
        UsageError: the setting does not name blocks, or names blocks that do not exist.
    """
    every = [(number, place) for number, (_, count) in enumerate(lists) for place in range(count)]
    if setting == ALL:
        return every
    if setting == EVERY_SECOND:
        return every[::2]
    if found := re.fullmatch(r"first:(\d+)", setting):
        return every[: int(found[1])]
    if setting.startswith(ONLY):
        chosen = [each for part in setting.removeprefix(ONLY).split(",") for each in _ranged(part, lists)]
        return sorted(set(chosen))
    raise UsageError(
        f"{quoted(setting)} names no blocks; expected all, every_second, first:NUMBER or only:LIST.FIRST-LAST,..."
    )


def _ranged(part: str, lists: Sequence[tuple[str, int]]) -> list[Position]:
    found = re.fullmatch(r"(?:(.*)\.)?(\d+)(?:-(\d+))?", part)
    path = (found[1] or "") if found else ""
    numbers = [number for number, (known, _) in enumerate(lists) if known == path]
    if not found or not numbers:
        raise UsageError(f"{quoted(part)} is not a block of the model; its block lists are {_shown(lists)}")
    first, last = int(found[2]), int(found[3] or found[2])
    if last >= lists[numbers[0]][1] or first > last:
        raise UsageError(f"{quoted(part)} is out of range; the model's block lists are {_shown(lists)}")
    return [(numbers[0], place) for place in range(first, last + 1)]


def _shown(lists: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{path or '(the model)'} with {count} blocks" for path, count in lists) or "none"


def setting_of(chosen: Sequence[Position], lists: Sequence[tuple[str, int]]) -> str:
    """Return the shortest text that names the given model blocks, such as "first:6" for the first six blocks."""
    every = [(number, place) for number, (_, count) in enumerate(lists) for place in range(count)]
    chosen = sorted(set(chosen))
    if chosen == every:
        return ALL
    if chosen == every[::2]:
        return EVERY_SECOND
    if chosen == every[: len(chosen)]:
        return f"first:{len(chosen)}"
    return ONLY + ",".join(_range_text(lists[number][0], first, last) for number, first, last in runs(chosen))


def _range_text(path: str, first: int, last: int) -> str:
    numbers = str(first) if first == last else f"{first}-{last}"
    return f"{path}.{numbers}" if path else numbers


def runs(chosen: Sequence[Position]) -> list[tuple[int, int, int]]:
    """Group adjacent blocks, and return the list index, first block and last block of each group."""
    found: list[tuple[int, int, int]] = []
    for number, place in sorted(chosen):
        if found and found[-1][0] == number and found[-1][2] == place - 1:
            found[-1] = (number, found[-1][1], place)
        else:
            found.append((number, place, place))
    return found


def expression(model: str, setting: str, lists: Sequence[tuple[str, int]]) -> str:
    """Return a Python expression for the model blocks that a setting names, such as "first:6"."""
    whole = [_path(model, path) for path, _ in lists]
    if setting in (ALL, EVERY_SECOND) or setting.startswith("first:"):
        step = {ALL: "", EVERY_SECOND: "[::2]"}.get(setting, f"[:{setting.removeprefix('first:')}]")
        if len(whole) == 1:
            return f"{whole[0]}{step}"
        return f"[{', '.join('*' + each for each in whole)}]{step}"
    chosen = runs(positions(setting, lists))
    if len(chosen) == 1 and chosen[0][1] < chosen[0][2]:
        number, first, last = chosen[0]
        return f"{whole[number]}[{first}:{last + 1}]"
    parts = [
        f"{whole[number]}[{first}]" if first == last else f"*{whole[number]}[{first}:{last + 1}]"
        for number, first, last in chosen
    ]
    return f"[{', '.join(parts)}]"


def _path(model: str, path: str) -> str:
    if not path:
        return model
    parts = path.split(".")
    if all(part.isidentifier() or part.isdigit() for part in parts):
        return model + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
    return f'{model}.get_submodule("{path}")'
