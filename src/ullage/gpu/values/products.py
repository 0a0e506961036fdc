"""Small products and convolutions: worked out when they are asked for, from what went in: results hang together then.

The rows of a product are as large as the rows that it is made of, its columns as alike as the weights' are, and what a
convolution makes of overlapping windows is alike. So the score of a graph's node goes with how many neighbours it has,
a token is more like itself than like others, and a heat map has fewer peaks than noise. A product of numbers that are
drawn one by one has none of that. What goes in is known or drawn; what comes out always counts as drawn, as the card
rounds in another way.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

_CONVOLUTION: Final = "aten::cudnn_convolution"
_FACTORS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", _CONVOLUTION), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), (1, 2)),
}
"""Places of the two factors among an operator's arguments."""
PRODUCTS: Final = frozenset(_FACTORS)
"""Operators that may be worked out."""
MULTIPLICATIONS: Final = 1 << 27
"""A product with more is drawn: it would take the host more than some ten milliseconds."""
_NARROW: Final = frozenset((torch.float16, torch.bfloat16))


def is_small(name: str, arguments: Sequence[Any], result: torch.Tensor, most_bytes: int) -> bool:
    """Tell whether a product is worked out: of floats that are all kept, and with few multiplications."""
    first, second = (arguments[place] for place in _FACTORS[name])
    if not result.dtype.is_floating_point:
        return False
    if any(math.prod(each.size()) * each.dtype.itemsize > most_bytes for each in (result, first, second)):
        return False
    each = second.numel() // max(second.size(0), 1) if name == _CONVOLUTION else int(first.size(-1))
    return result.numel() * each <= MULTIPLICATIONS


def widened(arguments: Sequence[Any]) -> tuple[Sequence[Any], torch.dtype | None]:
    """Return a product's arguments with wider floats, which a CPU is a hundred times as fast with, and what they were.

    None: they are wide enough.
    """
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    narrow = next((each.dtype for each in tensors if each.dtype in _NARROW), None)
    if narrow is None:
        return arguments, None
    return [each.float() if isinstance(each, torch.Tensor) else each for each in arguments], narrow
