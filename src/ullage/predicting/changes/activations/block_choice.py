"""Which repeated blocks to checkpoint so that enough is saved at the least computation, and settings that name them.

Blocks run in their order, and the backward pass goes back from the last one. A block that is checkpointed keeps its
input alone until the backward pass comes to it, and then, once more, all that it saves: beside what the blocks before
it have kept. So an early block saves as much as a late one of the same size, and costs less at that moment.

Settings: "all", "every_second", "first:6", and "only:layer1.0-2,layer3.4" by list and number. Blocks are counted
through all lists in the order in which they are registered.
"""

import re
from collections.abc import Sequence
from typing import Final

from ullage.base.errors import UsageError, quoted

ALL, EVERY_SECOND, FIRST, ONLY = "all", "every_second", "first:", "only:"
Position = tuple[int, int]
"""The number of a list, and a block's place in it."""
_MOST_STATES: Final = 4096
"""The number of selections that are kept side by side; beyond it the choice is the best of these, which may not be
the best of all."""
_STEPS: Final = 64
"""The number of needs, from little to all that can be saved, for which a selection is offered."""
_State = tuple[int, int, tuple[int, ...]]
"""The operations, the bytes saved, and the blocks that are chosen."""


def choose_blocks(saved_bytes: Sequence[int], flops: Sequence[int], needed_bytes: int) -> tuple[int, ...]:
    """Return the numbers of the blocks to checkpoint, ascending; all that save something where nothing is enough.

    Args:
        saved_bytes: what each block keeps for the backward pass beside its input and output, in the order in which
            the blocks run.
        flops: the floating-point operations of each block's forward pass, which would run once more.
        needed_bytes: what has to be saved of the peak.
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
    """Return the selections that are worth a run, each with what it saves at the least computation, the least first."""
    total = sum(size for size in saved_bytes if size > 0)
    if len(set(zip(saved_bytes, flops, strict=True))) == 1:
        return [tuple(range(count)) for count in range(1, len(saved_bytes) + 1)]
    found = (choose_blocks(saved_bytes, flops, max(1, total * step // _STEPS)) for step in range(1, _STEPS + 1))
    return [each for each in dict.fromkeys(found) if each]


def _best(states: Sequence[_State]) -> list[_State]:
    """Return the selections of which none saves at least as much for no more operations, early blocks first."""
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
    """Return the blocks that a setting names.

    Args:
        setting: the setting's text.
        lists: the path of each list, and the number of its blocks.

    Raises:
        UsageError: it names none, or one that is not there.
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
        raise UsageError(f"{quoted(part)} is no block of the model; its lists are {_shown(lists)}")
    first, last = int(found[2]), int(found[3] or found[2])
    if last >= lists[numbers[0]][1] or first > last:
        raise UsageError(f"{quoted(part)} is out of range; the model's lists are {_shown(lists)}")
    return [(numbers[0], place) for place in range(first, last + 1)]


def _shown(lists: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{path or '(the model)'} with {count}" for path, count in lists) or "none"


def setting_of(chosen: Sequence[Position], lists: Sequence[tuple[str, int]]) -> str:
    """Return the shortest setting that names blocks."""
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
    """Return blocks as runs that lie side by side in a list: the list's number, the first and the last place."""
    found: list[tuple[int, int, int]] = []
    for number, place in sorted(chosen):
        if found and found[-1][0] == number and found[-1][2] == place - 1:
            found[-1] = (number, found[-1][1], place)
        else:
            found.append((number, place, place))
    return found


def expression(model: str, setting: str, lists: Sequence[tuple[str, int]]) -> str:
    """Return a Python expression for the blocks that a setting names."""
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
    """Return how the module at a path is reached: `model.down[0].blocks`."""
    if not path:
        return model
    parts = path.split(".")
    if all(part.isidentifier() or part.isdigit() for part in parts):
        return model + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
    return f'{model}.get_submodule("{path}")'
