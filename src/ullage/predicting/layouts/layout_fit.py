"""The answer of `ullage fit --layout`, as data: every layout with its fullest rank, and which are worth a choice."""

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
"""The verdict where of the ranks along a cut sequence the first alone was run, and fits."""
FAILS: Final = "the script fails"
NOT_RUN: Final = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """A rank that was run."""

    rank: int
    stands_for: str
    """The ranks that it stands for: "all ranks", "first stage"."""
    fits: bool
    """Whether it fits at both ends of the interval, with the margin left free."""
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """What came of one layout."""

    layout: CardLayout
    verdict: str
    """"fits", "fits as far as was run", "does not fit", "unknown", "the script fails" or "not run"."""
    value: int | None = None
    """The largest value of the varied option that fits; the lowest where none does; None: no option is varied."""
    next_value: int | None = None
    """The smallest value that does not fit; None where the range ended."""
    ranks: tuple[RankRun, ...] = ()
    """The ranks that were run with that value; where the first did not fit, the others were needless."""
    error: str = ""
    """The error that the script failed with, or why it was not run."""
    items: int | None = None
    """The items of a step, of all ranks; None where no option is varied."""
    runs: int = 0
    """The runs that this layout took."""

    @property
    def fullest(self) -> RankRun | None:
        """The rank that uses most."""
        return max(
            self.ranks, key=lambda run: (run.prediction.oom is not None, run.prediction.interval_bytes[1]), default=None
        )

    @property
    def free_bytes(self) -> int | None:
        """What stays free on the fullest rank's card at least, in bytes; None where nothing was run to its end."""
        fullest = self.fullest
        if fullest is None or fullest.prediction.oom is not None:
            return None
        return fullest.prediction.total_memory_bytes - fullest.prediction.interval_bytes[1]

    @property
    def sent_bytes(self) -> int | None:
        """What the rank that sends most sends in a step, in bytes: an estimate."""
        sizes = [run.prediction.sent_bytes_per_step for run in self.ranks]
        return max((size for size in sizes if size is not None), default=None)

    @property
    def recomputed_share(self) -> float | None:
        """The part of the forward pass that is computed again: an estimate."""
        shares = [run.prediction.recomputed_share for run in self.ranks]
        return max((share for share in shares if share is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
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
    """The answer of `ullage fit --layout`; every `*_bytes` is in bytes."""

    described_in: ClassVar[str] = "ullage.predicting.layouts.describe"

    script: str
    arguments: list[str]
    gpu: str
    cards: int
    layout: str
    """The axes, as they were given."""
    option: str | None
    """The option that was varied; None: none was."""
    item_tokens: int | None
    """The tokens of an item, if they were given."""
    total_memory_bytes: int
    margin_bytes: int
    rows: tuple[LayoutRow, ...]
    """Every layout, the best first."""
    frontier: tuple[int, ...]
    """The rows that no other one surpasses in items a step, free memory, and traffic alike."""
    engine: str
    """The engine that did the runs."""
    run_count: int
    """The runs that were done."""
    known_count: int
    """The runs whose results were kept from before."""
    is_whole: bool
    """Whether the search came to its end; False where it was interrupted."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def best(self) -> LayoutRow | None:
        """The layout that fits with most items a step, and of those the one that sends least."""
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
        """Return plain data for `json.dumps`, with the schema's version first."""
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
    """Return rows with the best first: those that fit, by items a step, traffic and free memory; then the others."""
    kinds = [FITS, PARTLY, Verdict.UNKNOWN.value, Verdict.DOES_NOT_FIT.value, FAILS, NOT_RUN]

    def order(row: LayoutRow) -> tuple[int, int, float, int]:
        return kinds.index(row.verdict), -(row.items or 0), row.sent_bytes or 0, -(row.free_bytes or 0)

    return tuple(sorted(rows, key=order))


def frontier_of(rows: Sequence[LayoutRow], verdicts: Collection[str] = (FITS,)) -> tuple[int, ...]:
    """Return the places of the rows with these verdicts that no other of them surpasses in everything."""
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
