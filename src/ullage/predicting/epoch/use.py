"""The memory use of an epoch, as plain data. This module does not import torch."""

from dataclasses import dataclass, field
from typing import Final

CURVE_POINTS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstBatch:
    """The batch whose step allocates most."""

    index: int
    """The position of the batch in the epoch, as `enumerate(loader)` counts."""
    items: int
    longest: int
    """The largest dimension of its tensors other than the number of items: padded length or image size in pixels."""
    shape: str
    """The shapes of its tensors, as text."""
    alike: int
    """The number of batches in the epoch with these shapes."""
    peak_allocated_bytes: int
    was_run: bool
    """Whether a batch of these shapes was run. If False, the next heavier batch that was run is used in its place."""
    is_the_peak_of_the_run: bool = False
    """Whether the peak of the run is in a step of these shapes, so that `Prediction.lines` belong to it."""
    items_that_fit: int | None = None
    """An estimate of the number of items of this length that fit on the GPU, by proportion. None if this batch fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """The memory over one epoch in its real order, in bytes."""

    batches: int
    """The number of batches of the epoch that were inspected."""
    items: int
    shapes: int
    """The number of different shapes among the batches."""
    steps_run: int
    """The number of steps that were run."""
    batches_replayed: int
    """The number of batches that were not run: the requests of a step with the same shapes were replayed for each."""
    batches_stood_in: int
    """The number of batches for whose shapes no step was run; the next heavier batch that was run replaces each."""
    shapes_confirmed: int
    """The number of shapes whose steps made the same memory requests twice."""
    is_foreseen: bool
    """Whether the batches were known in advance. If False, only the batches within the time limit are known."""
    is_exact: bool
    """Whether the figures are exact: no batch is replaced by a heavier one, steps of the same shapes made equal
    requests, and a replay of the run reserved as much as the run.
    """
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    growths: int
    """The number of batches during which reserved memory grew."""
    last_growth: int | None
    """The position of the last batch during which reserved memory grew."""
    runs_out_at: int | None
    """The position of the batch at which memory runs out in the replay; None if it does not run out."""
    worst: WorstBatch | None
    growth_bytes_per_batch: int = 0
    """The number of bytes that each batch leaves allocated beyond those of the previous batch, over the whole epoch; 0
    if nothing grows.
    """
    ties: int = 0
    """The number of times that addresses decided which of several equally large free blocks was used."""
    elsewhere_bytes: tuple[int, int] | None = None
    """The lowest and highest reserved peak with segments at other addresses; None if unknown."""
    allocated_bytes: list[int] = field(default_factory=list)
    """The maximum allocated bytes in each of equally long spans of the epoch, at most `CURVE_POINTS` of them."""
    reserved_bytes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes on everything that could not be inspected, run, or confirmed."""
