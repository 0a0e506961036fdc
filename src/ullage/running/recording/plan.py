"""The settings with which `ullage run` records its processes. An environment variable passes them on to child
processes.
"""

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
    """When PyTorch's memory history is recorded (`ullage run --history`)."""

    AUTO = "auto"
    """Record memory history in the first training steps. Later, record it only if memory is short or grows, or if it
    costs almost nothing.
    """
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """The folder for the files of a run, and the settings for recording."""

    folder: Path
    inode: int | None = None
    """The inode number of the folder when it was created. None if it is unknown. Nothing is written to a different
    folder at the same path.
    """
    history: HistoryMode = HistoryMode.AUTO
    budget_bytes: int = 64 << 20
    """The most host memory that the memory history of one process may take, in bytes."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Make every Python process with this environment record its memory."""
        data = asdict(self) | {"folder": str(self.folder.absolute())}
        environment[VARIABLE] = json.dumps(data)
        reach_children(environment)

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the settings for recording in an environment. None if it has none.

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
    """Return the name of the file for the memory samples of this process. It contains the rank, if there is one."""
    rank = environment.get("RANK", "")
    return f"rank{rank}-{os.getpid()}.live" if rank.isdecimal() else f"process-{os.getpid()}.live"


def report_trouble(what: str, error: BaseException) -> None:
    """Print on standard error that the recording is incomplete. The user's script continues."""
    with suppress(OSError, ValueError, AttributeError):  # the disk is full, or the stream is closed or missing
        sys.stderr.write(f"ullage: {what} ({type(error).__name__}: {error}); the script continues without it\n")
