"""Records and restores the global random number generators of Python, NumPy and PyTorch.

Other generators, which the user has created, are not changed.
"""

import ctypes
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

# The size of the state of a Mersenne Twister, in bytes: 624 words, and the index of the next word.
_STATE_BYTES: Final = (624 + 1) * 4


class RandomState:
    """A record of the states of the global random number generators."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        on_cards = [device for device in devices if device.type in ("cuda", "mps", "xpu")]
        self.devices = [torch.device("cpu"), *on_cards]
        self._of_torch: list[tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], Any]]] = []
        self._numpy = _Numpy()
        self._states: tuple[list[torch.Tensor], Any, Any] | None = None

    def record(self) -> None:
        if not self._of_torch:  # the generators of GPUs exist only after the first tensor on a GPU
            self._of_torch = list(map(_generator_of, self.devices))
        self._states = [read() for read, _ in self._of_torch], random.getstate(), self._numpy.state()

    def are_others_used(self) -> bool:
        """Return whether Python's or NumPy's generator was used since the last call of `record()`.

        PyTorch's activation checkpointing does not restore these two.
        """
        if self._states is None:
            return False
        _, of_python, of_numpy = self._states
        return bool(random.getstate() != of_python or _words_of(self._numpy.state()) != _words_of(of_numpy))

    def are_any_used(self) -> bool:
        """Return whether any random number generator was used since the last call of `record()`."""
        if self._states is None:
            return False
        now = [read() for read, _ in self._of_torch]
        return self.are_others_used() or not all(map(torch.equal, now, self._states[0]))

    def restore(self) -> None:
        """Restore the recorded states. Do nothing if there are none."""
        if self._states is None:
            return
        of_torch, of_python, of_numpy = self._states
        for (_, write), state in zip(self._of_torch, of_torch, strict=True):
            write(state)
        random.setstate(of_python)
        self._numpy.set_state(of_numpy)

    def discard(self) -> None:
        self._states = None


class _Numpy:
    # `get_state` is slow. It is called only if the generator's memory has changed, or if the user has installed a
    # generator of another type.
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
        # A cached normal number can be used without changing the words of the state.
        if self._state is None or words != self._state[0] or self._state[1]["has_gauss"]:
            self._state = words, numpy.get_state(legacy=False)
        return self._state[1]

    def set_state(self, state: Any) -> None:
        if state is not None:
            sys.modules["numpy.random"].set_state(state)


def _words_of(state: dict[str, Any] | None) -> Any:
    return None if state is None else repr([*state["state"].values(), state.get("has_gauss"), state.get("gauss")])


def _generator_of(device: torch.device) -> tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], Any]]:
    if device.type in ("cpu", "cuda"):
        index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
        generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[index]
        return generator.get_state, generator.set_state
    backend = getattr(torch, device.type)
    place = () if device.type == "mps" else (device,)  # MPS has a single device
    return partial(backend.get_rng_state, *place), lambda state: backend.set_rng_state(state, *place)
