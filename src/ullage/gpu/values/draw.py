"""Generate plausible random numbers to replace unknown tensor values.

The numbers are standard normal, with the sign that the last operation gives. They depend only on the seed and on the
serial number of the block content, so repeated reads return the same numbers.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from ullage.gpu.values.content import BlockContent, Operand, OperatorCall, Sign, UpdatedContent

# Named in each call, because a script may set another default (`torch.set_default_tensor_type`).
_HOST: Final = torch.device("cpu")
# the number of operations to go back in search of the sign
_DEEPEST: Final = 12
_STRIDE: Final = 1_000_003  # a prime number, so that seeds and serial numbers do not collide
_MOST_COLUMNS: Final = 1 << 17
_MANY: Final = 64
# the assumed relative change of a number in an optimizer step, if it is not known
_STEP: Final = 0.01
# the largest assumed relative change by all optimizer steps together
_FARTHEST: Final = 0.3
_SOFTMAX: Final = ("_softmax", "softmax", "_safe_softmax")
_REDUCE: Final = ("sum", "nansum", "mean", "nanmean", "linalg_vector_norm", "norm")


class DrawLevel(NamedTuple):
    """The settings for all random numbers of one seed.

    A sum over many random numbers is nearly the same for each seed. With equal settings, runs would agree more with
    each other than with a real run. So consecutive seeds have different settings.
    """

    spread: float
    """The distance between the columns of a matrix product, in standard deviations of a column.

    The scores of a router with a bias and independent inputs are 1 / sqrt(width) apart. The scores of later layers
    differ much more, because hidden states are similar. These values were chosen to match the token counts of a small
    Mixtral.
    """
    scale: float
    """The standard deviation of random numbers that replace a matrix product.

    The standard deviation is small for some seeds, because a freshly initialised output layer returns small numbers.
    """
    mean: float
    """The distance between the mean of many random numbers and the expected mean, in standard errors."""
    rate: float
    """The factor that shrinks random numbers at each further read by the same source line.

    Shrinking numbers end loops that wait for a small number.
    """


_LEVELS: Final = (
    DrawLevel(0.3, 0.5, 0.0, 0.5),
    DrawLevel(0.0, 0.1, 3.0, 0.1),
    DrawLevel(0.7, 1.0, -3.0, 0.8),
    DrawLevel(0.1, 0.3, 1.5, 0.3),
    DrawLevel(0.5, 1.5, -1.5, 0.65),
)


def level_of(seed: int) -> DrawLevel:
    """Return the settings of the random numbers for a seed. Consecutive seeds use five different settings in turn."""
    return _LEVELS[seed % len(_LEVELS)]


def put_off(call: OperatorCall, result: object, seed: int) -> None:
    """Shift the mean of random numbers slightly, because the mean on a real GPU differs from its expected value."""
    if not isinstance(result, torch.Tensor) or result.numel() < _MANY or not result.dtype.is_floating_point:
        return
    shift = level_of(seed).mean / math.sqrt(result.numel())
    bounds = [each for each in (*call.arguments[1:3], *call.keywords.values()) if isinstance(each, int | float)]
    name = call.operator._schema.name
    if name == "aten::normal_" and shift:
        result.add_(shift * (bounds[1] if len(bounds) > 1 else 1.0))
    elif name == "aten::uniform_" and shift and not bounds:  # keeps the numbers between 0 and 1
        normal = torch.special.ndtri(result.double().clamp_(1e-9, 1 - 1e-9)).add_(shift)
        result.copy_(torch.special.ndtr(normal).clamp_(0, 1 - 2**-12))


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
# If all operands have the same sign, the results have it too.
_KEEP: Final = frozenset(
    (
        *("mean", "sum", "nansum", "amax", "amin", "max", "min", "clone", "copy_", "_to_copy", "select", "cumsum"),
        *("topk", "sort", "gather", "index", "index_select", "cat", "stack", "median", "mul", "div", "add", "add_"),
        *("mul_", "div_", "expand", "repeat", "squeeze", "where", "masked_fill", "avg_pool2d", "clamp"),
    )
)


def sign_of(content: BlockContent, depth: int = _DEEPEST) -> Sign:
    """Return the sign of the numbers in a block of GPU memory, derived from the operations that compute them."""
    if isinstance(content, UpdatedContent):
        return sign_of(content.origin, depth)
    call = content.call
    if call is None or depth == 0:
        return Sign.ANY
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
        # Sums and products of numbers between 0 and 1 may leave this range.
        return Sign.NOT_NEGATIVE if common == Sign.UNIT and name in ("sum", "cumsum", "add", "add_") else common
    return Sign.ANY


def _common(call: OperatorCall, depth: int) -> Sign:
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


def draw(content: BlockContent, seed: int) -> torch.UntypedStorage:
    """Return made-up content for GPU memory whose content is unknown: random floats, or zeros for other types."""
    if not content.is_float:
        return torch.zeros(content.bytes, dtype=torch.uint8, device=_HOST).untyped_storage()
    dtype = content.dtype
    count = content.bytes // dtype.itemsize
    generator = torch.Generator().manual_seed((seed * _STRIDE + content.serial) % (1 << 62))
    part = torch.float32 if not dtype.is_complex else dtype
    numbers = torch.empty(count, dtype=part, device=_HOST).normal_(generator=generator)
    if not dtype.is_complex:
        numbers = _shaped(content, numbers, seed, generator)
    whole = torch.empty(content.bytes, dtype=torch.uint8, device=_HOST)
    whole[: count * dtype.itemsize].view(dtype).copy_(numbers)
    return whole.untyped_storage()


def updated(content: UpdatedContent, origin: torch.UntypedStorage, seed: int) -> torch.UntypedStorage:
    """Return the bytes of a memory block after optimizer steps.

    Gradients of a tensor are correlated, because the inputs are positive or have a nonzero mean. So the weights of one
    output grow or shrink together, and a few steps shift all scores of an output. Adam moves each number by about the
    learning rate per step, however small the gradient is.
    """
    numbers = torch.empty(0, dtype=content.dtype, device=_HOST)
    numbers.set_(origin, 0, (origin.nbytes() // content.dtype.itemsize,), (1,))
    if content.dtype.is_complex or len(numbers) % content.inputs:
        return origin
    before = numbers.float().view(-1, content.inputs)
    generator = torch.Generator().manual_seed((seed * _STRIDE + content.serial) % (1 << 62))
    moves = torch.empty_like(before).normal_(generator=generator)
    moves += _normal(len(before), 1, generator=generator)
    together = float(_normal(generator=generator))
    size = float(before.square().mean().sqrt())
    if not size:  # a second moment that is still zero stays zero
        return origin
    share = min(_STEP * content.updates + content.distance / size, _FARTHEST)
    after = before + (moves * size + before * together) * share
    whole = torch.empty(max(content.bytes, origin.nbytes()), dtype=torch.uint8, device=_HOST).zero_()
    whole[: len(numbers) * content.dtype.itemsize].view(content.dtype).copy_(after.flatten())
    return whole.untyped_storage()


def _normal(*size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float32, device=_HOST).normal_(generator=generator)


def _shaped(content: BlockContent, numbers: torch.Tensor, seed: int, generator: torch.Generator) -> torch.Tensor:
    level = level_of(seed)
    count = len(numbers)
    columns, column = content.columns, content.column
    is_product = content.call is None or columns > 0
    if is_product and 2 <= columns <= _MOST_COLUMNS and count >= columns * max(column, 2):
        rows = numbers[: count // (columns * column) * columns * column].view(-1, columns, column)
        rows.add_(_normal(columns, 1, generator=generator), alpha=level.spread)
        rows.mul_(level.scale / math.sqrt(1 + level.spread**2))
    elif is_product and count >= _MANY:
        numbers.mul_(level.scale)
    if count >= _MANY:
        numbers.add_(level.mean / math.sqrt(count) * (level.scale if is_product else 1))
    name = content.call.operator._schema.name.partition("::")[2] if content.call is not None else ""
    if name in _SOFTMAX and (distributed := _softmax(content, numbers, level, generator)) is not None:
        return distributed
    sign = sign_of(content)
    if name in _REDUCE and content.call is not None:
        numbers.mul_(_size_of_reduced(name, content.call, count, sign))
    if count == 1 and sign == Sign.ANY:
        sign = Sign.POSITIVE  # a loss or a norm
    return _WITH_SIGN[sign](numbers)


# The columns of a matrix product are correlated, so some positions are large in all rows.
def _softmax(
    content: BlockContent, numbers: torch.Tensor, level: DrawLevel, generator: torch.Generator
) -> torch.Tensor | None:
    call = content.call
    view = next((target.view for target in call.targets if target.content() is content), None) if call else None
    if call is None or view is None or view.offset or len(call.arguments) < 2:
        return None
    dimension, size = call.arguments[1], view.size.numel()
    if not isinstance(dimension, int) or size > len(numbers) or not view.size:
        return None
    scores = numbers[:size].view(view.size)
    places = [1] * scores.dim()
    places[dimension] = scores.size(dimension)
    scores.add_(_normal(*places, generator=generator), alpha=level.spread)
    numbers[:size] = scores.mul_(level.scale / math.sqrt(1 + level.spread**2)).softmax(dimension).flatten()
    return numbers


def _size_of_reduced(name: str, call: OperatorCall, count: int, sign: Sign) -> float:
    operand = call.arguments[0] if call.arguments else None
    if not isinstance(operand, Operand):
        return 1.0
    each = max(operand.size.numel() / max(count, 1), 1.0)
    if name in ("mean", "nanmean"):
        return 1 / math.sqrt(each) if sign == Sign.ANY else 1.0
    if name in ("sum", "nansum"):
        return math.sqrt(each) if sign == Sign.ANY else each
    return math.sqrt(each)


_WITH_SIGN: Final[dict[Sign, Callable[[torch.Tensor], torch.Tensor]]] = {
    Sign.ANY: lambda numbers: numbers,
    Sign.NEGATIVE: lambda numbers: numbers.abs_().add_(0.01).neg_(),
    Sign.NOT_NEGATIVE: lambda numbers: numbers.abs_(),
    Sign.POSITIVE: lambda numbers: numbers.abs_().add_(0.01),
    Sign.UNIT: lambda numbers: numbers.mul_(math.sqrt(math.pi / 8)).sigmoid_(),
}
