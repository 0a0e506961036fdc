"""The result of `ullage.release`: memory before and after, and who holds what is left."""

from dataclasses import dataclass

from ullage.base.public import public
from ullage.base.units import text_of_bytes
from ullage.training.ownership.holding import Holdings


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The result of `ullage.release`: device memory before and after it, over all devices, as PyTorch counts it."""

    before_bytes: int
    """The allocated bytes before the release."""
    after_bytes: int
    """The allocated bytes after the release; the rows of `remaining` sum to it."""
    reserved_bytes: int
    """The bytes that PyTorch's allocator still holds from the driver, allocated or cached."""
    pooled_bytes: int
    """The reserved bytes in private pools, which are freed with their CUDA graph or `torch.cuda.MemPool`."""
    outside_bytes: int
    """The bytes in use, by the driver's count, outside PyTorch's allocator: this process's CUDA context, which stays
    until it ends, libraries such as NCCL, and other processes."""
    remaining: Holdings
    """The holders of the memory that is still allocated."""

    @property
    def is_empty(self) -> bool:
        """Whether PyTorch has nothing left on any device."""
        return self.after_bytes == 0 and self.reserved_bytes == 0

    def __str__(self) -> str:
        freed = self.before_bytes - self.after_bytes
        lines = [
            f"{text_of_bytes(freed)} freed: {text_of_bytes(self.before_bytes)} were allocated before, "
            f"{text_of_bytes(self.after_bytes)} are now; {text_of_bytes(self.reserved_bytes)} are reserved."
        ]
        if self.pooled_bytes:
            lines.append(
                f"{text_of_bytes(self.pooled_bytes)} of that are in private pools, and are freed with their CUDA graph "
                "or torch.cuda.MemPool."
            )
        if self.after_bytes:
            lines.append(str(self.remaining))
        if self.outside_bytes:
            lines.append(
                f"{text_of_bytes(self.outside_bytes)} are used outside PyTorch's allocator: the CUDA context, "
                "libraries, other processes. A context is freed when its process ends: ullage.isolated(fn) runs a "
                "function in a process of its own."
            )
        return "\n".join(lines)
