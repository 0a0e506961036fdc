"""The memory use of an epoch, as plain data. This module does not import torch."""

from dataclasses import dataclass, field
from typing import Final

CURVE_POINTS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstBatch:
    """The batch whose step allocates most."""

    index: int
    """The position of the batch in the epoch, as `enumerate(loader)` counts it."""
    items: int
    longest: int
    """The largest dimension of the batch's tensors, without the number of items. It is the padded length, or the image
    size in pixels.
    """
    shape: str
    """The shapes of its tensors, as text."""
    alike: int
    """The number of batches in the epoch that have the same shapes as this batch."""
    peak_allocated_bytes: int
    was_run: bool
    """Whether a batch of these shapes was run. If not, the memory requests of the next larger batch that was run are
    used.
    """
    is_the_peak_of_the_run: bool = False
    """Whether the run had its peak in a step of these shapes. If so, `Prediction.lines` are the lines of this step."""
    items_that_fit: int | None = None
    """An estimate of the number of items of this length that fit on the GPU. It assumes that memory is proportional to
    this number. None if this batch fits.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """The memory use over one epoch with its batches in their real order, in bytes."""

    batches: int
    """The number of batches of the epoch whose shapes were inspected."""
    items: int
    shapes: int
    """The number of different shapes among the batches of the epoch."""
    steps_run: int
    """The number of steps that were run."""
    batches_replayed: int
    """The number of batches that were not run although a step with the same shapes was run. This step is replayed for
    them.
    """
    batches_stood_in: int
    """The number of batches whose shapes were not run. The next larger batch that was run is replayed for them."""
    shapes_confirmed: int
    """The number of shapes whose steps made the same memory requests at least twice."""
    is_foreseen: bool
    """Whether the batches of the epoch were known in advance. If not, only the batches that ran within the time limit
    are known.
    """
    is_exact: bool
    """Whether the figures are exact. They are exact if all shapes were run, equal shapes made equal memory requests,
    and a replay of the run reserves as much memory as the run did.
    """
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    growths: int
    """The number of batches in the epoch that made the reserved memory grow."""
    last_growth: int | None
    """The position of the last batch in the epoch that made the reserved memory grow."""
    runs_out_at: int | None
    """The position of the batch at which GPU memory runs out. None if it does not run out."""
    worst: WorstBatch | None
    growth_bytes_per_batch: int = 0
    """The number of bytes by which allocated memory grows from each batch to the next, over the whole epoch. 0 if it
    does not grow.
    """
    ties: int = 0
    """The number of times that the allocator chose between equally large free blocks by their addresses."""
    elsewhere_bytes: tuple[int, int] | None = None
    """The lowest and highest reserved peak of the epoch, in bytes. The peak depends on the addresses of the allocator's
    segments. None if unknown.
    """
    allocated_bytes: list[int] = field(default_factory=list)
    """The maximum allocated bytes in each part of the epoch. The epoch has up to `CURVE_POINTS` parts of equal
    length.
    """
    reserved_bytes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes on everything that ullage could not inspect, run, or confirm in the epoch."""
