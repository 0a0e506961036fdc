"""The content of a block of GPU memory: its bytes, or the operation that computes them.

Views share the content, because it is stored for a block and not for a tensor. It is dropped when the block is freed.
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
"""The dispatch key at which operators are intercepted.

It is below autograd and above the kernels, and PyTorch uses it for nothing else (torch 2.6 to 2.15,
c10/core/DispatchKey.h). A dispatch mode would not work: autograd notices it and then accumulates gradients in a
different way.
"""
KEY: Final[Any] = torch._C._parse_dispatch_key(INTERCEPTION_KEY)
_DECAY: Final = 0.9
_ROUNDED_BYTES: Final = 512
_serials = itertools.count(1)


class Certainty(IntEnum):
    """How certain a tensor's values are. A result is as uncertain as its least certain input."""

    KNOWN = 0
    """Tensor values that are the same on a real GPU, because they are computed from data that the host sent."""
    ASSUMED = 1
    """Tensor values that are computed under an assumption, for example that all numbers are finite."""
    ALIKE = 2
    """Tensor values that are computed from this rank's data, because the data of the other ranks is not available."""
    DRAWN = 3
    """Tensor values that are computed from random numbers, because the real numbers are unknown."""
    UNKNOWN = 4
    """Tensor values that are unknown. A read of them returns zero."""


class Sign(IntEnum):
    """The sign that all numbers of a tensor are known to have.

    Random numbers that replace the numbers of the tensor have the same sign.
    """

    ANY = 0
    NEGATIVE = 1
    NOT_NEGATIVE = 2
    POSITIVE = 3
    UNIT = 4
    """The numbers are between 0 and 1, such as probabilities."""


