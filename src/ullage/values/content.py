"""What a storage on the card holds: bytes that are there, or the operation that would make them.

A content belongs to a storage, not to a tensor, so that views share it. It is attached to the storage's Python object
and dies with it: PyTorch keeps one such object for each storage for as long as the storage lives (torch 2.6 to 2.15).
"""

import itertools
import weakref
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import torch

ATTRIBUTE: Final = "ullage_content"
INTERCEPTION_KEY: Final = "Fake"
"""The dispatch key at which operations are seen: below autograd, above the kernels, and nobody else's (torch 2.6 to
2.15, c10/core/DispatchKey.h). A dispatch mode would be seen by autograd, which then sums gradients in another way."""
_serials = itertools.count(1)


class Certainty(IntEnum):
    """How well a value is known; of several that lead to one the highest counts."""

    KNOWN = 0
    """What a real card would hold: it follows from what the host sent."""
    ASSUMED = 1
    """It follows from numbers being finite, which is taken for granted."""
    DRAWN = 2
    """It follows from plausible values, drawn from a seed."""
    UNKNOWN = 3
    """Nothing is known: it reads as zero."""


class Sign(IntEnum):
    """What is known of numbers that have to be drawn."""

    ANY = 0
    NEGATIVE = 1
    NOT_NEGATIVE = 2
    POSITIVE = 3
    UNIT = 4
    """Between 0 and 1."""


class Content:
    """The bytes of one storage at one moment: later writes make another content."""

    __slots__ = ("__weakref__", "bytes", "call", "certainty", "depth", "dtype", "serial", "sign", "value")

    def __init__(
        self,
        size_bytes: int,
        dtype: torch.dtype,
        certainty: Certainty,
        *,
        call: "Call | None" = None,
        value: "torch.UntypedStorage | None" = None,
        depth: int = 0,
        sign: Sign = Sign.ANY,
    ) -> None:
        self.bytes = size_bytes
        self.dtype = dtype
        """The type of the tensor that was written last."""
        self.certainty = certainty
        self.call = call
        """The operation that makes it; None where it is there already, or nobody knows it."""
        self.value = value
        """The bytes on the host, once they were asked for."""
        self.depth = depth
        """How many operations lead to it."""
        self.sign = sign
        self.serial = next(_serials)
        """Its number, the same in every run of a script, from which what is drawn is drawn."""

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype.is_floating_point or self.dtype.is_complex


class View:
    """Where in a storage a tensor lies."""

    __slots__ = ("dtype", "offset", "size", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()

    @property
    def bytes(self) -> int:
        """How many bytes its elements have."""
        return self.size.numel() * self.dtype.itemsize

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return this view of a storage on the host."""
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and (
            (self.dtype, self.size, self.stride, self.offset) == (other.dtype, other.size, other.stride, other.offset)
        )

    __hash__ = None  # type: ignore[assignment]  # it is compared, and never a key


class Operand(View):
    """A tensor on the card as an argument of an operation that may be run later: a view of a content."""

    __slots__ = ("content",)

    def __init__(self, content: Content, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.content = content

    def is_same_as(self, other: object) -> bool:
        """Tell whether another argument is the same view of the same bytes."""
        return isinstance(other, Operand) and other.content is self.content and self == other


class Target:
    """A content that a call makes: which view of its storage is written, and what the rest of it is."""

    __slots__ = ("base", "content", "place", "view")

    def __init__(self, content: Content, view: View, place: int | str, base: Content | None = None) -> None:
        self.content = weakref.ref(content)  # the content leads to the call, not the other way round
        self.view = view
        self.place = place
        """The number of the result, or the name of the argument that is written."""
        self.base = base
        """What the storage held before, where the call writes a part of it or reads it."""


class Call:
    """An operation with its arguments, not run yet; tensors on the card are operands."""

    __slots__ = ("arguments", "is_random", "keywords", "operator", "targets")

    def __init__(
        self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], *, is_random: bool
    ) -> None:
        self.operator = operator
        self.arguments = arguments
        self.keywords = keywords
        self.is_random = is_random
        self.targets: list[Target] = []


def content_of(storage: torch.UntypedStorage) -> Content | None:
    """Return the content of a storage on the card; None where nothing was written that we saw."""
    found: Content | None = storage.__dict__.get(ATTRIBUTE)
    if found is not None and found.bytes != storage.nbytes():  # it was resized meanwhile
        return None
    return found


def attach(storage: torch.UntypedStorage, content: Content | None) -> None:
    """Say what a storage holds from now on; None: nothing that we know."""
    if content is None:
        storage.__dict__.pop(ATTRIBUTE, None)
    else:
        storage.__dict__[ATTRIBUTE] = content
