"""Random numbers where everything is computed: PyTorch's own of the CPU in place of the card's.

After `torch.manual_seed` a script draws on the emulated card what it would draw on the CPU. Where it sets the card's
generator by itself (`torch.cuda.set_rng_state`, `torch.cuda.manual_seed`, checkpointing), the numbers go back to what
they were at that state of the card's generator, which PyTorch advances as on a card.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import torch

_MOST_STATES: Final = 4096
_FACTOR: Final = 7_368_787

_Position = tuple[int, int]
"""A card's generator's seed and offset."""


@dataclass(slots=True, eq=False)
class _Chain:
    """The host's generator that stands in for one of the card's, and where the card's is by now."""

    at: _Position | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)
    states: OrderedDict[_Position, torch.Tensor] = field(default_factory=OrderedDict)
    """The state of the host's generator at each state of the card's."""


class RandomNumbers:
    """The host's generators, by the card's."""

    def __init__(self) -> None:
        self._chains: dict[int, _Chain] = {}
        self._is_fresh = True
        """Whether the default generators have been seeded, and the card's not used since."""
        self._shared_at: dict[int, _Position] = {}
        """The state of a card's default generator when the host's default generator last stood in for it."""

    def seed(self) -> None:
        """Note that `torch.manual_seed` has set all default generators."""
        self._is_fresh = True
        self._shared_at.clear()

    def seed_card(self) -> None:
        """Note that the card's default generators have been seeded, and not the host's."""
        self._is_fresh = False
        self._shared_at.clear()
        for chain in self._chains.values():
            chain.at = None

    def position(self, generator: Any, device: int) -> _Position:
        """Return where a card's generator is."""
        own = torch.cuda.default_generators[device] if generator is None else generator
        state = own.get_state().view(torch.int64)
        return int(state[0]), int(state[1])

    def state(self, generator: Any, device: int, position: _Position) -> tuple[Any, torch.Tensor]:
        """Return the host's generator for a state of a card's generator, and its own state."""
        _, host = self._host(generator, device, position)
        return host, host.get_state()

    def settle(self, generator: Any, device: int, host: Any) -> None:
        """Note where a card's generator is after numbers were drawn."""
        position = self.position(generator, device)
        chain = self._chain(generator, device)
        if generator is not None:
            self._go_along(device, chain.at, position)
        if host is torch.default_generator and self._shared_at.get(device, chain.at) == chain.at:
            self._shared_at[device] = position
        chain.at = position
        chain.generator = host

    def _go_along(self, device: int, before: _Position | None, after: _Position) -> None:
        """Leave the host's default generator as it is where the card's was given by name and has moved.

        cuDNN's dropout is seeded so, once: the same script on the CPU draws nothing there.
        """
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
