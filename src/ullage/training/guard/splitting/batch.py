"""Finds the number of items and the shape of a batch, and splits it into parts.

A batch is a tensor or any nesting of containers of tensors. A part consists of views, so nothing is copied. A batch
with other objects is never split, because they may not divide into items.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum, StrEnum
from typing import Any, Final

import torch
from torch import nn

from ullage.base.errors import UsageError

Shape = tuple[Any, ...]
Weight = Callable[[Any], float]
_AGREES: Final = 1e-6
# The maximum number of batch shapes in the cache of tensor sizes. A full cache is emptied.
_FORMS: Final = 4096


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors_of(value)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)
    elif is_dataclass(batch) and not isinstance(batch, type):
        for field in fields(batch):
            yield from tensors_of(getattr(batch, field.name))


def items_of(batch: Any, dim: int = 0) -> int | None:
    """Return the number of items in a batch. This is the size of its first tensor along `dim`, or None."""
    return next((tensor.size(dim) for tensor in tensors_of(batch) if tensor.dim() > dim), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The shapes and sizes of the tensors of a batch."""

    shape: Shape
    """The shapes and dtypes of the tensors. They determine how much memory the batch needs."""
    items: int | None
    """The number of items in the batch. None if no tensor has the batch dimension."""
    length: int
    """The number of elements of one item in the largest tensor of the batch: tokens of a sequence, or pixels of an
    image.
    """
    uneven: int | None
    """The size of a tensor in the batch dimension, if it differs from the number of items. Otherwise None."""
    odd: str | None
    """A description of a tensor that cannot be split, such as a nested tensor. None if all tensors can be split."""


