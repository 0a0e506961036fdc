"""What the parent of a script's process knows of it: what the process has told, and how it ended."""

from dataclasses import dataclass, field

from ullage.predicting.prediction.data.run_result import RunResult
from ullage.predicting.prediction.host.memory import WorkersUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error of ours that the child raised instead of a run."""

    type: str
    """The name of its class."""
    text: str


@dataclass(slots=True)
class ChildReport:
    """What the child has said, and how it ended."""

    result: RunResult | None = None
    refused: Refusal | None = None
    broken: str | None = None
    """The traceback of an error of ours."""
    started: bool = False
    hung: bool = False
    """It had to be killed before it said anything final."""
    exit_code: int | None = None
    """The exit code of the process; negative: the signal that ended it."""
    output: str = ""
    """The end of what the script printed."""
    name: str = ""
    """The name of the program that the process runs, of a command's."""
    rank: int = 0
    workers: WorkersUse = field(default_factory=WorkersUse)
    """The host's memory that the processes had that it started."""

    @property
    def is_final(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.result is not None or self.refused is not None or self.broken is not None
