"""Collects the data for `ullage watch` from NVIDIA's driver and from the files of recorded processes.

This creates no CUDA context and does not affect the processes.
"""

import math
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, Self, cast

from ullage.base.driver import DriverSilentError, asked
from ullage.gpu.emulator.emulate import CARD_VARIABLE
from ullage.report.foreign_names import without_control_characters
from ullage.running.diagnosis import facts as diagnosed
from ullage.running.diagnosis.facts import CardFacts
from ullage.running.diagnosis.nvml import read_cards
from ullage.running.diagnosis.process import is_alive
from ullage.running.run_files.facts import RunFacts
from ullage.running.run_files.live import SUFFIX, Live, LiveFileError, read_live
from ullage.running.watch.inside import has_ended_here, inside_of, key_of
from ullage.running.watch.target import FoundRuns, Target, find
from ullage.running.watch.view import CardHolder, CardRow, Inside, View

# The time limit for reading the files of all processes before the screen is drawn, in seconds. Eight processes take
# half of this time.
_READ_SECONDS: Final = 0.25


class ViewSource:
    """Collects the data that `ullage watch` shows, including processes that have ended."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._folders: dict[Path, None] = {}
        self._files: dict[Path, Live] = {}
        self._read_at: dict[Path, float] = {}
        self._stack = ExitStack()
        self._why_silent = ""
        self._names_hold = sees_host_processes()

    def __enter__(self) -> Self:
        try:  # kept open, because initialising NVML takes long if no process keeps the driver loaded
            self._stack.enter_context(asked())
        except DriverSilentError as why:
            self._why_silent = str(why)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def poll(self) -> View:
        """Return the current data."""
        now = time.time()
        found = find(self._target)
        self._folders |= dict.fromkeys(found.folders)
        self._read()
        driver, asked_cards = (None, ()) if self._why_silent else read_cards()
        why_silent = self._why_silent or ("" if driver is not None else "the driver no longer responds")
        used = {key_of(card.uuid): card.used_bytes for card in asked_cards}
        pairs = [(file, _inside(file, now, used)) for file in self._files.values()]
        pairs.sort(key=lambda pair: (not pair[1].is_alive, pair[1].folder, pair[1].rank or 0, pair[1].pid))
        insides = tuple(inside for _, inside in pairs)
        watched = {inside.pid for inside in insides if inside.is_alive}
        driver_rows = (self._row(card, watched) for card in asked_cards)
        cards = (*driver_rows, *_hearsay(pairs, used))
        notes = (
            *found.notes,
            *self._waiting(found, insides),
            *_damaged(self._files.values()),
            *_crowded(cards),
            *notes_of(asked_cards, why_silent),
        )
        view = View(time=now, subject=found.subject, cards=cards, notes=notes, is_over=self._is_over(found, insides))
        # Names come from others, so control characters, which can steer a terminal, are removed.
        return replace(cast(View, without_control_characters(view)), processes=insides)

    def _read(self) -> None:
        began = time.monotonic()
        paths = (path for folder in self._folders for path in folder.glob(f"*{SUFFIX}"))
        for path in sorted(paths, key=lambda path: (self._read_at.get(path, 0.0), path)):
            known = self._files.get(path)
            has_ended = known is not None and has_ended_here(known)
            is_late = time.monotonic() - began > _READ_SECONDS
            if self._read_at.get(path) == math.inf or (is_late and known is not None and not has_ended):
                continue
            try:
                self._files[path] = read_live(path)
            except (LiveFileError, OSError):  # the file is being created or was just removed
                continue
            self._read_at[path] = math.inf if has_ended else time.monotonic()

    def _row(self, card: diagnosed.CardFacts, watched: set[int]) -> CardRow:
        return CardRow(
            index=card.index,
            name=card.name,
            total_bytes=card.total_bytes,
            used_bytes=card.used_bytes,
            holders=tuple(self._holder(one, is_watched=one.pid in watched) for one in card.processes),
            is_emulated=bool(os.environ.get(CARD_VARIABLE)),
        )

    def _holder(self, process: diagnosed.CardProcess, *, is_watched: bool) -> CardHolder:
        # In a container the driver reports process ids of the host, so a process with the same id here is another
        # process.
        known = process if self._names_hold or is_watched else replace(process, name="", is_ours=False)
        return CardHolder(
            pid=known.pid, name=known.name, used_bytes=known.used_bytes, is_ours=known.is_ours, is_watched=is_watched
        )

    def _waiting(self, found: FoundRuns, insides: tuple[Inside, ...]) -> Iterator[str]:
        if insides or found.notes:
            return
        if self._folders:
            yield "No process of the run has used CUDA yet."
        elif self._target == Target():  # everything
            yield "No process of `ullage run` was found: start one to see its memory in detail (ullage run train.py)."

    def _is_over(self, found: FoundRuns, insides: tuple[Inside, ...]) -> bool:
        if any(inside.is_alive for inside in insides):
            return False
        if self._target.pid is not None:
            return found.is_over or not is_alive(self._target.pid)
        return bool(insides)


def follow(poll: Callable[[], View], *, seconds: float) -> Iterator[View]:
    """Yield current data at regular intervals until all watched processes have ended.

    Args:
        poll: a function that collects the data.
        seconds: the time between two results.
    """
    due = time.monotonic()
    while True:
        view = poll()
        yield view
        if view.is_over:
            return
        now = time.monotonic()
        due = max(due + seconds, now)  # the time that a slow poll takes is not caught up
        time.sleep(due - now)


def _inside(file: Live, now: float, used_bytes: Mapping[str, int]) -> Inside:
    # Each process has its own emulated GPU, all with the same UUID, so only the process's own figures count.
    used = {} if file.facts.get("is_emulated") else used_bytes
    return inside_of(file, now=now, used_bytes=used, is_removed=not file.path.exists())


def _hearsay(pairs: list[tuple[Live, Inside]], asked_keys: Container[str]) -> Iterator[CardRow]:
    # such a GPU is emulated, is on another machine, or has no driver on this machine
    rows: dict[tuple[str, str, str], CardRow] = {}
    for live, inside in pairs:
        facts = RunFacts.from_json(live.facts)
        used = {sample.device: max(sample.used_bytes, sample.reserved_bytes) for sample in live.recent}
        for card in facts.cards:
            if not facts.is_emulated and key_of(card.uuid) in asked_keys:
                continue
            key = (inside.folder if facts.is_emulated else inside.host, card.uuid, card.name)
            row = rows.get(key) or CardRow(
                index=card.index,
                name=card.name,
                total_bytes=card.total_bytes,
                used_bytes=0,
                is_emulated=facts.is_emulated,
                is_hearsay=True,
            )
            rows[key] = _with(row, inside, used.get(card.index), card.index)
    yield from rows.values()


def _damaged(files: Iterable[Live]) -> Iterator[str]:
    for file in files:
        if file.damaged:
            yield f"{file.path.name} is damaged: {file.damaged:,} of its samples are left out."


def _crowded(cards: Iterable[CardRow]) -> Iterator[str]:
    if any(card.is_emulated and card.used_bytes > card.total_bytes for card in cards):
        yield (
            "Each process has its own emulated GPU, so the sum of several processes may exceed the memory of one GPU."
        )


def _with(row: CardRow, inside: Inside, used_bytes: int | None, index: int) -> CardRow:
    # for an emulated GPU, only the process itself reports the used memory
    if not inside.is_alive or used_bytes is None:
        return row
    name = os.path.basename(inside.command.partition(" ")[0])
    holder = CardHolder(pid=inside.pid, name=name, used_bytes=used_bytes, is_ours=True, is_watched=True)
    if row.is_emulated:
        return replace(row, used_bytes=row.used_bytes + used_bytes, holders=(*row.holders, holder))
    reserved = next((device.reserved_bytes for device in inside.devices if device.index == index), None)
    holder = replace(holder, used_bytes=reserved)
    return replace(row, used_bytes=max(row.used_bytes, used_bytes), holders=(*row.holders, holder))


def sees_host_processes(root: Path = Path("/")) -> bool:
    """Return whether this process can see all processes of the host, which is not the case in a container."""
    try:
        return (root / "proc/2/comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def notes_of(cards: Iterable[CardFacts], why_silent: str, *, root: Path = Path("/")) -> Iterator[str]:
    """Yield sentences about processes or GPUs that cannot be shown, for example in a container.

    Args:
        cards: the GPUs that the driver reports.
        why_silent: the reason why the driver cannot be queried; empty if it responds.
        root: the root folder of the file system.
    """
    if (root / "dev/dxg").exists():
        yield (
            "This is WSL: the Windows driver does not report how much memory each process uses, and a GPU's total "
            "includes Windows programs. Scripts that you start with `ullage run` are shown with all their figures."
        )
    elif not why_silent and not sees_host_processes(root):
        yield (
            "This is a container: the driver uses the host's process ids, so processes on the GPUs have no names "
            "here or are not listed. The totals of the GPUs are correct. Scripts that you start with `ullage run` in "
            "this container are shown with all their figures."
        )
    if why_silent:
        yield f"The driver cannot be queried: {why_silent}; figures of GPUs come only from the files of runs."
        return
    if not (root / "dev/dxg").exists() and any(one.used_bytes is None for card in cards for one in card.processes):
        yield "The driver does not report the memory of some processes (as with MIG, or without permission)."