def form_of(batch: Any, dim: int = 0) -> Form:
    """Return the shapes and sizes of a batch's tensors. Dimension `dim` counts the items."""
    tensors = all_of(batch)
    odd = next((text for text in map(_odd, tensors) if text is not None), None)
    if odd is not None:
        return Form(shape=shape_of(tensors), items=None, uneven=None, odd=odd, length=0)
    lying = [tensor for tensor in tensors if tensor.dim() > dim]
    sizes = [tensor.size(dim) for tensor in lying]
    return Form(
        shape=shape_of(tensors),
        items=sizes[0] if sizes else None,
        uneven=next((size for size in sizes if size not in (1, sizes[0])), None),
        odd=None,
        length=max([tensor.numel() // max(tensor.size(dim), 1) for tensor in lying], default=0),
    )


def all_of(batch: Any) -> Sequence[torch.Tensor]:
    """Return all tensors of a batch. This is fast for a single container of plain tensors."""
    kind = type(batch)
    elements = batch if kind in (tuple, list) else tuple(batch.values()) if kind is dict else (batch,)
    for element in elements:
        if type(element) is not torch.Tensor:
            return list(tensors_of(batch))
    return elements


def is_plain(batch: Any) -> bool:
    """Return whether a batch is a plain tensor, or a single list, tuple or dict of plain tensors."""
    kind = type(batch)
    if kind is torch.Tensor:
        return True
    elements = batch if kind in (tuple, list) else batch.values() if kind is dict else (None,)
    return all(type(element) is torch.Tensor for element in elements)


def shape_of(tensors: Sequence[torch.Tensor]) -> Shape:
    """Return the shape, dtype and layout of each tensor in a batch."""
    try:
        return tuple([(tensor.shape, tensor.dtype, tensor.layout) for tensor in tensors])
    except RuntimeError:  # a nested tensor has no shape
        return tuple([_shape_of_odd(tensor) for tensor in tensors])


def _shape_of_odd(tensor: torch.Tensor) -> Any:
    if not tensor.is_nested or tensor.layout is not torch.strided:
        return tensor.shape, tensor.dtype, tensor.layout
    return tuple(tuple(one.shape) for one in tensor.unbind()), tensor.dtype


def _odd(tensor: torch.Tensor) -> str | None:
    if tensor.is_nested:
        return "it holds a nested tensor"
    if tensor.layout is not torch.strided:
        return f"it holds a tensor of layout {tensor.layout}"
    return None if type(tensor) in _PLAIN else f"it holds a tensor of type {type(tensor).__name__}"


_PLAIN: Final = (torch.Tensor, nn.Parameter)
_ATOMS: Final = (
    *(type(None), bool, int, float, complex, str, bytes, Enum, range, slice),
    *(torch.dtype, torch.device, torch.Size),
)


def why_whole(batch: Any, *, is_vouched: bool = False) -> str | None:
    """Describe the first object in the batch that the guard cannot split into items. Return None if it can split all.

    Args:
        batch: the user's batch.
        is_vouched: whether the user passed `splittable=True`. If so, objects of unknown types are allowed, except
            sequences, mappings and NumPy arrays.
    """
    if isinstance(batch, torch.Tensor):
        return _odd(batch)
    if isinstance(batch, _ATOMS) or (type(batch).__module__ == "numpy" and not hasattr(batch, "__len__")):
        return None
    elements = _elements_of(batch)
    if elements is None:
        if is_vouched and not isinstance(batch, Sequence | Mapping) and type(batch).__module__ != "numpy":
            return None
        article = "a NumPy array" if type(batch).__module__ == "numpy" else f"a {type(batch).__qualname__}"
        return f"it holds {article}, and it is not known how that divides into items"
    reasons = (why_whole(element, is_vouched=is_vouched) for element in elements)
    return next((why for why in reasons if why is not None), None)


def _elements_of(value: Any) -> Sequence[Any] | None:
    kind = type(value)
    if kind in (list, tuple) or (isinstance(value, tuple) and _is_named(kind)):
        return tuple(value)
    if _is_mapping(value):
        return tuple(value.values())
    if _is_record(value):
        return [getattr(value, field.name) for field in fields(value)]
    return None


def _is_named(kind: type) -> bool:
    # A subclass, such as `PackedSequence`, does not count, because its elements may depend on each other.
    return hasattr(kind, "_fields") and kind.__bases__ == (tuple,)


def _is_mapping(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value).__init__ in (dict.__init__, OrderedDict.__init__) or _is_record(value)
    return isinstance(value, Mapping) and isinstance(getattr(value, "data", None), dict)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def repacked(batch: Any) -> Any:
    """Copy the containers of a batch, but not its tensors."""
    kind = type(batch)
    if kind is dict:
        return {key: value if type(value) is torch.Tensor else repacked(value) for key, value in batch.items()}
    if kind is tuple or kind is list:
        elements = [value if type(value) is torch.Tensor else repacked(value) for value in batch]
        return elements if kind is list else tuple(elements)
    return _mapped(batch, repacked)


def even_parts(items: int, at_least: int) -> int:
    """Return a number of parts into which the items can be split evenly.

    It is at least `at_least` and at most 1.5 times as large. If no such number exists, it is `at_least`.
    """
    at_least = min(at_least, items)
    return next((parts for parts in range(at_least, min(items, at_least * 3 // 2) + 1) if items % parts == 0), at_least)


def narrow(batch: Any, dim: int, start: int, length: int) -> Any:
    """Return the `length` items of a batch that begin at index `start`."""
    items = items_of(batch, dim)

    def cut(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.narrow(dim, start, length) if value.dim() > dim and value.size(dim) == items else value
        if dim == 0 and isinstance(value, list | tuple) and _has_one_for_each(value, items):
            return value[start : start + length]
        return _mapped(value, cut)

    return cut(batch)


def _has_one_for_each(value: Sequence[Any], items: int | None) -> bool:
    """Return whether a list has one element for each item of the batch, such as the boxes of each image."""
    sizes = [tensor.size(0) for tensor in tensors_of(value) if tensor.dim() > 0]
    return len(value) == items and not (sizes and all(size == items for size in sizes))


def unclear_list(batch: Any, dim: int = 0) -> str | None:
    """Describe a list of which it is unclear whether its elements are the items of the batch. None without one.

    Such a list has as many elements as the batch has items, and each tensor in it has that size too.
    """
    items = items_of(batch, dim)

    def unclear(value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return False
        if type(value) in (list, tuple) and len(value) == items and len(value) > 1:
            tensors = list(tensors_of(value))
            if tensors and not _has_one_for_each(value, items) and not all(type(one) is torch.Tensor for one in value):
                return True
        elements = _elements_of(value)
        return any(map(unclear, elements or ()))

    return f"it holds a list of {items} containers of tensors of size {items}" if unclear(batch) else None


def join(parts: Sequence[Any], lengths: Sequence[int], shares: Sequence[float], dim: int = 0) -> Any:
    """Join the second values that a loss function returned for the parts of a batch.

    Tensors with one row for each item are concatenated. Floating-point numbers are summed with the weights of the
    parts. Dicts and tuples are joined element by element. Other values are collected in a list.
    """
    first = parts[0]
    if isinstance(first, torch.Tensor) and first.dim() > dim:
        if all(part.dim() > dim and part.size(dim) == length for part, length in zip(parts, lengths, strict=True)):
            return torch.cat(list(parts), dim)
        return list(parts)
    if isinstance(first, float) or (isinstance(first, torch.Tensor) and first.dim() == 0 and first.is_floating_point()):
        return sum(part * share for part, share in zip(parts, shares, strict=True))
    if isinstance(first, dict) and all(part.keys() == first.keys() for part in parts):
        return type(first)((key, join([part[key] for part in parts], lengths, shares, dim)) for key in first)
    if isinstance(first, tuple) and all(len(part) == len(first) for part in parts):
        columns = (join(column, lengths, shares, dim) for column in zip(*parts, strict=True))
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return list(parts)


def _mapped(value: Any, cut: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    if type(value) is dict:
        return {key: cut(element) for key, element in value.items()}
    if _is_mapping(value):
        elements = {key: cut(element) for key, element in value.items()}
        if isinstance(value, dict):
            return type(value)(**elements) if _is_record(value) else type(value)(elements)
        made: Any = copy.copy(value)  # classes such as transformers' BatchEncoding have further attributes
        made.data = elements
        return made
    if isinstance(value, tuple) and _is_named(type(value)):
        return type(value)(*(cut(element) for element in value))
    if type(value) in (list, tuple):
        return type(value)(cut(element) for element in value)
    if _is_record(value):
        return replace(value, **{field.name: cut(getattr(value, field.name)) for field in fields(value) if field.init})
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """A part of a batch. It has `items` items and begins at index `start`."""

    start: int = 0
    items: int | None
    share: float | None = None
    """The factor by which the guard multiplies the loss of this part of the batch. None means that the batch is
    whole.
    """
    finished: frozenset[tuple[int, int]] = frozenset()
    """The gradients that a failed attempt has already accumulated for this part of the batch."""


class Weighting(StrEnum):
    """How the losses of the parts of a batch are weighted so that they add up to the loss of the batch."""

    GIVEN = "given"
    """The user's `weight` or `reduction` sets the weights."""
    COUNTS = "counts"
    """The weight is the denominator of a mean in the loss, such as the number of tokens without padding."""
    ITEMS = "items"
    """The weight is the number of items."""
    SUM = "sum"
    """Each weight is 1: the loss is a sum, or a sum divided by a number that does not depend on the part."""


@dataclass(slots=True)
class Done:
    """The result of forward and backward for a part of a batch."""

    part: BatchPart
    loss: torch.Tensor
    """The detached loss of the part, already multiplied by its weight."""
    extra: Any
    is_pair: bool
    """Whether the loss function returned a tuple. Its second value is in `extra`."""


def key_of(part: BatchPart) -> tuple[int, int]:
    """Return what identifies a part of a batch: its first item, and its number of items."""
    return part.start, part.items or 0


class Cutter:
    """Splits a batch into parts, and computes the weight of each part's loss."""

    def __init__(self, batch_dim: int, reduction: str, weight: Weight | None) -> None:
        self.dim = batch_dim
        self._reduction = reduction
        self._weight = weight
        self._forms: dict[Shape, tuple[Form, BatchPart]] = {}
        self.weigh_by_items()

    @property
    def weightings(self) -> tuple[Weighting, ...]:
        """The weightings of parts that may apply, in the order in which they are tried."""
        if self._weight is not None or self._reduction == "sum":
            return (Weighting.GIVEN,)
        return (Weighting.ITEMS, Weighting.SUM, Weighting.COUNTS)

    def weigh(self, weighting: Weighting, counts: Mapping[tuple[int, int], float] | None = None) -> None:
        """Set how `cut` weights the parts from now on.

        Args:
            weighting: the proven weighting.
            counts: for `Weighting.COUNTS`, the denominator of the mean for each part, by `key_of`.
        """
        self._weighting, self._counts = weighting, counts

    def weigh_by_items(self) -> None:
        """Let `cut` weight the parts by their numbers of items, or as the user has given it."""
        self.weigh(Weighting.ITEMS if Weighting.ITEMS in self.weightings else Weighting.GIVEN)

    def form_and_whole(self, tensors: Sequence[torch.Tensor]) -> tuple[Form, BatchPart]:
        """Return the shapes and sizes of the tensors in a batch, and a description of the whole, unsplit batch."""
        known = self._forms.get(shape_of(tensors))
        if known is not None:
            return known
        if len(self._forms) >= _FORMS:
            self._forms.clear()
        form = form_of(tensors, self.dim)
        return self._forms.setdefault(form.shape, (form, BatchPart(items=form.items)))

    def select(self, batch: Any, part: BatchPart) -> Any:
        """Return one part of a batch in new lists, tuples and dicts."""
        if part.items is None or (part.start == 0 and part.items == items_of(batch, self.dim)):
            return repacked(batch)
        return narrow(batch, self.dim, part.start, part.items)

    def share_of(self, batch: Any, part: BatchPart) -> float:
        """Return the weight of a part's loss in the loss of the whole batch."""
        total = items_of(batch, self.dim)
        if self._reduction == "sum" or part.items is None or total is None:
            return 1.0
        if self._weight is None:
            return part.items / total
        return float(self._weight(self.select(batch, part))) / float(self._weight(batch))

    def cut(self, batch: Any, part: BatchPart, size: int) -> list[BatchPart]:
        """Split a part of a batch into smaller parts of at most `size` items, of equal size if possible.

        Raises:
            UsageError: the user's function returned weights for the parts that do not sum to the weight of the whole.
        """
        pieces = self.pieces_of(part, size)
        if len(pieces) == 1:
            return [part]
        if self._reduction == "sum" or self._weighting is Weighting.SUM:
            return [replace(piece, share=1.0) for piece in pieces]
        if self._weight is not None:
            return self._weighted(batch, pieces, part, self._weight)
        of_part = part.share if part.share is not None else 1.0
        counts = [self._counts[key_of(piece)] if self._counts is not None else piece.items or 0 for piece in pieces]
        total = sum(counts) or 1.0
        return [replace(piece, share=of_part * own / total) for piece, own in zip(pieces, counts, strict=True)]

    def pieces_of(self, part: BatchPart, size: int) -> list[BatchPart]:
        """Split a part into pieces of at most `size` items, of equal size if possible, without weights."""
        if part.items is None or part.items <= size:
            return [part]
        length = -(-part.items // even_parts(part.items, -(-part.items // size)))
        return [
            replace(part, start=part.start + start, items=min(length, part.items - start))
            for start in range(0, part.items, length)
        ]

    def _weighted(self, batch: Any, pieces: list[BatchPart], part: BatchPart, weight: Weight) -> list[BatchPart]:
        whole = float(weight(batch))
        weights = [float(weight(narrow(batch, self.dim, piece.start, piece.items or 0))) for piece in pieces]
        expected = whole * (part.share if part.share is not None else self.share_of(batch, part))
        if whole <= 0 or min(weights) < 0 or abs(sum(weights) - expected) > _AGREES * whole:
            raise UsageError(
                f"weight returned {expected:g} for {part.items} items, and {sum(weights):g} in total for their "
                f"{len(pieces)} parts; expected a count above 0, such as a number of tokens, that is the same for a "
                "batch and, in total, for its parts"
            )
        return [replace(piece, share=own / whole) for piece, own in zip(pieces, weights, strict=True)]

    def outcome(self, done: list[Done]) -> Any:
        """Combine the results of the parts into the loss of the whole batch.

        If the loss function returned a second value, return a tuple of the loss and the joined second values.
        """
        loss = done[0].loss
        for one in done[1:]:
            loss = loss + one.loss  # not in place: the second value may be the same tensor
        if not done[0].is_pair:
            return loss
        shares = [one.part.share or 0.0 for one in done]
        return loss, join([one.extra for one in done], [one.part.items or 0 for one in done], shares, self.dim)
