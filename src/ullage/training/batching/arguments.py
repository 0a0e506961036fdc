"""Checks the arguments of a batch sampler."""

import contextlib
import operator
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ullage.base.errors import UsageError
from ullage.training.batching.layout import Ints

LONGEST: Final = 1 << 48
"""The largest item length that a batch sampler accepts. The limit ensures that sums of lengths fit into 64-bit
integers.
"""
_BRIEF_CHARACTERS: Final = 80


def read_lengths(lengths: Any) -> Ints:
    """Check the item lengths and return them in a new array.

    Raises:
        UsageError: `lengths` is empty, or an element is not a whole number above 0.
    """
    if isinstance(lengths, np.ndarray):
        values = lengths
    else:
        try:
            values = _array_of(list(lengths.tolist() if hasattr(lengths, "tolist") else lengths))
        except TypeError:
            raise UsageError(
                f"lengths is {brief(lengths)}; expected a list, an array or a tensor with the length of each item"
            ) from None
    if not values.size:
        raise UsageError("lengths is empty; expected the length of each item of the dataset")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise UsageError(
            f"lengths is an array of {values.dtype} with shape {values.shape}; expected a one-dimensional array of "
            "whole numbers, such as int64, with one length for each item of the dataset"
        )
    is_wrong = (values < 1) | (values > LONGEST)
    if is_wrong.any():
        index = int(is_wrong.argmax())
        whole(f"the length of item {index}", values[index], most=LONGEST)
    return np.array(values, dtype=np.int64)


def _array_of(lengths: list[Any]) -> npt.NDArray[Any]:
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in set(map(type, lengths))):
        with contextlib.suppress(OverflowError):
            return np.array(lengths, dtype=np.int64)
    return np.array(
        [whole(f"the length of item {index}", one, most=LONGEST) for index, one in enumerate(lengths)], dtype=np.int64
    )


def whole(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Convert an integer of any type to an `int`, and check its range.

    Raises:
        UsageError: the value is not a whole number, or it is out of range.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        bound = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is {brief(value if number is None else number)}; expected a whole number {bound}")
    return number


def place_of(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return the number of ranks and the index of this rank.

    Raises:
        UsageError: the rank is out of range. Or there are several ranks, and the rank of this process is unknown.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        ranks, own = distributed.get_world_size(), distributed.get_rank()
    else:
        ranks, own = 1, 0
        if rank is None and num_replicas is not None and num_replicas != 1:
            raise UsageError(
                f"num_replicas={num_replicas!r} was given without rank=, and torch.distributed is not initialised; "
                "pass rank= too, or call torch.distributed.init_process_group first and pass neither"
            )
    ranks = ranks if num_replicas is None else whole("num_replicas", num_replicas)
    own = own if rank is None else whole("rank", rank, least=0)
    if own >= ranks:
        raise UsageError(f"rank={own} is out of range for num_replicas={ranks}; expected a rank from 0 to {ranks - 1}")
    return ranks, own


def brief(value: object) -> str:
    """Return the `repr` of a value, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= _BRIEF_CHARACTERS else f"{text[:_BRIEF_CHARACTERS]}..."