class BlockContent:
    """The content of a block of GPU memory until the next write. Each write creates a new object."""

    __slots__ = (
        *("__weakref__", "bytes", "call", "certainty", "column", "columns", "depth", "dtype"),
        *("holes", "is_unwritten", "serial", "value"),
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
        """Whether nothing has been written to the block since it was allocated."""
        self.bytes = size_bytes
        self.dtype = dtype
        """The data type of the tensor that was last written to the block."""
        self.certainty = certainty
        self.call: OperatorCall | None = None
        """The operator call that computes the content. None: the bytes exist already or are unknown."""
        self.value: torch.UntypedStorage | None = None
        """The bytes of the content in host memory. None: they have not been computed."""
        self.holes: torch.Tensor | None = None
        """A boolean for each byte of `value`: whether the byte depends on memory that the script has not written.

        None: no byte depends on such memory.
        """
        self.depth = depth
        """The largest number of recorded operations that must run one after another to compute the block."""
        self.columns = 0
        """The number of output features of the matrix product or convolution that computed the block, or 0."""
        self.column = 1
        """The number of adjacent elements that belong to the same output feature of a matrix product or convolution."""
        self.serial = next(_serials) if serial is None else serial
        """A number that determines the random values in the block. It is the same in every run of the script."""

    def grow(self, size_bytes: int, *, is_new: bool) -> None:
        """Extend the known content of a memory block to a larger size.

        Args:
            size_bytes: the new size.
            is_new: whether nothing has been written to the added bytes yet.
        """
        if not is_new:
            self.certainty = max(self.certainty, Certainty.DRAWN if self.is_float else Certainty.UNKNOWN)
        if self.value is not None:
            if is_new and not self.is_float:
                holes = torch.ones(size_bytes, dtype=torch.bool, device="cpu")
                holes[: self.bytes] = False if self.holes is None else self.holes
                self.holes = holes
            self.value = extended(self.value, size_bytes)
        elif is_new and not self.is_float and self.call is not None:
            for target in self.call.targets:
                if target.content() is self and target.base is None:
                    target.base = BlockContent(size_bytes, self.dtype, Certainty.UNKNOWN)
                    target.base.is_unwritten, target.base_counts = True, False
        self.bytes = size_bytes

    @property
    def is_float(self) -> bool:
        """Whether the content consists of floating-point numbers."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def is_new(self) -> bool:
        """Whether the content consists of integers or booleans that have never been written.

        Blocks of floats do not count, because matrix products are not intercepted.
        """
        return self.is_unwritten and not self.is_float


class UpdatedContent(BlockContent):
    """The content of a block of floating-point numbers after optimizer steps have changed it.

    An operation that was recorded before the optimizer steps still reads the earlier content.
    """

    __slots__ = ("distance", "inputs", "origin", "steps", "updates")

    def __init__(self, before: BlockContent, tensor: torch.Tensor, rate: float | None, *, is_of_mean: bool) -> None:
        """Create the content of a block after an optimizer operation has changed it.

        Args:
            before: the block content before the operation.
            tensor: the updated tensor.
            rate: the amount by which the operation changes each element; None if it is not known.
            is_of_mean: whether `rate` is divided by Adam's bias correction (with the usual decay) for the current step.
        """
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
        """The number of optimizer operations that changed the elements of the tensor by an unknown amount."""
        share = 1 - _DECAY**self.steps if is_of_mean else 1.0
        self.distance: float = distance + share * (rate or 0.0)
        """The sum of all known changes that optimizer operations made to each element of the tensor."""
        self.inputs = max(tensor.numel() // max(tensor.size(0), 1), 1) if tensor.dim() > 1 else 1
        """The number of weights for each output feature of the layer."""


def extended(value: torch.UntypedStorage, size_bytes: int) -> torch.UntypedStorage:
    """Copy host memory and pad it with zeros to a size in bytes."""
    whole = torch.UntypedStorage(size_bytes)
    copied_bytes = min(value.nbytes(), size_bytes)
    ctypes.memmove(whole.data_ptr(), value.data_ptr(), copied_bytes)
    ctypes.memset(whole.data_ptr() + copied_bytes, 0, size_bytes - copied_bytes)
    return whole


def columns_of(size: Sequence[int], stride: Sequence[int]) -> tuple[int, int]:
    """Return the number of output features of a matrix product or convolution, and the adjacent elements of one
    feature.

    Both follow from the shape of the result. The features of a matrix product are its last dimension; those of a
    convolution come before height and width.
    """
    in_memory = sorted(zip(stride, size, strict=True), reverse=True)
    sizes = [count for step, count in in_memory if step and count > 1]
    if len(size) < 4 or (len(size) == 4 and stride[1] == 1) or len(sizes) < 3:
        return (sizes[-1] if sizes else 0), 1
    return math.prod(sizes[1:-2]) if len(sizes) > 3 else sizes[0], sizes[-1] * sizes[-2]


class TensorView:
    """The position of a tensor in its storage: data type, offset, size and stride."""

    __slots__ = ("dtype", "offset", "size", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()

    @property
    def bytes(self) -> int:
        """The total bytes of the tensor's elements."""
        return self.size.numel() * self.dtype.itemsize

    @property
    def end_bytes(self) -> int:
        """The number of bytes from the start of the storage to the end of the tensor."""
        if not self.size.numel():
            return 0
        last = self.offset + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return int(last + 1) * self.dtype.itemsize

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor at this position in a host storage. Elements beyond the storage's end are zero."""
        if self.end_bytes > storage.nbytes():
            storage = extended(storage, self.end_bytes)
        return torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, self.offset, self.size, self.stride)


class Operand(TensorView):
    """A GPU tensor that is an argument of a recorded operation."""

    __slots__ = ("content",)

    def __init__(self, content: BlockContent, tensor: torch.Tensor) -> None:
        super().__init__(tensor)
        self.content = content

    def is_same_as(self, other: object) -> bool:
        """Return whether two arguments are the same view of the same memory content."""
        if not isinstance(other, Operand) or other.content is not self.content:
            return False
        own = self.dtype, self.size, self.stride, self.offset
        return own == (other.dtype, other.size, other.stride, other.offset)


class WrittenView:
    """The part of a storage that an operator call writes, and the content of the rest."""

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
        self.content = weakref.ref(content)  # A weak reference: the content refers to the call.
        self.view = view
        self.place = place
        """The tensor that the operator writes: its index among the results, or its name among the arguments."""
        self.base = base
        """The content of the storage before the call, if the call reads it or overwrites only a part of it."""
        self.base_counts = base_counts
        """Whether the operator's result is uncertain if the storage held uncertain values before the call."""


