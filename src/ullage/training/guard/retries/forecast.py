"""Predicts the memory of forward and backward for a batch, from earlier steps of the run.

For n items with len elements each, the memory that forward saves for backward is modelled as b*n + c*n*len + d*n*len^2.
The second term describes linear layers, the third attention. The peak of a step is assumed to be proportional to the
saved memory.
"""

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import torch

from ullage.recorded.message.message import Message
from ullage.training.guard.memory.room import Room

_OBSERVATIONS: Final = 256
# The number of different batch shapes that must be measured before the memory model gets more than one coefficient.
_ENOUGH: Final = 3
# The safety margin, as a fraction of the predicted memory. It allows for gaps between memory blocks that cannot be
# used.
_MARGIN: Final = 0.03
_BEYOND: Final = 1.02


@dataclass(frozen=True, slots=True)
class _Seen:
    # The peak is None if the step did not raise PyTorch's peak counter.
    saved_bytes: int
    most_bytes: int | None


class Forecast:
    """Measures the memory of training steps, and predicts the memory of batches with new shapes."""

    def __init__(self, room: Room) -> None:
        cards = [device for device in room.devices if device.type == "cuda"]
        self._card = cards[0] if len(cards) == 1 else None
        self._seen: OrderedDict[tuple[int, int], _Seen] = OrderedDict()
        self._coefficients: np.ndarray[Any, Any] | None = None
        # the largest ratio of all measured steps
        self._peak_to_saved_ratio = 1.0
        # The lowest level in bytes at which an allocation failed: the allocated bytes plus the requested bytes.
        self._failed_bytes: int | None = None
        self._most_bytes = 0

    def parts_for(self, items: int | None, length: int, *, at_least: int = 1) -> int:
        """Return the number of parts into which a batch should be split.

        Args:
            items: the number of items; None if it is not known, so that the batch cannot be split.
            length: the number of elements of one item.
            at_least: the number of parts to return if no shape was measured yet, or if these items are predicted to
                fit: 1 for a batch that was not tried yet, 2 for items that ran out of memory.
        """
        if items is None or items < 2:
            return 1
        if self._card is None or not self._seen:
            return at_least
        room_bytes = self._room_bytes(self._card)
        if self._need_bytes(items, length) <= room_bytes:
            return at_least
        fits = 1 + bisect_right(range(2, items), float(room_bytes), key=lambda some: self._need_bytes(some, length))
        return max(-(-items // fits), at_least)

    def measure(self, items: int | None, length: int) -> "AttemptMeasurement | None":
        """Start to measure the memory of forward and backward. Return None if this batch shape was measured before."""
        if self._card is None or items is None or (items, length) in self._seen:
            return None
        return AttemptMeasurement(self, self._card, items, length)

    def learn(self, items: int, length: int, seen: _Seen, peak_bytes: int) -> None:
        expected = float(_features(items, length) @ self._fitted()) if len(self._seen) > _ENOUGH else 0.0
        self._seen[items, length] = seen
        if len(self._seen) > _OBSERVATIONS:
            self._seen.popitem(last=False)
        if abs(expected - seen.saved_bytes) > _MARGIN / 2 * seen.saved_bytes:
            self._coefficients = None  # a shape that was predicted well enough needs no new fit
        self._most_bytes = max(self._most_bytes, peak_bytes)
        if seen.most_bytes is not None and seen.saved_bytes > 0:
            self._peak_to_saved_ratio = max(self._peak_to_saved_ratio, seen.most_bytes / seen.saved_bytes)

    def learn_failure(self, items: int | None, length: int, message: Message) -> None:
        """Correct the prediction after a step has run out of memory."""
        if self._card is None or items is None:
            return
        if message.allocated_bytes is not None and message.requested_bytes is not None:
            failed = message.allocated_bytes + message.requested_bytes
            self._failed_bytes = failed if self._failed_bytes is None else min(self._failed_bytes, failed)
        if not self._seen:
            return
        room_bytes = self._room_bytes(self._card)
        need = self._need_bytes(items, length)
        if 0 < need <= room_bytes:
            self._peak_to_saved_ratio *= _BEYOND * room_bytes / need

    def _need_bytes(self, items: int, length: int) -> float:
        seen = self._seen.get((items, length))
        saved = seen.saved_bytes if seen is not None else float(_features(items, length) @ self._fitted())
        return saved * self._peak_to_saved_ratio * (1 + _MARGIN)

    def _room_bytes(self, card: torch.device) -> int:
        free, total = torch.cuda.mem_get_info(card)
        room: int = free + torch.cuda.memory_reserved(card)
        fraction = torch.cuda.get_per_process_memory_fraction(card)
        if fraction < 1:
            room = min(room, int(fraction * total))
        if self._failed_bytes is not None:
            room = min(room, max(self._failed_bytes, self._most_bytes))
        return room - torch.cuda.memory_allocated(card)

    def _fitted(self) -> np.ndarray[Any, Any]:
        if self._coefficients is None:
            items, length = np.array(list(self._seen), dtype=float).T
            features = np.column_stack([items, items * length, items * length**2])
            saved = np.array([seen.saved_bytes for seen in self._seen.values()], dtype=float)
            self._coefficients = _fit(features, saved)
        return self._coefficients


class AttemptMeasurement:
    """Measures the memory of one run of forward and backward."""

    def __init__(self, forecast: Forecast, card: torch.device, items: int, length: int) -> None:
        self._forecast = forecast
        self._card = card
        self._items, self._length = items, length
        self._before_bytes, self._peak_bytes = self._sample()
        self._saved_bytes = 0

    def after_forward(self) -> None:
        self._saved_bytes = self._sample()[0] - self._before_bytes

    def after_backward(self) -> None:
        peak = self._sample()[1]
        most = peak - self._before_bytes if peak > self._peak_bytes else None
        self._forecast.learn(self._items, self._length, _Seen(max(self._saved_bytes, 0), most), peak)

    def _sample(self) -> tuple[int, int]:
        allocated = torch.cuda.memory_stats_as_nested_dict(self._card)["allocated_bytes"]["all"]
        return allocated["current"], allocated["peak"]


def _features(items: int, length: int) -> np.ndarray[Any, Any]:
    return np.array([items, items * length, items * length**2], dtype=float)


def _fit(features: np.ndarray[Any, Any], saved: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    most = 1 if len(saved) < _ENOUGH else 3
    best, least = np.zeros(3), float("inf")
    for count in range(1, most + 1):
        for terms in combinations((1, 0, 2), count):
            chosen = (
                features[:, terms] / saved.clip(1)[:, None]
            )  # relative errors, so that small shapes have the same weight
            values, *_ = np.linalg.lstsq(chosen, np.ones(len(saved)), rcond=None)
            residual = float(np.square(chosen @ values - 1).sum())
            if (values >= 0).all() and residual < least * 0.99:
                best, least = np.zeros(3), residual
                best[list(terms)] = values
    return best
