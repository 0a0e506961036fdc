"""Plausible numbers for what nobody knows: standard normal, or of the sign that the operation before has.

What is drawn depends on the seed and on the content's number alone, so that it is the same however often it is asked
for.
"""

import math
from collections.abc import Callable
from typing import Final

import torch

from ullage.values.content import Call, Content, Operand, Sign

_DEEPEST: Final = 12
"""So many operations are looked through for a sign."""
_STRIDE: Final = 1_000_003  # a prime, so that seeds and serial numbers do not meet

_OF_RESULT: Final = {
    Sign.UNIT: ("sigmoid", "sigmoid_", "softmax", "_softmax", "_safe_softmax", "hardsigmoid", "rand", "special_expit"),
    Sign.POSITIVE: (
        *("exp", "exp_", "softplus", "cosh", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "_ctc_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "smooth_l1_loss", "huber_loss", "l1_loss"),
    ),
    Sign.NOT_NEGATIVE: (
        *("relu", "relu_", "abs", "abs_", "square", "sqrt", "sqrt_", "linalg_vector_norm", "norm", "var", "std"),
        *("_foreach_norm", "clamp_min_", "_cdist_forward", "hardtanh", "relu6"),
    ),
    Sign.NEGATIVE: ("log_softmax", "_log_softmax", "log_sigmoid_forward"),
}
_SIGN_OF_RESULT: Final = {name: sign for sign, names in _OF_RESULT.items() for name in names}
_KEEP: Final = frozenset(
    (
        *("mean", "sum", "nansum", "amax", "amin", "max", "min", "clone", "copy_", "_to_copy", "select", "cumsum"),
        *("topk", "sort", "gather", "index", "index_select", "cat", "stack", "median", "mul", "div", "add", "add_"),
        *("mul_", "div_", "expand", "repeat", "squeeze", "where", "masked_fill", "avg_pool2d", "clamp"),
    )
)
"""Operations whose results have the sign that all their operands have."""


def sign_of(content: Content, depth: int = _DEEPEST) -> Sign:
    """Tell what sign numbers have, by the operations that lead to them."""
    call = content.call
    if call is None or depth == 0:
        return content.sign
    name = call.operator._schema.name.partition("::")[2]
    if name in _SIGN_OF_RESULT:
        return _SIGN_OF_RESULT[name]
    if name == "pow" and isinstance(exponent := call.arguments[-1], int | float) and exponent % 2 == 0:
        return Sign.NOT_NEGATIVE
    if name == "clamp_min" and isinstance(low := call.arguments[-1], int | float) and low >= 0:
        return Sign.NOT_NEGATIVE
    if name == "neg":
        inner = _common(call, depth)
        return Sign.NEGATIVE if inner >= Sign.NOT_NEGATIVE else Sign.POSITIVE if inner == Sign.NEGATIVE else Sign.ANY
    if name in _KEEP:
        common = _common(call, depth)
        # sums and products of numbers between 0 and 1 need not be
        return Sign.NOT_NEGATIVE if common == Sign.UNIT and name in ("sum", "cumsum", "add", "add_") else common
    return content.sign


def _common(call: Call, depth: int) -> Sign:
    found: set[Sign] = set()
    for argument in call.arguments:
        for each in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(each, Operand):
                found.add(sign_of(each.content, depth - 1))
            elif isinstance(each, int | float) and not isinstance(each, bool) and each < 0:
                return Sign.ANY
    if len(found) == 1:
        return found.pop()
    if found and Sign.ANY not in found and Sign.NEGATIVE not in found:
        return Sign.NOT_NEGATIVE
    return Sign.ANY


def draw(content: Content, seed: int) -> torch.UntypedStorage:
    """Return bytes on the host for a content that nobody knows: floats drawn, anything else zero."""
    if not content.is_float:
        return torch.zeros(content.bytes, dtype=torch.uint8).untyped_storage()
    dtype = content.dtype
    count = content.bytes // dtype.itemsize
    generator = torch.Generator().manual_seed((seed * _STRIDE + content.serial) % (1 << 62))
    part = torch.float32 if not dtype.is_complex else dtype
    numbers = torch.empty(count, dtype=part).normal_(generator=generator)
    if not dtype.is_complex:
        sign = sign_of(content)
        if count == 1 and sign == Sign.ANY:
            sign = Sign.POSITIVE  # a loss, a norm
        numbers = _WITH_SIGN[sign](numbers)
    whole = torch.empty(content.bytes, dtype=torch.uint8)
    whole[: count * dtype.itemsize].view(dtype).copy_(numbers)
    return whole.untyped_storage()


_WITH_SIGN: Final[dict[Sign, Callable[[torch.Tensor], torch.Tensor]]] = {
    Sign.ANY: lambda numbers: numbers,
    Sign.NEGATIVE: lambda numbers: numbers.abs_().add_(0.01).neg_(),
    Sign.NOT_NEGATIVE: lambda numbers: numbers.abs_(),
    Sign.POSITIVE: lambda numbers: numbers.abs_().add_(0.01),
    Sign.UNIT: lambda numbers: numbers.mul_(math.sqrt(math.pi / 8)).sigmoid_(),
}
