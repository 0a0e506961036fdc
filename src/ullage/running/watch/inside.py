"""Reads the memory that a process has recorded, for `ullage watch`. It includes only memory of PyTorch."""

import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from ullage.base.secrets import hidden_data, without_secrets
from ullage.base.units import text_of_bytes
from ullage.report.foreign_names import without_control_characters
from ullage.running.diagnosis.process import is_alive
from ullage.running.run_files.facts import RunCard, RunFacts
from ullage.running.run_files.folder import headroom_bytes, shown
from ullage.running.run_files.live import SUFFIX, Live, Sample
from ullage.running.watch.view import GONE, RUNS, DeviceRow, Inside

REST: Final = "the rest"
# The number of samples that are read, the latest first. No terminal has as many columns. Older samples are in the
# overview.
_SHOWN: Final = 600
# The largest age of a live file, in seconds, at which a process on another machine counts as alive.
_FRESH_SECONDS: Final = 10.0


def inside_of(live: Live, *, now: float, used_bytes: Mapping[str, int], is_removed: bool = False) -> Inside:
    """Return the data about a process that `ullage watch` shows.

    Args:
        live: the memory samples and facts that the process has written.
        now: the time in seconds since 1970.
        used_bytes: the used memory of each GPU according to the driver, by `key_of` its UUID; for other GPUs the last
            recorded value is used.
        is_removed: whether the file has been removed, as at the end of a run with nothing to report.
    """
    facts = RunFacts.from_json(live.facts)
    pid = facts.pid or _pid_of(live.path)
    heard = max(facts.told, live.recent[-1].time if live.recent else 0.0)
    is_here = facts.host in ("", socket.gethostname())
    alive = is_alive(pid, facts.started or None) if is_here else now - heard < _FRESH_SECONDS
    alive = alive and not is_removed and facts.state in (RUNS, "out of memory")
    devices = _devices(live, facts, used_bytes)
    inside = Inside(
        pid=pid,
        command=_command(facts.command),
        folder=str(live.path.parent),
        host=facts.host,
        rank=facts.rank,
        world_size=facts.world_size,
        state=facts.state if alive or facts.state != RUNS else "ended" if is_removed else GONE,
        is_alive=alive,
        steps=max(facts.steps, live.recent[-1].step if live.recent else 0),
        step_seconds=facts.step_seconds,
        quiet_seconds=max(0.0, now - heard) if heard else None,
        roles=_roles(facts, sum(device.allocated_bytes for device in devices)),
        growth=tuple(_line(one) for one in facts.growth),
        ooms=max(facts.ooms, *(sample.ooms for sample in live.recent[-1:]), 0),
        evidence=tuple(str(shown(live.path.parent / name)) for name in facts.evidence),
        recording=_recording(facts),
        is_emulated=facts.is_emulated,
    )
    # Command lines and file contents come from others, so control characters, which can steer a terminal, are removed.
    return replace(cast(Inside, hidden_data(without_control_characters(inside))), devices=devices)


def has_ended_here(live: Live) -> bool:
    """Return whether a process ran on this machine and has ended."""
    facts = RunFacts.from_json(live.facts)
    return facts.host == socket.gethostname() and not is_alive(facts.pid, facts.started or None)


def key_of(uuid: str) -> str:
    """Return a GPU's UUID without the prefix "GPU-", which the driver writes and PyTorch does not."""
    return uuid.lower().removeprefix("gpu-")


def _devices(live: Live, facts: RunFacts, used_bytes: Mapping[str, int]) -> tuple[DeviceRow, ...]:
    samples: dict[int, list[Sample]] = {}
    for sample in live.recent:
        samples.setdefault(sample.device, []).append(sample)
    cards = {card.index: card for card in facts.cards}
    return tuple(_device(index, samples[index], live, facts, cards.get(index), used_bytes) for index in sorted(samples))


def _device(
    index: int, recent: list[Sample], live: Live, facts: RunFacts, card: RunCard | None, used_bytes: Mapping[str, int]
) -> DeviceRow:
    last = recent[-1]
    recent = recent[-_SHOWN:]
    overview = [sample for sample in live.overview if sample.device == index]
    highest = max(recent + overview, key=lambda sample: sample.peak_bytes)
    told = next((peak for peak in facts.peaks if peak.device == index), None)
    is_told = told is not None and told.bytes >= highest.peak_bytes
    limit = card.limit_bytes if card is not None else 0
    most_reserved = max(sample.reserved_bytes for sample in recent + overview)
    peaks = _peaks_of_steps(recent)
    return DeviceRow(
        index=index,
        card_name=_line(card.name) if card is not None else "",
        allocated_bytes=last.allocated_bytes,
        reserved_bytes=last.reserved_bytes,
        limit_bytes=limit,
        headroom_bytes=headroom_bytes(card, last, most_reserved, used_bytes.get(key_of(card.uuid))) if card else 0,
        peak_bytes=told.bytes if told is not None and is_told else highest.peak_bytes,
        peak_step=told.step if told is not None and is_told else highest.step,
        peak_line=_line(told.line) if told is not None and is_told and told.line else None,
        split_bytes=last.split_bytes,
        retries=last.retries,
        peaks=tuple(peaks.values()) if len(peaks) > 1 else tuple(sample.peak_bytes for sample in recent),
        peak_steps=tuple(peaks) if len(peaks) > 1 else (last.step,) * len(recent),
        overview=tuple(sample.peak_bytes for sample in overview),
    )


def _peaks_of_steps(samples: list[Sample]) -> dict[int, int]:
    # A sample has the number of the last completed step. The first sample with a number belongs to that step, later
    # samples with the same number belong to the next step.
    peaks: dict[int, int] = {}
    before: int | None = None
    if samples[0].step == samples[-1].step:  # no step has ended: one sample per second
        return peaks
    for sample in samples:
        step = sample.step + (sample.step == before)
        peaks[step] = max(peaks.get(step, 0), sample.peak_bytes)
        before = sample.step
    return peaks


def _roles(facts: RunFacts, allocated_bytes: int) -> tuple[tuple[str, int], ...]:
    if not facts.roles:
        return ()
    # Roles are written less often than samples, so the difference could be negative.
    rest = max(0, allocated_bytes - sum(facts.roles.values()))
    known = sorted(facts.roles.items(), key=lambda item: -item[1])
    return (*known, (REST, rest))


def _command(words: tuple[str, ...]) -> str:
    return _line(shlex.join((os.path.basename(words[0]), *without_secrets(words[1:])))) if words else ""


def _line(text: str) -> str:
    return " ".join(str(without_control_characters(text)).split())


def _recording(facts: RunFacts) -> str:
    if facts.arming is None:
        return ""
    if not facts.arming.is_on:
        return f"off: {facts.arming.why}"
    cost = f", {facts.arming.cost - 1:.1%} slower" if facts.arming.cost is not None else ""
    size = f"{facts.arming.entries} entries, at most {text_of_bytes(facts.arming.budget_bytes)}{cost}"
    return f"on since step {facts.arming.since_step}: {facts.arming.why} ({size})"


def _pid_of(path: Path) -> int:
    number = path.name.removesuffix(SUFFIX).split("-")[1:2]
    return int(number[0]) if number and number[0].isdecimal() else 0
