"""Replaces random numbers with fixed values, so that the losses of a batch and of its parts can be compared.

Dropout passes its input through, noise is constant, and a random permutation shifts by one.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_PROBABILITIES: Final = ("dropout_p", "dropout", "p")


class Settled(TorchDispatchMode):
    """A dispatch mode in which random operations return fixed values."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = 0
        """A hash of the names of all operators that were run, in their order."""
        self.has_drawn = False
        self.unsettled: set[str] = set()
        """The names of random operations that were run and cannot be replaced."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        self.operators = hash((self.operators, func))
        return self._settled(func, args, kwargs) if is_random else func(*args, **kwargs)

    def _settled(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.has_drawn = True
        name = str(func.overloadpacket.__name__)
        if name in ("native_dropout", "_fused_dropout"):
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name in _FILLED:
            filling = _FILLED[name](args[1:], kwargs)
            return args[0].copy_(filling) if isinstance(filling, torch.Tensor) else args[0].fill_(filling)
        if name in _MADE:
            return _MADE[name](func(*args, **kwargs), args, kwargs)
        names = [argument.name for argument in func._schema.arguments]
        for known in _PROBABILITIES:
            if known in names:
                place = names.index(known)
                if place < len(args):
                    args = (*args[:place], 0.0, *args[place + 1 :])
                else:
                    kwargs = {**kwargs, known: 0.0}
                return func(*args, **kwargs)
        self.unsettled.add(name)
        return func(*args, **kwargs)


def _given(args: Any, kwargs: Any, place: int, name: str, default: float) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


# Maps each operation that fills an existing tensor with random numbers to a function. The function returns the fixed
# number to fill in instead.
_FILLED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "bernoulli_": lambda args, kwargs: _given(args, kwargs, 0, "p", 0.5),
    "uniform_": lambda args, kwargs: 0.5 * (_given(args, kwargs, 0, "from", 0.0) + _given(args, kwargs, 1, "to", 1.0)),
    "normal_": lambda args, kwargs: _given(args, kwargs, 0, "mean", 0.0) + 0.5 * _given(args, kwargs, 1, "std", 1.0),
    "exponential_": lambda args, kwargs: 0.7 / _given(args, kwargs, 0, "lambd", 1.0),
    "log_normal_": lambda args, kwargs: 1.5,
    "cauchy_": lambda args, kwargs: 0.5,
    "geometric_": lambda args, kwargs: 2,
    "random_": lambda args, kwargs: args[0] if len(args) == 2 else 0,
}

# Maps each operation that returns a new tensor of random numbers to a function. The function returns a tensor of fixed
# numbers instead.
_MADE: Final[dict[str, Callable[[torch.Tensor, Any, Any], torch.Tensor]]] = {
    **dict.fromkeys(("rand", "randn", "rand_like", "randn_like"), lambda made, args, kwargs: made.fill_(0.5)),
    "randint": lambda made, args, kwargs: made.fill_(_middle(args)),
    "randint_like": lambda made, args, kwargs: made.fill_(_middle(args[1:])),
    "randperm": lambda made, args, kwargs: made.copy_(
        torch.arange(made.numel(), dtype=made.dtype, device=made.device).roll(1)
    ),
    "bernoulli": lambda made, args, kwargs: made.copy_((args[0] >= 0.5).to(made.dtype)),
    "multinomial": lambda made, args, kwargs: (
        made.copy_(args[0].topk(made.size(-1), -1).indices) if made.size(-1) <= args[0].size(-1) else made.fill_(0)
    ),
    "normal": lambda made, args, kwargs: made.copy_(
        torch.as_tensor(args[0]).to(made) + 0.5 * torch.as_tensor(_given(args, kwargs, 1, "std", 1.0)).to(made)
    ),
    "poisson": lambda made, args, kwargs: made.copy_(args[0].round()),
}


def _middle(args: Any) -> int:
    low, high = (args[0], args[1]) if len(args) > 1 and isinstance(args[1], int) else (0, args[0])
    return int(low + high) // 2
