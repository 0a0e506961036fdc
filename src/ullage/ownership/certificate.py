"""What `ullage.release` has measured: before, after, and who holds what is left."""

from dataclasses import dataclass

from ullage._units import text_of_bytes
from ullage.ownership.holding import Holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Device memory before and after, over all devices, by PyTorch's own count."""

    before_bytes: int
    """Allocated before."""
    after_bytes: int
    """Allocated after; the rows of `remaining` sum to it."""
    reserved_bytes: int
    """What PyTorch still has of the driver, allocated or not."""
    pooled_bytes: int
    """What of that private pools keep, which go with their CUDA graph or `torch.cuda.MemPool`."""
    outside_bytes: int
    """What the driver says is used beside that: the CUDA context of this process, which stays until it ends, libraries
    such as NCCL, and other processes."""
    remaining: Holdings

    @property
    def is_empty(self) -> bool:
        """Whether PyTorch has nothing left on any device."""
        return self.after_bytes == 0 and self.reserved_bytes == 0

    def __str__(self) -> str:
        freed = self.before_bytes - self.after_bytes
        lines = [
            f"{text_of_bytes(freed)} freed: {text_of_bytes(self.before_bytes)} were allocated, "
            f"{text_of_bytes(self.after_bytes)} are, and {text_of_bytes(self.reserved_bytes)} are reserved."
        ]
        if self.pooled_bytes:
            lines.append(
                f"{text_of_bytes(self.pooled_bytes)} of that are in private pools, and go with their CUDA graph or "
                "torch.cuda.MemPool."
            )
        if self.after_bytes:
            lines.append(str(self.remaining))
        if self.outside_bytes:
            lines.append(
                f"{text_of_bytes(self.outside_bytes)} are used beside PyTorch's allocator: the CUDA context, "
                "libraries, other processes. A context goes with its process: ullage.isolated(fn) runs a "
                "function in one of its own."
            )
        return "\n".join(lines)
