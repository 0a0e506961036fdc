"""Reduces a gradient to a few numbers that are linear in it, so that gradients of any size can be compared.

The numbers of a sum of gradients are the sum of their numbers. Two gradients with equal numbers are equal for all
practical purposes: each number is a sum of elements with irregular weights.
"""

from typing import Final

import torch

NUMBERS: Final = 64
_PIECE: Final = 1 << 22
"""The number of elements that are converted to float64 at once."""
_ANGLE: Final = 2.399963229728653
"""The golden angle in radians, so that the weights of neighbouring elements differ and never repeat."""


def sketch_of(gradient: torch.Tensor | None) -> torch.Tensor:
    """Return the numbers of a gradient: a tensor of shape (64,) in float64, on the gradient's device.

    Args:
        gradient: a gradient of any shape, dtype and layout; None counts as zero.
    """
    if gradient is None:
        return torch.zeros(NUMBERS, dtype=torch.float64)
    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    flat = dense.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    total = torch.zeros(NUMBERS, dtype=torch.float64, device=flat.device)
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE].double()
        places = torch.arange(start, start + piece.numel(), dtype=torch.float64, device=flat.device)
        weighted = piece * torch.cos(places * _ANGLE + 0.5)
        rest = -weighted.numel() % NUMBERS
        total += torch.nn.functional.pad(weighted, (0, rest)).reshape(-1, NUMBERS).sum(0)
    return total
