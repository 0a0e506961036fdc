"""How much memory the forward and backward of a batch need, learned from the run's own: before it is too much.

What forward leaves for backward is taken to be b*n + c*n*len + d*n*len^2 for n items of len elements (the sequence's
tokens, or the picture's pixels), with no coefficient below zero: a linear layer's share, and attention's. It is
measured once for each shape between forward and backward. What a step needs at most grows with it; that share is
learned from the steps that raised PyTorch's own peak, which is never reset, because it is the user's figure too.
"""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import torch

from ullage.guard.room import Room
from ullage.message.message import Message

_OBSERVATIONS: Final = 256
_ENOUGH: Final = 3
"""Shapes that have to be known before more than a proportion is read from them."""
_MARGIN: Final = 0.03
"""Of what a step needs, for blocks that do not fit together without gaps."""
_BEYOND: Final = 1.02


@dataclass(frozen=True, slots=True)
class _Seen:
    """One step: what was allocated before it, what forward had added, and at the most (where it was a new peak)."""

    saved_bytes: int
    most_bytes: int | None


class Forecast:
    """What the shapes that were met needed, and what those that were not met will need."""

    def __init__(self, room: Room) -> None:
        cards = [device for device in room.devices if device.type == "cuda"]
        self._card = cards[0] if len(cards) == 1 else None
        self._seen: OrderedDict[tuple[int, int], _Seen] = OrderedDict()
        self._coefficients: np.ndarray[Any, Any] | None = None
        self._at_most = 1.0
        """The most that a step has needed, as a multiple of what its forward saved."""
        self._failed_bytes: int | None = None
        """The least that was asked for in vain, with what was allocated then."""
        self._most_bytes = 0
        """The most that has fitted."""

    def parts_for(self, items: int | None, length: int) -> int:
        """Return in how many parts a batch should be taken; 1 where nothing is known or it fits."""
        if self._card is None or items is None or items < 2 or not self._seen:
            return 1
        stats = torch.cuda.memory_stats_as_nested_dict(self._card)
        room_bytes = self._room_bytes(stats) - stats["allocated_bytes"]["all"]["current"]
        if self._need_bytes(items, length) <= room_bytes:
            return 1
        fits, fails = 1, items
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self._need_bytes(middle, length) <= room_bytes:
                fits = middle
            else:
                fails = middle
        return -(-items // fits)

    def watch(self, items: int | None, length: int) -> "Watch | None":
        """Begin to measure an attempt; None for a shape that is known."""
        if self._card is None or items is None or (items, length) in self._seen:
            return None
        return Watch(self, self._card, items, length)

    def learn(self, items: int, length: int, seen: _Seen, peak_bytes: int) -> None:
        expected = float(_features(items, length) @ self._fitted()) if len(self._seen) > _ENOUGH else 0.0
        self._seen[items, length] = seen
        if len(self._seen) > _OBSERVATIONS:
            self._seen.popitem(last=False)
        if abs(expected - seen.saved_bytes) > _MARGIN / 2 * seen.saved_bytes:
            self._coefficients = None  # what is foreseen well enough is not fitted again
        self._most_bytes = max(self._most_bytes, peak_bytes)
        if seen.most_bytes is not None and seen.saved_bytes > 0:
            self._at_most = max(self._at_most, seen.most_bytes / seen.saved_bytes)

    def learn_failure(self, items: int | None, length: int, message: Message) -> None:
        """Learn that a step did not fit: that there is less room than it needs, or that it needs more than was
        thought."""
        if self._card is None or items is None:
            return
        if message.allocated_bytes is not None and message.requested_bytes is not None:
            failed = message.allocated_bytes + message.requested_bytes
            self._failed_bytes = failed if self._failed_bytes is None else min(self._failed_bytes, failed)
        if not self._seen:
            return
        stats = torch.cuda.memory_stats_as_nested_dict(self._card)
        room_bytes = self._room_bytes(stats) - stats["allocated_bytes"]["all"]["current"]
        need = self._need_bytes(items, length)
        if 0 < need <= room_bytes:
            self._at_most *= _BEYOND * room_bytes / need

    def _need_bytes(self, items: int, length: int) -> float:
        seen = self._seen.get((items, length))
        saved = seen.saved_bytes if seen is not None else float(_features(items, length) @ self._fitted())
        return saved * self._at_most * (1 + _MARGIN)

    def _room_bytes(self, stats: dict[str, Any]) -> int:
        """What the allocator could have allocated at once: of the card, and not more than was refused before."""
        assert self._card is not None
        free, total = torch.cuda.mem_get_info(self._card)
        reserved: int = stats["reserved_bytes"]["all"]["current"]
        room: int = free + reserved
        fraction = torch.cuda.get_per_process_memory_fraction(self._card)
        if fraction < 1:
            room = min(room, int(fraction * total))
        if self._failed_bytes is not None:
            room = min(room, max(self._failed_bytes, self._most_bytes))
        return room

    def _fitted(self) -> np.ndarray[Any, Any]:
        if self._coefficients is None:
            items, length = np.array(list(self._seen), dtype=float).T
            features = np.column_stack([items, items * length, items * length**2])
            saved = np.array([seen.saved_bytes for seen in self._seen.values()], dtype=float)
            self._coefficients = _fit(features, saved)
        return self._coefficients


class Watch:
    """One attempt that is measured."""

    def __init__(self, forecast: Forecast, card: torch.device, items: int, length: int) -> None:
        self._forecast = forecast
        self._card = card
        self._items, self._length = items, length
        self._before_bytes, self._peak_bytes = self._look()
        self._saved_bytes = 0

    def loss_is_made(self) -> None:
        self._saved_bytes = self._look()[0] - self._before_bytes

    def end(self) -> None:
        peak = self._look()[1]
        most = peak - self._before_bytes if peak > self._peak_bytes else None
        self._forecast.learn(self._items, self._length, _Seen(max(self._saved_bytes, 0), most), peak)

    def _look(self) -> tuple[int, int]:
        allocated = torch.cuda.memory_stats_as_nested_dict(self._card)["allocated_bytes"]["all"]
        return allocated["current"], allocated["peak"]


def _features(items: int, length: int) -> np.ndarray[Any, Any]:
    return np.array([items, items * length, items * length**2], dtype=float)


def _fit(features: np.ndarray[Any, Any], saved: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Fit coefficients of which none is below zero: the best of those of every choice of terms that has none."""
    most = 1 if len(saved) < _ENOUGH else 3
    best, least = np.zeros(3), float("inf")
    for count in range(1, most + 1):
        for terms in combinations((1, 0, 2), count):
            chosen = features[:, terms] / saved.clip(1)[:, None]  # relative errors: small shapes count as much
            values, *_ = np.linalg.lstsq(chosen, np.ones(len(saved)), rcond=None)
            residual = float(np.square(chosen @ values - 1).sum())
            if (values >= 0).all() and residual < least * 0.99:
                best, least = np.zeros(3), residual
                best[list(terms)] = values
    return best
