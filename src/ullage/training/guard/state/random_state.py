"""The states of the random number generators that a step draws from: recorded, and restored.

These are the global generators of Python, numpy (the legacy one) and torch, on the CPU and on the cards. Generators
that the user has made are left alone.
"""

import ctypes
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

_STATE_BYTES: Final = (624 + 1) * 4
"""The size of a Mersenne twister's state: its words, and the index of the next one."""


class RandomState:
    """The states of the generators: `record()` reads them, `restore()` sets them again."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cards = [device for device in devices if device.type == "cuda"]
        self._of_cards: list[torch.Generator] = []
        self._others = [device for device in devices if device.type in ("mps", "xpu")]
        self._numpy = _Numpy()
        self._states: tuple[Any, ...] | None = None

    def record(self) -> None:
        if len(self._of_cards) != len(self._cards):
            self._of_cards = list(map(_generator, self._cards))
        self._states = (
            torch.default_generator.get_state(),
            [generator.get_state() for generator in self._of_cards],
            random.getstate(),
            self._numpy.state(),
            [_other_state(device) for device in self._others],
        )

    def are_others_used(self) -> bool:
        """Tell whether Python's or numpy's generator has been drawn from since: PyTorch's checkpoints do not put these
        back."""
        if self._states is None:
            return False
        of_python, of_numpy = self._states[2:4]
        return bool(random.getstate() != of_python or _words_of(self._numpy.state()) != _words_of(of_numpy))

    def are_any_used(self) -> bool:
        """Tell whether a random number has been drawn since from any of the generators."""
        if self._states is None:
            return False
        on_torch = [self._states[0], *self._states[1], *self._states[4]]
        now = [torch.default_generator.get_state(), *(one.get_state() for one in self._of_cards)]
        now += [_other_state(device) for device in self._others]
        return self.are_others_used() or not all(map(torch.equal, now, on_torch))

    def restore(self) -> None:
        """Set the generators to the recorded states; do nothing if none were recorded."""
        if self._states is None:
            return
        host, of_cards, of_python, of_numpy, of_others = self._states
        torch.default_generator.set_state(host)
        for generator, state in zip(self._of_cards, of_cards, strict=True):
            generator.set_state(state)
        random.setstate(of_python)
        self._numpy.set_state(of_numpy)
        for device, state in zip(self._others, of_others, strict=True):
            getattr(torch, device.type).set_rng_state(state, *_place(device))

    def discard(self) -> None:
        """Drop the recorded states."""
        self._states = None


class _Numpy:
    """numpy's global generator: `get_state`, which takes long, is called where the generator's memory has changed; and
    always if the user has replaced it by another kind."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: Any = None
        self._state: tuple[bytes, dict[str, Any]] | None = None

    def state(self) -> Any:
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            return None
        generator = numpy.get_bit_generator()
        if generator is not self._generator:
            self._generator, self._state = generator, None
            self._memory = None
            if type(generator).__name__ == "MT19937":
                address = generator.ctypes.state_address
                self._memory = (ctypes.c_char * _STATE_BYTES).from_address(address)
        if self._memory is None:
            return numpy.get_state(legacy=False)
        words = self._memory.raw
        # A cached normal number can be used up without drawing a word.
        if self._state is None or words != self._state[0] or self._state[1]["has_gauss"]:
            self._state = words, numpy.get_state(legacy=False)
        return self._state[1]

    def set_state(self, state: Any) -> None:
        if state is not None:
            sys.modules["numpy.random"].set_state(state)


def _words_of(state: dict[str, Any] | None) -> Any:
    return None if state is None else repr([*state["state"].values(), state.get("has_gauss"), state.get("gauss")])


def _generator(card: torch.device) -> torch.Generator:
    index = card.index if card.index is not None else torch.cuda.current_device()
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


def _other_state(device: torch.device) -> torch.Tensor:
    state: torch.Tensor = getattr(torch, device.type).get_rng_state(*_place(device))
    return state


def _place(device: torch.device) -> tuple[torch.device, ...]:
    """Return the device argument that a backend's functions take: none if it has only one device."""
    return () if device.type == "mps" else (device,)
