"""Random numbers: where the generators that a step draws from are, and putting them back there.

Python's, numpy's old one, torch's on the CPU and on the cards. Generators that the user has made are the user's.
"""

import ctypes
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

_WORDS_BYTES: Final = 624 * 4 + 4
"""Of numpy's MT19937: its words, and which of them is next."""


class Chance:
    """`record()` where the generators are; `back()` puts them back there."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cards = [device for device in devices if device.type == "cuda"]
        self._others = [device for device in devices if device.type in ("mps", "xpu")]
        self._numpy = _Numpy()
        self._states: tuple[Any, ...] | None = None

    def record(self) -> None:
        self._states = (
            torch.default_generator.get_state(),
            [_generator(card).get_state() for card in self._cards],
            random.getstate(),
            self._numpy.state(),
            [_other_state(device) for device in self._others],
        )

    @property
    def states(self) -> tuple[Any, ...] | None:
        """What was recorded last, to be put back later than `record()` is called again."""
        return self._states

    def back(self, states: tuple[Any, ...] | None = None) -> None:
        """Put the generators where they were; nothing happens where nothing was recorded."""
        states = states or self._states
        if states is None:
            return
        host, of_cards, python, of_numpy, of_others = states
        torch.default_generator.set_state(host)
        for card, state in zip(self._cards, of_cards, strict=True):
            _generator(card).set_state(state)
        random.setstate(python)
        if of_numpy is not None:
            sys.modules["numpy.random"].set_state(of_numpy)
        for device, state in zip(self._others, of_others, strict=True):
            getattr(torch, device.type).set_rng_state(state, *_place(device))

    def forget(self) -> None:
        self._states = None


class _Numpy:
    """numpy's global generator, whose state takes long to copy: that is only done where it has moved since."""

    def __init__(self) -> None:
        self._words = b""
        self._state: dict[str, Any] | None = None

    def state(self) -> dict[str, Any] | None:
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            return None
        address = numpy.get_bit_generator()
        if type(address).__name__ != "MT19937":
            other: dict[str, Any] = numpy.get_state(legacy=False)
            return other
        words = ctypes.string_at(address.ctypes.state_address, _WORDS_BYTES)
        # A normal number that is kept for the next call can be used up without a word being drawn.
        if self._state is None or words != self._words or self._state["has_gauss"]:
            self._words, self._state = words, numpy.get_state(legacy=False)
        return self._state


def _generator(card: torch.device) -> torch.Generator:
    index = card.index if card.index is not None else torch.cuda.current_device()
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


def _other_state(device: torch.device) -> torch.Tensor:
    state: torch.Tensor = getattr(torch, device.type).get_rng_state(*_place(device))
    return state


def _place(device: torch.device) -> tuple[torch.device, ...]:
    """Return what a backend is told of the device: nothing where there is only one."""
    return () if device.type == "mps" else (device,)