@dataclass(slots=True, eq=False)
class OperatorCall:
    """An operator call that was recorded and has not run on the host yet.

    Its GPU tensors are stored as `Operand` objects.
    """

    operator: Any
    arguments: Sequence[Any]
    keywords: Mapping[str, Any]
    is_random: bool = field(kw_only=True)
    targets: list[WrittenView] = field(default_factory=list, init=False)


class UnseenWrites(Protocol):
    """A counter of the writes to GPU memory that ullage does not intercept."""

    @property
    def value(self) -> int:
        """The number of writes so far."""


class EmulatedDriver(Protocol):
    """The functions of the emulated CUDA runtime that this package needs.

    `ullage.gpu.emulator.library` implements them.
    """

    def answer(self, number: int | None, /) -> None:
        """Set the number that the calling thread receives when it copies a value from the GPU to the host.

        If the argument is None, the thread receives zero.
        """

    def remember_sent(self, *, on: bool) -> None:
        """Set whether the emulator keeps the data of each thread's last copy to the GPU."""

    def sent_is_noted(self, is_noted: bool, /) -> None:  # noqa: FBT001  # called for each copy, by place
        """Set whether the calling thread records its own copies to the GPU.

        If so, the emulator does not keep their data.
        """

    def take_sent(self, address: int, size_bytes: int, destination: int, /) -> bool:
        """Read the data of the calling thread's last copy to the GPU into host memory at `destination`."""

    def watch_writes(self, is_seen: int | None, key: int) -> UnseenWrites:
        """Count the writes to GPU memory by threads whose operators ullage does not intercept. Return the counter.

        Args:
            is_seen: the address of a C function that returns whether ullage intercepts the operators of a thread.
            key: the dispatch key that is passed to the C function.
        """

    def leave_memory(self, leaves: bool) -> None:  # noqa: FBT001  # called for each operator, by place
        """Set whether the calling thread's copies and fills of GPU memory are ignored."""


class BlockContents:
    """The contents of all blocks of GPU memory, by address.

    The Python object of a storage is never requested. If it exists, PyTorch counts one more reference to the storage,
    and autograd then does not accumulate gradients in place (`can_accumulate_inplace` in
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
        """Return the address of a tensor's memory block, and the bytes from there to the tensor's end.

        Raises:
            RuntimeError, NotImplementedError: the tensor does not have its own memory, such as a sparse tensor.
        """
        address = tensor.data_ptr()
        if not address:  # The tensor has no memory.
            return 0, 0
        item, offset = tensor.itemsize, int(tensor.storage_offset())
        if tensor.is_contiguous():
            elements = offset + tensor.numel()
        else:
            elements = offset + 1 + sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
        return address - int(offset) * item, int(elements) * item

    def watch(self, unseen_writes: UnseenWrites) -> None:
        """Forget the contents of all memory blocks when the counter shows a write that ullage did not intercept."""
        self._unseen_writes = unseen_writes
        self._writes_before = unseen_writes.value

    def clear(self) -> None:
        """Forget the contents of all blocks of GPU memory."""
        self._blocks.lose()

    def _follow(self) -> None:
        writes = self._unseen_writes
        if writes is not None and (count := writes.value) != self._writes_before:
            self._writes_before = count
            self._blocks.lose()
        self._blocks.follow()

    def get(self, block: tuple[int, int]) -> BlockContent | None:
        """Return the content of a block of GPU memory. None: it is not known."""
        self._follow()
        address, used = block
        content = self._contents.get(address)
        if content is not None and content.bytes < used:
            content.grow(used, is_new=self.is_new(block))
        return content

    def put(self, block: tuple[int, int], content: BlockContent | None) -> None:
        """Set the content of a block of GPU memory. None: it is not known."""
        self._follow()
        if content is None:
            self._contents.pop(block[0], None)
        elif block[0]:
            self._contents[block[0]] = content

    def is_new(self, block: tuple[int, int]) -> bool:
        """Return True if nothing has been written to a block since it was allocated.

        Return False if ullage does not know.
        """
        return block[0] in self._blocks.sizes

    def whole_bytes(self, block: tuple[int, int]) -> int:
        """Return the size of a block of GPU memory in bytes.

        If fewer than 512 bytes at the end are unused, they come from PyTorch's rounding and are not counted.
        """
        size = self._blocks.sizes.get(block[0], 0)
        return size if size - block[1] >= _ROUNDED_BYTES else block[1]
