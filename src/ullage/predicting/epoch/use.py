"""What an epoch uses, as plain data. It knows no torch."""

from dataclasses import dataclass, field
from typing import Final

CURVE_POINTS: Final = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstBatch:
    """The batch whose step allocates most."""

    index: int
    """Its place in the epoch, as `enumerate(loader)` counts."""
    items: int
    longest: int
    """The largest dimension of its tensors but for the number of items: its padded length, or its pixels' side."""
    shape: str
    """The shapes of its tensors."""
    alike: int
    """The number of batches in the epoch that have these shapes."""
    peak_allocated_bytes: int
    was_run: bool
    """Whether a batch of its shapes was run; otherwise the next heavier one that was run stands for it."""
    is_the_peak_of_the_run: bool = False
    """Whether the peak of the run lies in a step of its shapes, so that `Prediction.lines` are its lines."""
    items_that_fit: int | None = None
    """An estimate, in proportion: the number of items of this length that the card would hold; None where the card
    holds this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochUse:
    """The memory over one epoch in its real order; sizes in bytes."""

    batches: int
    """The number of batches of the epoch that were gone through."""
    items: int
    shapes: int
    """The number of different shapes among them."""
    steps_run: int
    """The number of steps that were run."""
    batches_replayed: int
    """The number of batches that were not run themselves: the requests of a step of the same shapes were replayed."""
    batches_stood_in: int
    """The number of batches of whose shapes no step was run: the next heavier one that was run stands for each."""
    shapes_confirmed: int
    """The number of shapes whose steps asked for the same memory twice."""
    is_foreseen: bool
    """Whether the batches were known beforehand, and not only met for as long as the time allowed."""
    is_exact: bool
    """Whether nothing stands in: every batch was run, or has the shapes of a step that was run, steps of the same
    shapes asked alike, and a replay of what was run reserved what the run did."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    growths: int
    """The number of batches during which reserved memory grew."""
    last_growth: int | None
    """The last batch during which it grew."""
    runs_out_at: int | None
    """The batch at which memory runs out, by replay; None if it does not."""
    worst: WorstBatch | None
    growth_bytes_per_batch: int = 0
    """The bytes by which each batch leaves more than the one before, all over the epoch; 0: nothing grows."""
    ties: int = 0
    """The number of times that an address decided between equally large free blocks."""
    elsewhere_bytes: tuple[int, int] | None = None
    """The least and the most that is reserved with segments at other addresses; None if that is not known."""
    allocated_bytes: list[int] = field(default_factory=list)
    """The highest allocated level in each of equal spans of the epoch, `CURVE_POINTS` at most."""
    reserved_bytes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Remarks on all that could not be gone through, run, or confirmed."""
