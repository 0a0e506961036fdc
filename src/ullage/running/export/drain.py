"""Reads the samples of a run from its live files as rows, each once.

A file keeps its latest 4,096 samples. Samples that were overwritten before they were read are counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ullage.running.run_files.facts import RunFacts
from ullage.running.run_files.live import SUFFIX, Live, LiveFileError, read_live

_NAME: Final = re.compile(r"(?:rank(?P<rank>\d+)|process)-(?P<pid>\d+)(?:-\w+)?")


class SampleRow(NamedTuple):
    """One sample: the memory of one process on one device."""

    time: float
    """The time of the sample, in seconds since 1970."""
    rank: int | None
    pid: int
    device: int
    """PyTorch's number of the device in the process."""
    gpu: str
    """The name of the card; "" if the process was killed before it wrote its facts."""
    step: int
    """The step in which the sample was taken, counted from 1."""
    is_step_end: bool
    """Whether the sample was taken at the end of the step; a long step also has a sample every second."""
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    """The peak of allocated memory since the previous row of the same process and device."""
    inactive_split_bytes: int
    driver_used_bytes: int | None
    """The bytes used by all processes on the card; None if the driver was not asked."""
    limit_bytes: int | None
    """The bytes that the process may reserve; None if it was killed before it wrote its facts."""
    alloc_retries: int
    ooms: int


@dataclass(frozen=True, slots=True)
class _Position:
    """The position up to which the file of a process has been read."""

    samples: int = 0
    lost: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    """The number of steps that had ended at each device's last sample."""


class Drain:
    """Reads new samples from the live files of a folder."""

    def __init__(self) -> None:
        self._positions: dict[Path, _Position] = {}
        self._next: dict[Path, _Position] = {}

    @property
    def lost(self) -> dict[str, int]:
        """The number of samples that were overwritten before they were read, by process ("rank3-4711")."""
        return {path.stem: position.lost for path, position in self._positions.items() if position.lost}

    def rows(self, folder: Path) -> list[SampleRow]:
        """Return the new rows, process by process; they are returned again until `commit` is called."""
        self._next = {}
        rows: list[SampleRow] = []
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

    def commit(self) -> None:
        """Mark the rows returned last as written, so that they are not returned again."""
        self._positions |= self._next


def _rows_of(live: Live, steps: dict[int, int]) -> Iterator[SampleRow]:
    """Yield rows. A sample has the number of steps that have ended: the first with a number is from that step's end."""
    facts = RunFacts.from_json(live.facts)
    rank, pid = _who(live.path, facts)
    cards = {card.index: card for card in facts.cards}
    for sample in live.recent:
        card = cards.get(sample.device)
        is_step_end = sample.step != steps.get(sample.device, 0)
        steps[sample.device] = sample.step
        yield SampleRow(
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


def _who(path: Path, facts: RunFacts) -> tuple[int | None, int]:
    """Return rank and id of a process; if it has not written its facts yet, from the name of its file."""
    found = _NAME.fullmatch(path.stem)
    if facts.pid or found is None:
        return facts.rank, facts.pid
    return int(found["rank"]) if found["rank"] else None, int(found["pid"])
