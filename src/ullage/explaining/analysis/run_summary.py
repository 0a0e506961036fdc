"""What the folder of a run tells beside the explanation of its failure, as plain data."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run that `ullage run` has recorded."""

    name: str
    """The name of its folder."""
    evidence: str | None
    """The folder of the evidence that is explained; None where there is nothing to explain."""
    summary: tuple[str, ...]
    """The lines that `ullage run` prints at the end."""
    remarks: tuple[str, ...]
    """Sentences: the process that failed, its step and line, how its ranks differ, and its settings."""
    beside: int = 0
    """The number of runs in the given folder, of which it is the newest; 0 where the folder is the run's own."""

    def to_json(self) -> dict[str, Any]:
        """Return what a run adds to the JSON of an explanation."""
        if self.evidence is None:
            return {"summary": list(self.summary)}
        return {"run": {"evidence": self.evidence, "summary": list(self.summary)}}
