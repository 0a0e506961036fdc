"""The memory use of an epoch, as plain data."""

from dataclasses import dataclass, field
from typing import Final

CURVE_POINTS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstBatch:
    """The batch of an epoch whose step allocates the most memory."""

    index: int
    """The position of the batch in the epoch, as `enumerate(loader)` counts it."""
    items: int
    longest: int
    """The padded length of the batch, or its image size in pixels.

    It is the largest tensor dimension except the number of items.
    """
    shape: str
    """The shapes of the batch's tensors, as text."""
    alike: int
    """The number of batches in the epoch that have the same shapes as this batch."""
    peak_allocated_bytes: int
    was_run: bool
    """Whether a batch of these shapes was run. If not, a larger batch was used in its place."""
    is_the_peak_of_the_run: bool = False
    """Whether the memory peak of the run was in a step with these shapes.

    If so, `Prediction.lines` are the lines of this step.
    """
    items_that_fit: int | None = None
    """The estimated number of items that fit on the GPU in a batch of the same padded length. It is None if the batch
    fits.

    The estimate assumes that memory is proportional to the number of items.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """The memory use over one epoch with its batches in their real order."""

    batches: int
    """The number of batches whose shapes were inspected."""
    items: int
    shapes: int
    """The number of different batch shapes in the epoch."""
    steps_run: int
    """The number of steps that were run."""
    batches_replayed: int
    """The number of batches that were not run, because a batch with the same shapes was run."""
    batches_stood_in: int
    """The number of batches with shapes that were not run. The next larger batch is used in their place."""
    shapes_confirmed: int
    """The number of batch shapes whose steps made the same memory requests at least twice."""
    is_foreseen: bool
    """Whether all batches of the epoch were known in advance.

    If not, only the batches that ran within the time limit are known.
    """
    is_exact: bool
    """Whether the predicted memory use is exact.

    This requires that all shapes were run, that equal shapes made equal memory requests, and that the replayed run
    matches the real one.
    """
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    growths: int
    """The number of batches that made the reserved memory grow."""
    last_growth: int | None
    """The position of the last batch that made the reserved memory grow, or None if no batch did."""
    runs_out_at: int | None
    """The position of the batch at which GPU memory runs out, or None if it does not."""
    worst: WorstBatch | None
    growth_bytes_per_batch: int = 0
    """The bytes by which allocated memory grows per batch, or 0 if it does not grow over the whole epoch."""
    ties: int = 0
    """The number of times that the allocator chose between equally large free blocks by address."""
    elsewhere_bytes: tuple[int, int] | None = None
    """The lowest and highest possible reserved peak in bytes, or None if unknown.

    The peak depends on the addresses of the allocator's segments.
    """
    allocated_bytes: list[int] = field(default_factory=list)
    """The maximum allocated bytes in each of up to `CURVE_POINTS` equally long parts of the epoch."""
    reserved_bytes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes on everything that could not be inspected, run or confirmed."""
