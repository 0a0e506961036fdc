"""The settings with which `ullage run` records memory. Child processes get them in an environment variable."""

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
    """The values of the option `ullage run --history`."""

    AUTO = "auto"
    """Record memory history in the first training steps. Later, record it only if memory is short or grows."""
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """The settings of a recording, and the folder for its files."""

    folder: Path
    inode: int | None = None
    """The inode number of the folder. It shows whether another folder has replaced the original one."""
    history: HistoryMode = HistoryMode.AUTO
    budget_bytes: int = 64 << 20
    """The maximum host memory for the memory history of one process, in bytes."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Set the environment variable that makes Python processes record their memory."""
        data = asdict(self) | {"folder": str(self.folder.absolute())}
        environment[VARIABLE] = json.dumps(data)
        reach_children(environment)

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the settings that an environment variable contains. None if it is not set.

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
    """Return the file name for the memory samples of this process. It contains the rank, if there is one."""
    rank = environment.get("RANK", "")
    return f"rank{rank}-{os.getpid()}.live" if rank.isdecimal() else f"process-{os.getpid()}.live"


def report_trouble(what: str, error: BaseException) -> None:
    """Print a message that the recording is incomplete. The user's script continues."""
    with suppress(OSError, ValueError, AttributeError):  # the disk is full, or the stream is closed or missing
        sys.stderr.write(f"ullage: {what} ({type(error).__name__}: {error}); the script continues without it\n")
