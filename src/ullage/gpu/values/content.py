"""What a block of the card's memory holds: bytes that are there, or the operation that would make them.

A content belongs to a block, not to a tensor, so that views share it, and goes when the allocator gets the block back.
"""

import ctypes
import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol

import torch

from ullage.gpu.tracing.journal import RecentBlocks

INTERCEPTION_KEY: Final = "Fake"
"""The dispatch key at which operations are seen: below autograd, above the kernels, and nobody else's (torch 2.6 to
2.15, c10/core/DispatchKey.h). A dispatch mode would be seen by autograd, which then sums gradients in another way."""
KEY: Final[Any] = torch._C._parse_dispatch_key(INTERCEPTION_KEY)
_DECAY: Final = 0.9
_ROUNDED_BYTES: Final = 512
_serials = itertools.count(1)


class Certainty(IntEnum):
    """How well a value is known; of several that lead to one the highest counts."""

    KNOWN = 0
    """The value that a real card would hold: it follows from what the host sent."""
    ASSUMED = 1
    """It follows from what is taken for granted: that numbers are finite, or that a script's own operator computes on
    the CPU what it does on a card."""
    ALIKE = 2
    """It follows from this rank's own numbers, taken for those of other ranks, which were not asked."""
    DRAWN = 3
    """It follows from plausible values, drawn from a seed."""
    UNKNOWN = 4
    """Nothing is known: it reads as zero."""


class Sign(IntEnum):
    """What is known of numbers that have to be drawn."""

    ANY = 0
    NEGATIVE = 1
    NOT_NEGATIVE = 2
    POSITIVE = 3
    UNIT = 4
    """Between 0 and 1."""


class BlockContent:
    """The bytes of one storage at one moment: later writes make another content."""

    __slots__ = (
        *("__weakref__", "bytes", "call", "certainty", "column", "columns", "depth", "dtype"),
        *("is_unwritten", "serial", "value"),
    )

    def __init__(
        self,
        size_bytes: int,
        dtype: torch.dtype,
        certainty: Certainty,
        *,
        depth: int = 0,
        serial: int | None = None,
    ) -> None:
        self.is_unwritten = False
        """Whether nobody has written it since it was allocated."""
        self.bytes = size_bytes
        self.dtype = dtype
        """The type of the tensor that was written last."""
        self.certainty = certainty
        self.call: OperatorCall | None = None
        """The operation that makes it; None where it is there already, or nobody knows it."""
        self.value: torch.UntypedStorage | None = None
        """The bytes on the host, once they were asked for."""
        self.depth = depth
        """The number of operations that lead to it."""
        self.columns = 0
        """The number of outputs of a product of matrices or a convolution, if one has made it."""
        self.column = 1
        """The number of an output's numbers that lie side by side."""
        self.serial = next(_serials) if serial is None else serial
        """Its number, the same in every run of a script, from which what is drawn is drawn."""

    def grow(self, size_bytes: int, *, is_new: bool) -> None:
        """Count more of the block to it, which nobody has written as far as it `is_new`."""
        if not is_new:
            self.certainty = max(self.certainty, Certainty.DRAWN if self.is_float else Certainty.UNKNOWN)
        if self.value is not None:
            self.value = extended(self.value, size_bytes)
        self.bytes = size_bytes

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype.is_floating_point or self.dtype.is_complex


