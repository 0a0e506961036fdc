"""The states of the random number generators that a step draws from: recorded, and restored.

These are the global generators of Python, numpy (the legacy one) and torch, on the CPU and on the cards. Generators
that the user has made are left alone. The states of Python's and numpy's are copied from their memory, because
`getstate()` makes 625 objects, at every step; it is used only where the memory does not agree with it.
"""

import ctypes
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

import torch

_WORDS: Final = 624
_STATE_BYTES: Final = (_WORDS + 1) * 4
"""The size of a Mersenne twister's state: its words, and the index of the next one."""
_OBJECT_HEADER_BYTES: Final = object.__basicsize__
"""The size of a Python object's header; Python's generator has its state right behind it."""


class RandomState:
    """The states of the generators: `record()` reads them, `restore()` sets them again."""

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
        """The states recorded last; pass them to `restore()` after `record()` was called again."""
        return self._states

    def are_others_used(self) -> bool:
        """Tell whether Python's or numpy's generator has been drawn from since: PyTorch's checkpoints do not put these
        back."""
        if self._states is None:
            return False
        of_numpy = self._numpy.state()
        recorded = self._states[3]
        if (of_numpy is None) != (recorded is None):
            return True
        return bool(self._python.state() != self._states[2] or _words_of(of_numpy) != _words_of(recorded))

    def are_any_used(self) -> bool:
        """Tell whether a random number has been drawn since from any of the generators."""
        if self._states is None:
            return False
        on_torch = [self._states[0], *self._states[1], *self._states[4]]
        now = [torch.default_generator.get_state(), *(one.get_state() for one in self._of_cards)]
        now += [_other_state(device) for device in self._others]
        return self.are_others_used() or not all(map(torch.equal, now, on_torch))

    def restore(self, states: tuple[Any, ...] | None = None) -> None:
        """Set the generators to recorded states; do nothing if none were recorded."""
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

    def discard(self) -> None:
        """Drop the recorded states."""
        self._states = None


class _Python:
    """Python's global generator."""

    def __init__(self) -> None:
        self._generator: Any = random._inst  # whose methods random.random and the others are
        self._memory: Any = None
        if type(self._generator) is random.Random and sys.implementation.name == "cpython":
            memory = (ctypes.c_char * _STATE_BYTES).from_address(id(self._generator) + _OBJECT_HEADER_BYTES)
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
    """Return what `Random.getstate()` returns, from the memory of CPython's generator: the index of the next word, and
    the words (Modules/_randommodule.c, RandomObject)."""
    index, *words = memoryview(memory).cast("I")
    return random.Random.VERSION, (*words, index), gauss_next


class _Numpy:
    """numpy's global generator; if the user has replaced it by another kind, `get_state` is used."""

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
