"""The result of `ullage fit --layout`: which parallel layouts fit on the GPUs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ullage.base.errors import ExitCode
from ullage.base.public import public
from ullage.predicting.layouts.layout import CardLayout
from ullage.predicting.prediction.data.prediction import Prediction, Verdict
from ullage.report.answer import Answer

SCHEMA: Final = 1
FITS: Final = "fits"
PARTLY: Final = "fits as far as was run"
"""The result for a layout if ullage ran only its first context-parallel rank, and that rank fits."""
FAILS: Final = "the script fails"
NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """A rank that was run."""

    rank: int
    stands_for: str
    """The ranks that are assumed to use as much memory as this one, such as "all ranks" or "first stage"."""
    fits: bool
    """Whether the rank fits with the margin, even at the upper end of the predicted memory range."""
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """The result for one parallel layout."""

    layout: CardLayout
    verdict: str
    """The result in a few words, such as "fits", "does not fit" or "not run"."""
    value: int | None = None
    """The largest value of the option that fits. If no value fits, this is the smallest value.

    None if no option is varied.
    """
    next_value: int | None = None
    """The smallest value of the option that does not fit, or None if all values fit."""
    ranks: tuple[RankRun, ...] = ()
    """The ranks that were run with the reported option value. After a rank that does not fit, no other rank is run."""
    error: str = ""
    """The error of the script in this layout, or the reason why the layout was not run."""
    items: int | None = None
    """The number of items per training step, summed over all ranks. None if no option is varied."""
    runs: int = 0
    """The number of runs of the script for this layout."""

    @property
    def fullest(self) -> RankRun | None:
        """The rank that uses the most memory."""
        return max(
            self.ranks, key=lambda run: (run.prediction.oom is not None, run.prediction.interval_bytes[1]), default=None
        )

    @property
    def free_bytes(self) -> int | None:
        """The bytes that stay free on the GPU of the fullest rank, or None if its run did not finish."""
        fullest = self.fullest
        if fullest is None or fullest.prediction.oom is not None:
            return None
        return fullest.prediction.total_memory_bytes - fullest.prediction.interval_bytes[1]

    @property
    def sent_bytes(self) -> int | None:
        """The estimated bytes that a rank sends to other ranks per step.

        The value is for the rank that sends the most.
        """
        sizes = [run.prediction.sent_bytes_per_step for run in self.ranks]
        return max((size for size in sizes if size is not None), default=None)

    @property
    def recomputed_share(self) -> float | None:
        """The estimated share of the forward pass that activation checkpointing runs a second time."""
        shares = [run.prediction.recomputed_share for run in self.ranks]
        return max((share for share in shares if share is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the result for this layout as plain data for `json.dumps`."""
        fullest = self.fullest
        return {
            "layout": dict(self.layout.sizes),
            "choices": dict(self.layout.choices),
            "verdict": self.verdict,
            "value": self.value,
            "next": self.next_value,
            "free_at_least_bytes": self.free_bytes,
            "fullest_rank": fullest.rank if fullest else None,
            "fullest_stands_for": fullest.stands_for if fullest else None,
            "items_per_step": self.items,
            "sent_bytes_per_step_estimate": self.sent_bytes,
            "recomputed_share_estimate": self.recomputed_share,
            "error": self.error,
            "ranks": [
                {
                    "rank": run.rank,
                    "stands_for": run.stands_for,
                    "fits": run.fits,
                    "verdict": run.prediction.verdict.value,
                    "reason": run.prediction.reason,
                    "peak_allocated_bytes": run.prediction.peak_allocated_bytes,
                    "peak_reserved_bytes": run.prediction.peak_reserved_bytes,
                    "interval_bytes": list(run.prediction.interval_bytes),
                    "oom": run.prediction.oom is not None,
                }
                for run in self.ranks
            ],
        }


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayoutFit(Answer):
    """The result of `ullage fit --layout`. All attributes that end in `_bytes` are in bytes."""

    described_in: ClassVar[str] = "ullage.predicting.layouts.describe"

    script: str
    arguments: list[str]
    gpu: str
    cards: int
    layout: str
    """The parallel axes, such as "dp*tp*pp", as the user gave them."""
    option: str | None
    """The option whose largest value was searched for, or None if no option was varied."""
    item_tokens: int | None
    """The number of tokens per item, or None if the user did not give it."""
    total_memory_bytes: int
    margin_bytes: int
    rows: tuple[LayoutRow, ...]
    """The results for all layouts, the best first."""
    frontier: tuple[int, ...]
    """The indices of the Pareto-optimal results, by items per step, free memory and bytes sent."""
    engine: str
    """The name of the local or remote workers that ran the script, such as "4 local workers"."""
    run_count: int
    """The number of runs of the script."""
    known_count: int
    """The number of results that were reused from earlier searches."""
    is_whole: bool
    """Whether the search finished, and was not interrupted."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def best(self) -> LayoutRow | None:
        """The layout that fits and processes the most items per step.

        Among equal layouts, it is the one that sends the fewest bytes.
        """
        return self.rows[0] if self.rows and self.rows[0].verdict == FITS else None

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `ullage fit --layout`."""
        if self.best is not None:
            return ExitCode.YES
        verdicts = {row.verdict for row in self.rows} - {NOT_RUN}
        if verdicts == {FAILS}:
            return ExitCode.SCRIPT_FAILED
        is_unknown = verdicts & {Verdict.UNKNOWN.value, PARTLY} or not verdicts
        return ExitCode.UNKNOWN if is_unknown else ExitCode.NO

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data for `json.dumps`, with the schema version first."""
        return {
            "schema": SCHEMA,
            "script": self.script,
            "arguments": self.arguments,
            "gpu": self.gpu,
            "cards": self.cards,
            "layout": self.layout,
            "option": self.option,
            "item_tokens": self.item_tokens,
            "total_memory_bytes": self.total_memory_bytes,
            "margin_bytes": self.margin_bytes,
            "frontier": list(self.frontier),
            "layouts": [row.to_json() for row in self.rows],
            "engine": self.engine,
            "runs": self.run_count,
            "kept_from_before": self.known_count,
            "is_whole": self.is_whole,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


def ordered(rows: Sequence[LayoutRow]) -> tuple[LayoutRow, ...]:
    """Sort the results of layouts: first those that fit, by items per step, bytes sent and free memory."""
    kinds = [FITS, PARTLY, Verdict.UNKNOWN.value, Verdict.DOES_NOT_FIT.value, FAILS, NOT_RUN]

    def order(row: LayoutRow) -> tuple[int, int, float, int]:
        return kinds.index(row.verdict), -(row.items or 0), row.sent_bytes or 0, -(row.free_bytes or 0)

    return tuple(sorted(rows, key=order))


def frontier_of(rows: Sequence[LayoutRow], verdicts: Collection[str] = (FITS,)) -> tuple[int, ...]:
    """Return the indices of the Pareto-optimal results among those with the given verdicts."""
    marks = {
        place: (row.items or 0, row.free_bytes or 0, -(row.sent_bytes or 0), -(row.recomputed_share or 0.0))
        for place, row in enumerate(rows)
        if row.verdict in verdicts
    }
    return tuple(
        place
        for place, mark in marks.items()
        if not any(other != mark and all(a >= b for a, b in zip(other, mark, strict=True)) for other in marks.values())
    )