class UpdatedContent(BlockContent):
    """What an optimizer makes of floats: other bytes than before, which what was noted before does not see."""

    __slots__ = ("distance", "inputs", "origin", "steps", "updates")

    def __init__(self, before: BlockContent, tensor: torch.Tensor, rate: float | None, *, is_of_mean: bool) -> None:
        """`rate`: how far each number is moved, if that is known; `is_of_mean`: it is over the share that a mean of
        gradients, by Adam's usual decay, has of all steps by then."""
        origin, updates, distance, steps = before, 0, 0.0, 0
        if isinstance(before, UpdatedContent):
            origin, updates, distance, steps = before.origin, before.updates, before.distance, before.steps
        super().__init__(
            *(before.bytes, before.dtype, max(before.certainty, Certainty.DRAWN)),
            depth=origin.depth,
            serial=origin.serial,
        )
        self.origin: BlockContent = origin
        self.steps: int = steps + is_of_mean
        self.updates: int = updates + (rate is None)
        """The number of an optimizer's operations in between that move numbers nobody knows how far."""
        share = 1 - _DECAY**self.steps if is_of_mean else 1.0
        self.distance: float = distance + share * (rate or 0.0)
        """The distance by which the others move each number."""
        self.inputs = max(tensor.numel() // max(tensor.size(0), 1), 1) if tensor.dim() > 1 else 1
        """The number of weights of one output."""


def extended(value: torch.UntypedStorage, size_bytes: int) -> torch.UntypedStorage:
    """Return a copy of bytes on the host with zeros behind them."""
    whole = torch.UntypedStorage(size_bytes)
    ctypes.memset(whole.data_ptr(), 0, size_bytes)
    ctypes.memmove(whole.data_ptr(), value.data_ptr(), min(value.nbytes(), size_bytes))
    return whole


def columns_of(size: Sequence[int], stride: Sequence[int]) -> tuple[int, int]:
    """Return how many outputs the product has that a tensor is of, and how many numbers of one lie side by side.

    The outputs of a matrix product are its last dimension; those of a convolution are before height and width.
    """
    in_memory = sorted(zip(stride, size, strict=True), reverse=True)
    sizes = [count for step, count in in_memory if step and count > 1]
    if len(size) < 4 or (len(size) == 4 and stride[1] == 1) or len(sizes) < 3:
        return (sizes[-1] if sizes else 0), 1
    return math.prod(sizes[1:-2]) if len(sizes) > 3 else sizes[0], sizes[-1] * sizes[-2]


class TensorView:
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

    @property
    def end_bytes(self) -> int:
        """How many bytes of its block there are up to its last element."""
        if not self.size.numel():
            return 0
        last = self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return int(last + 1) * self.dtype.itemsize

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return this view of a storage on the host; what lies beyond its end is zero."""
        if self.end_bytes > storage.nbytes():
            storage = extended(storage, self.end_bytes)
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


class Operand(TensorView):
    """A tensor on the card as an argument of an operation that may be run later: a view of a content."""

    __slots__ = ("content",)

    def __init__(self, content: BlockContent, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.content = content

    def is_same_as(self, other: object) -> bool:
        """Tell whether another argument is the same view of the same bytes."""
        if not isinstance(other, Operand) or other.content is not self.content:
            return False
        own = self.dtype, self.size, self.stride, self.offset
        return own == (other.dtype, other.size, other.stride, other.offset)


class WrittenView:
    """A content that a call makes: which view of its storage is written, and what the rest of it is."""

    __slots__ = ("base", "base_counts", "content", "place", "view")

    def __init__(
        self,
        content: BlockContent,
        view: TensorView,
        place: int | str,
        base: BlockContent | None = None,
        *,
        base_counts: bool = True,
    ) -> None:
        self.content = weakref.ref(content)  # the content leads to the call, not the other way round
        self.view = view
        self.place = place
        """The number of the result, or the name of the argument that is written."""
        self.base = base
        """The storage's content before, where the call writes a part of it or reads it."""
        self.base_counts = base_counts
        """Whether how well the result is known depends on it."""


@dataclass(slots=True, eq=False)
class OperatorCall:
    """An operation with its arguments, not run yet; tensors on the card are operands."""

    operator: Any
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    is_random: bool = field(kw_only=True)
    targets: list[WrittenView] = field(default_factory=list, init=False)


class UnseenWrites(Protocol):
    """How often threads that are not seen have written on the card."""

    @property
    def value(self) -> int:
        """The number of writes."""


class EmulatedDriver(Protocol):
    """What values ask of the emulated runtime: `ullage.gpu.emulator.library`."""

    def answer(self, number: int | None, /) -> None:
        """Answer what the calling thread reads back from the card with a number; None: with zero again."""

    def remember_sent(self, *, on: bool) -> None:
        """Keep what each thread sends to the card last."""

    def sent_is_noted(self, is_noted: bool, /) -> None:  # noqa: FBT001  # called for each copy, by place
        """Have what the calling thread sends to the card not be kept, or again."""

    def take_sent(self, address: int, size_bytes: int, destination: int, /) -> bool:
        """Write what the calling thread's last copy to the card was to an address on the host."""

    def watch_writes(self, is_seen: int | None, key: int) -> UnseenWrites:
        """Count writes on the card by threads of which a function at an address says that they are not seen."""

    def leave_memory(self, leaves: bool) -> None:  # noqa: FBT001  # called for each operator, by place
        """Have copies and fills of the calling thread leave the card's memory as it is, or no longer."""


class BlockContents:
    """What the blocks of the card's memory hold, by address; a block that is freed holds nothing any more.

    A storage's own Python object is never asked for: where it is there, PyTorch counts one reference more to the
    storage, and autograd does not add gradients to it in place (`can_accumulate_inplace` in
    torch/csrc/autograd/input_buffer.cpp).
    """

    def __init__(self) -> None:
        self._contents: dict[int, BlockContent] = {}
        self._blocks = RecentBlocks(self._forget)
        self._unseen_writes: UnseenWrites | None = None
        self._writes_before = 0

    def __len__(self) -> int:
        return len(self._contents)

    def _forget(self, address: int | None) -> None:
        if address is None:
            self._contents.clear()
        else:
            self._contents.pop(address, None)

    def block_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Return the address of the block that a tensor lies in, and how many bytes of it are known to be used.

        Raises:
            RuntimeError, NotImplementedError: the tensor has no memory of its own, as a sparse one.
        """
        address = tensor.data_ptr()
        if not address:  # nothing lies there
            return 0, 0
        item, offset = tensor.itemsize, int(tensor.storage_offset())
        if tensor.is_contiguous():
            elements = offset + tensor.numel()
        else:
            elements = offset + 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
        return address - int(offset) * item, int(elements) * item

    def watch(self, unseen_writes: UnseenWrites) -> None:
        """Forget everything whenever a thread that is not seen writes on the card: nobody knows what."""
        self._unseen_writes = unseen_writes
        self._writes_before = unseen_writes.value

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.lose()

    def _follow(self) -> None:
        writes = self._unseen_writes
        if writes is not None and (count := writes.value) != self._writes_before:
            self._writes_before = count
            self._blocks.lose()
        self._blocks.follow()

    def get(self, block: tuple[int, int]) -> BlockContent | None:
        """Return what a block holds; None where nothing was written that we saw."""
        self._follow()
        address, used = block
        content = self._contents.get(address)
        if content is not None and content.bytes < used:
            content.grow(used, is_new=self.is_new(block))
        return content

    def put(self, block: tuple[int, int], content: BlockContent | None) -> None:
        """Say what a block holds from now on; None: nothing that we know."""
        self._follow()
        if content is None:
            self._contents.pop(block[0], None)
        elif block[0]:
            self._contents[block[0]] = content

    def is_new(self, block: tuple[int, int]) -> bool:
        """Tell whether a block that nothing is known of was allocated since all was forgotten, and not written."""
        return block[0] in self._blocks.sizes

    def whole_bytes(self, block: tuple[int, int]) -> int:
        """Return how large a block is: what is used of it, unless it is larger by more than PyTorch rounds."""
        size = self._blocks.sizes.get(block[0], 0)
        return size if size - block[1] >= _ROUNDED_BYTES else block[1]
