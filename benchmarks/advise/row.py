"""A row of the table of advised scripts: what was asked, what was promised, and what came of it."""

from dataclasses import dataclass, field, replace
from typing import Any

PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedRow:
    """One script on one card; every `*_bytes` is in bytes."""

    name: str
    gpu: str
    arguments: list[str]
    seconds: int
    """How long the advice took."""
    total_bytes: int = 0
    before_bytes: int = 0
    """Used of the card at most by the script as it is, where there is room for it."""
    change: str = ""
    after_bytes: int = 0
    """Used of the card at most by the mended script, predicted from outside."""
    gradients: str = ""
    added_computation: float | None = None
    host_bytes: int = 0
    """The bytes that go to the host and back in a step."""
    promised: list[int] = field(default_factory=list)
    """The peaks, allocated and reserved, that the advice promised."""
    found: list[int] = field(default_factory=list)
    """The peaks of the mended script."""
    fits: bool = False
    is_equal: bool = False
    alone: dict[str, int] = field(default_factory=dict)
    """The bytes that each change alone uses of the card at most."""
    not_made: dict[str, str] = field(default_factory=dict)
    """Why the other changes cannot be made."""
    command: str = ""
    """The lines of the shell beside the patch."""
    parts_by_hand: list[str] = field(default_factory=list)
    """The changes that the patch does not have."""
    problem: str = ""

    @property
    def is_proved(self) -> bool:
        """Whether the mended script fits, and needs the bytes that were promised."""
        return self.fits and self.is_equal and not self.problem

    @property
    def text(self) -> str:
        """The row for people."""
        sizes = f"{_gib(self.before_bytes)} of {_gib(self.total_bytes)} -> {_gib(self.after_bytes)}"
        proof = "proved" if self.is_proved else f"NOT PROVED {self.problem}"
        return f"{self.name} | {self.gpu} | {sizes} | {self.change} | {self.gradients} | {self.seconds} s | {proof}"

    def with_problem(self, problem: str) -> "AdvisedRow":
        """Return the row of a script that got no answer, or a wrong one."""
        return replace(self, problem=problem)

    def with_answer(self, answer: dict[str, Any]) -> "AdvisedRow":
        """Return the row with what `ullage advise --json` has said."""
        best, written = answer["best"], answer["written"]
        row = replace(
            self,
            total_bytes=answer["total_memory_bytes"],
            before_bytes=answer["need"]["interval_bytes"][1],
            alone={each["name"]: each.get("interval_bytes", [0, 0])[1] for each in answer["changes"]},
            not_made={each["name"]: each["why"] for each in answer["not_made"]},
        )
        if best is None:
            return row
        return replace(
            row,
            change=best["name"],
            gradients=best["gradients"],
            added_computation=best["added_computation"],
            host_bytes=best["host_bytes"],
            promised=[best[name] for name in PEAKS],
            command=written["command"],
            parts_by_hand=[part["name"] for part in written["parts"] if not part["is_in_diff"]],
            problem=""
            if written["is_proved"]
            else f"ullage advise reports: {written['problem'] or 'different byte counts'}",
        )

    def with_found(self, found: dict[str, Any], promised: list[int], *, is_card: bool) -> "AdvisedRow":
        """Return the row with what `ullage predict --json` says of the mended script."""
        peaks = [found[name] for name in PEAKS]
        row = replace(self, found=peaks, is_equal=peaks == promised)
        if is_card:
            row = replace(row, fits=found["verdict"] == "fits", after_bytes=found["interval_bytes"][1])
        return row


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f}"
