"""Leave models that are built on the CPU undrawn: their values change no byte on the card.

Drawing billions of them takes minutes and this machine's memory; a tensor that nobody fills takes neither.
"""

from collections.abc import Callable

import torch

_DRAWN = ("trunc_normal_", "normal_", "uniform_", "xavier_uniform_", "kaiming_uniform_")


def _on_the_card_alone(drawn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function of torch.nn.init that leaves tensors of the CPU as they are."""
    return lambda tensor, *rest, **named: drawn(tensor, *rest, **named) if tensor.is_cuda else tensor


for name in _DRAWN:
    setattr(torch.nn.init, name, _on_the_card_alone(getattr(torch.nn.init, name)))
