"""Says that host memory, not GPU memory, ended a run, in the words of `ullage explain`."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text
from ullage.running.run_files.folder import RunProcess, read_run
from ullage.running.supervision.supervisor import Ending

_OF_THE_HOST: Final = (
    Cause.HOST_MEMORY,
    Cause.JOB_LIMIT,
    Cause.COMMIT_LIMIT,
    Cause.PINNED_MEMORY,
    Cause.SHARED_MEMORY,
    Cause.UNIFIED_MEMORY,
    Cause.BOGUS_SIZE,
)
_KILLED: Final = 128 + signal.SIGKILL
_ALSO_KILLED: Final = (_KILLED, 256 - signal.SIGKILL)  # DeepSpeed's launcher exits with the negative signal number


def host_memory_of(folder: Path | None, ending: Ending, *, with_guesses: bool) -> Sequence[str] | None:
    """Return a sentence and advice if host memory ended a run, or None.

    Args:
        folder: the folder of the run, or None if it is missing.
        ending: how the user's command ended.
        with_guesses: whether a kill (SIGKILL) without any error counts, which usually means that host memory was full.
            Scripts that do not use a GPU are left alone.
    """
    processes = _processes_of(folder)
    texts = [process.facts.error for process in processes if process.facts.error]
    was_killed = ending.signal == signal.SIGKILL or ending.exit_code in _ALSO_KILLED
    if with_guesses and processes and not texts and (was_killed or _a_rank_was_killed(processes, ending)):
        texts = [f"exit code {_KILLED}"]
    for text in texts:
        found = _explained(text)
        if found is not None and (found.likely or found.cause) in _OF_THE_HOST:
            advice = [f"try first: {found.remedies[0].name}"] if found.remedies else []
            return [found.sentence, *advice, *found.notes[:1]]
    return None


def _a_rank_was_killed(processes: Sequence[RunProcess], ending: Ending) -> bool:
    """Return whether a rank under a launcher ended without an error. torchrun itself then exits with 1."""
    states = [process.facts.state for process in processes]
    has_reason = any(state in ("failed", "out of memory") for state in states)
    return len(states) > 1 and ending.exit_code == 1 and "runs" in states and not has_reason


def _processes_of(folder: Path | None) -> Sequence[RunProcess]:
    if folder is None:
        return ()
    try:
        return read_run(folder).processes
    except UsageError:  # none of its processes used a GPU
        return ()


def _explained(text: str) -> TextExplanation | None:
    try:
        return explain_text(text)
    except UsageError:
        return None
