"""Tell the parent process what the script's main thread is doing if a step takes long.

A thread reads the call stack in C code. Python code would create objects, and thus change the times at which
Python collects garbage.
"""

import _thread
import sys
import time
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ullage.gpu.tracing.journal import Journal
from ullage.gpu.tracing.source import Line, is_librarys, is_users

if TYPE_CHECKING:
    from ullage.gpu.values.reads import Reads
    from ullage.predicting.prediction.child.context import Channel

_PAUSE_SECONDS: Final = 2.0
_PATIENCE_SECONDS: Final = 4.0
# If a script reads more values within one step, a loop seems to wait for a value.
_WAITING_READS: Final = 100
_TORCH: Final = "-packages/torch/"
# From this version on, Python prints a warning if a process with several threads forks.
_WARNS_OF_THREADS: Final = (3, 12)


class Whereabouts:
    """Send the call stack of the script's main thread to the parent process."""

    def __init__(self, channel: "Channel", journal: Journal, reads: "Reads") -> None:
        self._channel, self._stacks, self._reads = channel, journal.stacks, reads
        self._is_over = False
        self.note_step()

    def begin(self, torch: Any) -> None:
        """Start to report what the script's main thread is doing.

        From Python 3.12 on, Python prints a warning if a process with several threads forks. To avoid the warning, the
        reporting thread starts only when CUDA is initialised.
        """
        if not self._stacks.are_recorded:
            return
        self._stacks.watch()
        if sys.version_info < _WARNS_OF_THREADS:
            self._start()
        else:
            torch.cuda._lazy_call(self._start)

    def note_step(self) -> None:
        """Restart the waiting time after a training step has ended."""
        self._since, self._reads_before = time.monotonic(), self._reads.asked

    def end(self) -> None:
        """Stop reporting what the script's main thread is doing."""
        self._is_over = True

    def _start(self) -> None:
        _thread.start_new_thread(
            self._look, ()
        )  # not started through the threading module, whose threads scripts enumerate

    def _look(self) -> None:
        while not self._is_over:
            time.sleep(_PAUSE_SECONDS)
            if time.monotonic() - self._since < _PATIENCE_SECONDS or self._is_over:
                continue
            stack = encode_basestring_ascii(self._stacks.watched().decode(errors="replace"))
            reads = str(self._reads.asked - self._reads_before)
            self._channel.write(('{"event": "at", "reads": ' + reads + ', "stack": ' + stack + "}\n").encode())


def words_for(stack: str, reads: int, script: str) -> str:
    """Return a text such as "in generate (utils.py:2100), from train.py:40"; empty if no frame of the stack is known.

    Args:
        stack: the call stack, in the format of `JournalStacks.watched`.
        reads: the number of values that the script has read back since its last step in order to branch on them.
        script: the path of the script.
    """
    library: Line | None = None
    for frame in stack.splitlines():
        file, line, function = frame.split("\t")
        place = Line(file, int(line), function)
        if file == script or is_users(file):
            waits = f"; a loop seems to wait for a value ({reads:,} were read)" if reads >= _WAITING_READS else ""
            inside = f"in {_short(library)}, from " if library else "at "
            return f"{inside}{place}{waits}"
        if (
            library is None and is_librarys(file) and _TORCH not in file
        ):  # a fixed path, because this process does not import torch
            library = place
    return f"in {_short(library)}" if library else ""


def _short(line: Line) -> str:
    return f"{line.function} ({Path(line.file).name}:{line.line})"
