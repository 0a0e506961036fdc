"""What a run is to record: told to its processes through one variable of their environment, which children inherit."""

import json
import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from ullage._child import reach_children
from ullage._errors import UsageError

VARIABLE: Final = "ULLAGE_RECORDING"


class HistoryMode(StrEnum):
    """When PyTorch records what is allocated where."""

    AUTO = "auto"
    """In the first steps; later where memory is short or grows, or where it costs next to nothing."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where and what to record."""

    folder: Path
    history: HistoryMode = HistoryMode.AUTO
    budget_bytes: int = 64 << 20
    """Host memory that the history of one process may take."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Have every Python process with this environment record."""
        data = asdict(self) | {"folder": str(self.folder.absolute())}
        environment[VARIABLE] = json.dumps(data)
        reach_children(environment)

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the plan of an environment; None without one.

        Raises:
            UsageError: the variable is there and cannot be read.
        """
        text = environment.get(VARIABLE)
        if not text:
            return None
        try:
            data = json.loads(text)
            return cls(
                folder=Path(data["folder"]),
                history=HistoryMode(data.get("history", "auto")),
                budget_bytes=int(data.get("budget_bytes", 64 << 20)),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{VARIABLE} is {text[:80]!r}, which `ullage run` has not written "
                f"({type(error).__name__}: {error}); unset it"
            ) from None


def live_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of this process's live file: with its rank, where it has one."""
    rank = environment.get("RANK", "")
    return f"rank{rank}-{os.getpid()}.live" if rank.isdecimal() else f"process-{os.getpid()}.live"


def report_trouble(what: str, error: BaseException) -> None:
    """Say once on standard error that recording is not whole; the script goes on."""
    with suppress(OSError, ValueError, AttributeError):  # a full disk, a closed stream, none
        sys.stderr.write(f"ullage: {what} ({type(error).__name__}: {error}); the script goes on without\n")
