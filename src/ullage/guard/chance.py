"""Random numbers: where the generators that a step draws from are, and putting them back there.

Python's, numpy's old one, torch's on the CPU and on the cards. Generators that the user has made are the user's.
Python's and numpy's are copied as they lie in memory, because asking them for their state makes 625 objects, at every
step; they are asked where what lies there is not what they say.
"""

import ctypes
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

_WORDS: Final = 624
_STATE_BYTES: Final = (_WORDS + 1) * 4
"""Of a Mersenne twister: its words, and which of them is next."""
_OF_OBJECT_BYTES: Final = object.__basicsize__
"""What comes first in every Python object; Python's generator has its state right behind it."""


class Chance:
    """`record()` where the generators are; `back()` puts them back there."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cards = [device for device in devices if device.type == "cuda"]
        self._of_cards: list[torch.Generator] = []
        self._others = [device for device in devices if device.type in ("mps", "xpu")]
        self._python = _Python()
        self._numpy = _Numpy()
        self._states: tuple[Any, ...] | None = None

    def record(self) -> None:
        if len(self._of_cards) != len(self._cards):
            self._of_cards = list(map(_generator, self._cards))
        self._states = (
            torch.default_generator.get_state(),
            [generator.get_state() for generator in self._of_cards],
            self._python.state(),
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
        host, of_cards, of_python, of_numpy, of_others = states
        torch.default_generator.set_state(host)
        for generator, state in zip(self._of_cards, of_cards, strict=True):
            generator.set_state(state)
        self._python.set_state(of_python)
        self._numpy.set_state(of_numpy)
        for device, state in zip(self._others, of_others, strict=True):
            getattr(torch, device.type).set_rng_state(state, *_place(device))

    def forget(self) -> None:
        self._states = None


class _Python:
    """Python's global generator."""

    def __init__(self) -> None:
        self._generator: Any = random._inst  # whose methods random.random and the others are
        self._memory: Any = None
        if type(self._generator) is random.Random and sys.implementation.name == "cpython":
            memory = (ctypes.c_char * _STATE_BYTES).from_address(id(self._generator) + _OF_OBJECT_BYTES)
            state = self._generator.getstate()
            if state == _python_state(memory.raw, state[-1]):
                self._memory = memory

    def state(self) -> Any:
        if self._memory is None:
            return self._generator.getstate()
        return self._memory.raw, self._generator.gauss_next

    def set_state(self, state: Any) -> None:
        self._generator.setstate(state if self._memory is None else _python_state(*state))


def _python_state(memory: bytes, gauss_next: float | None) -> tuple[int, tuple[int, ...], float | None]:
    """Return what `Random.getstate()` does, of a generator that lies in memory as CPython's: which word is next, and
    the words (Modules/_randommodule.c, RandomObject)."""
    index, *words = memoryview(memory).cast("I")
    return random.Random.VERSION, (*words, index), gauss_next


class _Numpy:
    """numpy's global generator; one of another kind than it begins with is asked for its state."""

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
        # A normal number that is kept for the next call can be used up without a word being drawn.
        if self._state is None or words != self._state[0] or self._state[1]["has_gauss"]:
            self._state = words, numpy.get_state(legacy=False)
        return self._state[1]

    def set_state(self, state: Any) -> None:
        if state is not None:
            sys.modules["numpy.random"].set_state(state)


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
