"""The plan of `ullage run` for recording its processes: one environment variable, which child processes inherit."""

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
    """The mode of `ullage run --history`: when PyTorch's memory history is recorded."""

    AUTO = "auto"
    """The mode that records memory history in the first training steps, and later only if memory is short or grows, or
    if the history costs almost nothing.
    """
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """The plan for recording: the folder for the files of a run, and the settings of the recording."""

    folder: Path
    inode: int | None = None
    """The inode number that the folder had when it was created; None if unknown. A different folder at the same path is
    not written to.
    """
    history: HistoryMode = HistoryMode.AUTO
    budget_bytes: int = 64 << 20
    """The largest host memory in bytes that the memory history of one process may take."""

    def put_into(self, environment: MutableMapping[str, str]) -> None:
        """Make every Python process that is started with this environment record its memory."""
        data = asdict(self) | {"folder": str(self.folder.absolute())}
        environment[VARIABLE] = json.dumps(data)
        reach_children(environment)

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the recording plan in an environment; None if the environment does not contain a plan.

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
    """Return the name of the file to which this process writes its memory samples. It contains the rank, if there is
    one.
    """
    rank = environment.get("RANK", "")
    return f"rank{rank}-{os.getpid()}.live" if rank.isdecimal() else f"process-{os.getpid()}.live"


def report_trouble(what: str, error: BaseException) -> None:
    """Print on standard error that the recording is incomplete. The user's script continues."""
    with suppress(OSError, ValueError, AttributeError):  # the disk is full, or the stream is closed or missing
        sys.stderr.write(f"ullage: {what} ({type(error).__name__}: {error}); the script continues without it\n")
