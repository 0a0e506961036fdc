"""The samples of a run as rows: drained from the live files, from outside, each once.

A file keeps its latest 4,096 samples. Those that were overwritten before they were drained are counted, not made up.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ullage.recording.facts import Facts
from ullage.recording.live import SUFFIX, Live, LiveFileError, read_live

_NAME: Final = re.compile(r"(?:rank(?P<rank>\d+)|process)-(?P<pid>\d+)")


class Row(NamedTuple):
    """One sample: the memory of one device, as one process has it."""

    time: float
    """Seconds since 1970."""
    rank: int | None
    pid: int
    device: int
    """PyTorch's number of it in the process."""
    gpu: str
    """Its name; "" where the process was killed before it could tell."""
    step: int
    """The step in which the sample was taken, counted from 1."""
    is_step_end: bool
    """Whether the step was over; in one that takes long there is a sample a second too."""
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    """Most that was allocated since the row before of the same process and device."""
    inactive_split_bytes: int
    driver_used_bytes: int | None
    """By everybody on the card; None where the driver has not been asked."""
    limit_bytes: int | None
    """What the process may reserve; None where the process was killed before it could tell."""
    alloc_retries: int
    ooms: int


@dataclass(frozen=True, slots=True)
class _Position:
    """How far the file of a process is drained."""

    samples: int = 0
    lost: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    """Of each device, how many steps had ended at its last sample."""


class Drain:
    """Takes what is new out of the live files of a folder."""

    def __init__(self) -> None:
        self._positions: dict[Path, _Position] = {}
        self._next: dict[Path, _Position] = {}

    @property
    def lost(self) -> dict[str, int]:
        """By process ("rank3-4711"), how many samples were overwritten before they were drained."""
        return {path.stem: position.lost for path, position in self._positions.items() if position.lost}

    def rows(self, folder: Path) -> list[Row]:
        """Return the rows that are new, process by process; they come again until `keep` is called."""
        self._next = {}
        rows: list[Row] = []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            position = self._positions.get(path, _Position())
            try:
                live = read_live(path, since=position.samples, overview=False)
            except (LiveFileError, OSError):  # it is just being made
                continue
            steps = dict(position.steps)
            rows += _rows_of(live, steps)
            lost = position.lost + max(0, live.first - position.samples)
            self._next[path] = _Position(max(live.samples, position.samples), lost, steps)
        return rows

    def keep(self) -> None:
        """Say that the last rows have been taken."""
        self._positions |= self._next


def _rows_of(live: Live, steps: dict[int, int]) -> Iterator[Row]:
    """Yield rows. A sample bears the number of steps that have ended: the first with a number is of that step's end."""
    facts = Facts.from_json(live.facts)
    rank, pid = _who(live.path, facts)
    cards = {card.index: card for card in facts.cards}
    for sample in live.recent:
        card = cards.get(sample.device)
        is_step_end = sample.step != steps.get(sample.device, 0)
        steps[sample.device] = sample.step
        yield Row(
            time=sample.time,
            rank=rank,
            pid=pid,
            device=sample.device,
            gpu=card.name if card is not None else "",
            step=sample.step if is_step_end else sample.step + 1,
            is_step_end=is_step_end,
            allocated_bytes=sample.allocated_bytes,
            reserved_bytes=sample.reserved_bytes,
            peak_allocated_bytes=sample.peak_bytes,
            inactive_split_bytes=sample.split_bytes,
            driver_used_bytes=sample.used_bytes if sample.used_bytes >= 0 else None,
            limit_bytes=card.limit_bytes if card is not None else None,
            alloc_retries=sample.retries,
            ooms=sample.ooms,
        )


def _who(path: Path, facts: Facts) -> tuple[int | None, int]:
    """Return rank and number of a process; of one that has not told its facts yet, by the name of its file."""
    found = _NAME.fullmatch(path.stem)
    if facts.pid or found is None:
        return facts.rank, facts.pid
    return int(found["rank"]) if found["rank"] else None, int(found["pid"])
