"""Which repeated blocks a setting names, and the expression that names them in a script.

Settings: "all", "every_second", "first:6", and "only:layer1.0-2,layer3.4" by list and number. Blocks are counted
through all lists in the order in which they are registered.
"""

import re
from collections.abc import Sequence

from ullage.base.errors import UsageError, quoted

ALL, EVERY_SECOND, FIRST, ONLY = "all", "every_second", "first:", "only:"
Position = tuple[int, int]
"""The number of a list, and a block's place in it."""


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
