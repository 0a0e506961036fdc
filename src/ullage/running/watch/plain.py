"""The output of `ullage watch` without a terminal: plain text or JSON."""

import json
import time
from collections.abc import Iterator
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.running.watch.detail import mark_of
from ullage.running.watch.view import CardRow, DeviceRow, Inside, View

_NAMED: Final = 3


class PlainText:
    """The text output of `ullage watch`, with a line for each GPU and process."""

    def __init__(self) -> None:
        self._said: set[tuple[str, int, str]] = set()

    def lines_of(self, view: View) -> Iterator[str]:
        """Yield the lines of text for the current data."""
        clock = time.strftime("%H:%M:%S", time.localtime(view.time))
        for note in view.notes:
            if self._is_new("note", 0, note):
                yield f"{clock} note: {note}"
        for card in view.cards:
            yield f"{clock} {_card(card)}"
        for inside in view.processes:
            if inside.is_alive or self._is_new(inside.folder, inside.pid, inside.state):
                yield from (f"{clock} {line}" for line in _process(inside))
            for line in _rare(inside):
                if self._is_new(inside.folder, inside.pid, line):
                    yield f"{clock} process {inside.pid} {line}"

    def _is_new(self, place: str, pid: int, text: str) -> bool:
        key = (place, pid, text)
        is_new = key not in self._said
        self._said.add(key)
        return is_new


class JsonLines:
    """The JSON output of `ullage watch`. Each line is one object."""

    def lines_of(self, view: View) -> Iterator[str]:
        """Yield a line of JSON for the current data."""
        yield json.dumps(view.to_json(), separators=(",", ":"))


def _card(card: CardRow) -> str:
    used, total = text_of_bytes(card.used_bytes), text_of_bytes(card.total_bytes)
    others = [one for one in card.holders if not one.is_watched]
    held = sum(one.used_bytes or 0 for one in others)
    count = f"{len(others)} other process" + ("" if len(others) == 1 else "es")
    largest = sorted(others, key=lambda one: -(one.used_bytes or 0))[:_NAMED]
    names = ", ".join(f"{one.pid}{f' {one.name}' if one.name else ''}" for one in largest)
    more = ", ..." if len(others) > _NAMED else ""
    rest = f", {count} with {text_of_bytes(held)} ({names}{more})" if others else ""
    return f"GPU {card.index} {card.name}{mark_of(card)}: {used} of {total} used{rest}"


def _process(inside: Inside) -> Iterator[str]:
    rank = f" rank {inside.rank}" if inside.rank is not None else ""
    head = f"process {inside.pid}{rank} {inside.state}, step {inside.steps}"
    if not inside.devices:
        yield f"{head}: no sample yet"
    for device in inside.devices:
        which = f" device {device.index}" if len(inside.devices) > 1 else ""
        yield f"{head}{which}: {_device(device)}"


def _device(device: DeviceRow) -> str:
    room = f", headroom {text_of_bytes(max(0, device.headroom_bytes))}" if device.limit_bytes else ""
    return (
        f"allocated {text_of_bytes(device.allocated_bytes)}, reserved {text_of_bytes(device.reserved_bytes)}, "
        f"cached {text_of_bytes(device.cached_bytes)}, peak {text_of_bytes(device.peak_bytes)} at step "
        f"{device.peak_step}{room}, retries {device.retries}"
    )


def _rare(inside: Inside) -> Iterator[str]:
    yield from (f"growth: {finding}" for finding in inside.growth)
    if inside.ooms:
        yield "out of memory " + ("once" if inside.ooms == 1 else f"{inside.ooms} times")
    yield from (f"evidence: ullage explain {folder}" for folder in inside.evidence)
