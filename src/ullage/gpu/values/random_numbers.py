"""Replace the GPU's random generators with CPU generators, in the mode "all".

After `torch.manual_seed`, a script on the emulated GPU gets the random numbers that it would get on the CPU. If a
script sets the state of the GPU's generator, it gets the numbers that belong to this state. PyTorch advances the GPU
generator's state as on a real GPU.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import torch

_MOST_STATES: Final = 4096
_FACTOR: Final = 7_368_787

# seed and offset of a GPU generator
_Position = tuple[int, int]


@dataclass(slots=True, eq=False)
class _Chain:
    at: _Position | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    states: OrderedDict[_Position, torch.Tensor] = field(default_factory=OrderedDict)


class RandomNumbers:
    """The CPU random generators that replace those of the emulated GPU."""

    def __init__(self) -> None:
        self._chains: dict[int, _Chain] = {}
        self._is_fresh = True
        self._shared_at: dict[int, _Position] = {}

    def seed(self) -> None:
        """Handle a call of `torch.manual_seed`, which seeds the default generators of the CPU and the GPU."""
        self._is_fresh = True
        self._shared_at.clear()

    def seed_card(self) -> None:
        """Handle a call of `torch.cuda.manual_seed` or `torch.cuda.manual_seed_all`, which seed only GPU generators."""
        self._is_fresh = False
        self._shared_at.clear()
        for chain in self._chains.values():
            chain.at = None

    def position(self, generator: Any, device: int) -> _Position:
        """Return the seed and the offset of a GPU random generator."""
        own = torch.cuda.default_generators[device] if generator is None else generator
        state = own.get_state().view(torch.int64)
        return int(state[0]), int(state[1])

    def state(self, generator: Any, device: int, position: _Position) -> tuple[Any, torch.Tensor]:
        """Return the CPU generator that replaces a GPU generator, and the state of the CPU generator.

        Args:
            generator: the GPU generator. None is the default generator.
            device: the index of the GPU.
            position: the seed and the offset of the GPU generator.
        """
        _, host = self._host(generator, device, position)
        return host, host.get_state()

    def settle(self, generator: Any, device: int, host: Any) -> None:
        """Store the seed and offset of a GPU generator after it was used."""
        position = self.position(generator, device)
        chain = self._chain(generator, device)
        if generator is not None:
            self._go_along(device, chain.at, position)
        if host is torch.default_generator and self._shared_at.get(device, chain.at) == chain.at:
            self._shared_at[device] = position
        chain.at = position
        chain.generator = host

    # cuDNN's dropout is seeded once in this way. The same script on the CPU uses no random number there.
    def _go_along(self, device: int, before: _Position | None, after: _Position) -> None:
        chain = self._chain(None, device)
        was_there = chain.at == before or (self._is_fresh and before is not None and before[1] == 0)
        if not was_there or after == before or self.position(None, device) != after:
            return
        if self._is_fresh:
            chain.generator = torch.default_generator
            self._is_fresh = False
            self._shared_at[device] = after
        elif self._shared_at.get(device) == before:
            self._shared_at[device] = after
        chain.at = after

    def _chain(self, generator: Any, device: int) -> _Chain:
        key = -1 - device if generator is None else id(generator)
        if key not in self._chains:
            self._chains[key] = _Chain()
        return self._chains[key]

    def _host(self, generator: Any, device: int, position: _Position) -> tuple[_Chain, Any]:
        chain = self._chain(generator, device)
        default = torch.default_generator
        known = chain.states.get(position)
        if chain.at != position:
            host: Any
            if generator is None and self._is_fresh and position[1] == 0:
                host = default
                self._shared_at[device] = position
            elif (generator is None and self._shared_at.get(device) == position) or (
                generator is None and known is not None and torch.equal(known, default.get_state())
            ):
                host = default
            else:
                host = torch.Generator()
                if known is not None:
                    host.set_state(known)
                else:
                    seed, offset = position
                    host.manual_seed(seed if offset == 0 else (seed * _FACTOR + offset) % (1 << 62))
            chain.at = position
            chain.generator = host
        if generator is None:
            self._is_fresh = False
        chain.states[position] = chain.generator.get_state()
        chain.states.move_to_end(position)
        if len(chain.states) > _MOST_STATES:
            chain.states.popitem(last=False)
        return chain, chain.generator
