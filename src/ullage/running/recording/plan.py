"""The recording plan of a run, passed to its processes in one environment variable, which child processes inherit."""

import json
import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from ullage.base.child_process import reach_children
from ullage.base.errors import UsageError, quoted

VARIABLE: Final = "ULLAGE_RECORDING"


class HistoryMode(StrEnum):
    """The mode of PyTorch's memory history: when it is recorded."""

    AUTO = "auto"
    """History is recorded in the first steps; later if memory is short or grows, or if history costs almost nothing."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """The folder for the files of a run, and the settings of the recording."""

    folder: Path
    inode: int | None = None
    """The inode number of the folder when it was created, so that no other folder is written to; None if unknown."""
    history: HistoryMode = HistoryMode.AUTO
    budget_bytes: int = 64 << 20
    """The largest host memory in bytes that the history of one process may take."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Make every Python process that is started with this environment record its memory."""
        data = asdict(self) | {"folder": str(self.folder.absolute())}
        environment[VARIABLE] = json.dumps(data)
        reach_children(environment)

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the plan in an environment; None if the environment has no plan.

        Raises:
            UsageError: the variable is set and cannot be parsed.
        """
        text = environment.get(VARIABLE)
        if not text:
            return None
        try:
            data = json.loads(text)
            return cls(
                folder=Path(data["folder"]),
                inode=int(data["inode"]) if data.get("inode") is not None else None,
                history=HistoryMode(data.get("history", "auto")),
                budget_bytes=int(data.get("budget_bytes", 64 << 20)),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise UsageError(f"{VARIABLE} is {quoted(text)}, which was not written by `ullage run`; unset it") from None


def live_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of this process's live file, which includes the rank if the process has one."""
    rank = environment.get("RANK", "")
    return f"rank{rank}-{os.getpid()}.live" if rank.isdecimal() else f"process-{os.getpid()}.live"


def report_trouble(what: str, error: BaseException) -> None:
    """Print on standard error that recording is incomplete; the user's script continues."""
    with suppress(OSError, ValueError, AttributeError):  # the disk is full, or the stream is closed or missing
        sys.stderr.write(f"ullage: {what} ({type(error).__name__}: {error}); the script continues without it\n")
