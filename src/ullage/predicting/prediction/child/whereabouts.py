"""What a script is doing while no step ends: the stack of its main thread, told to the parent every few seconds.

In the script's process a thread looks, from C, which makes no Python object: garbage would be collected at other
moments, and with it the script's tensors. The parent makes words of it.
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
"""The time without a step after which something is told."""
_WAITING_READS: Final = 100
"""The number of values that were asked for at one place since the last step, from which on a loop seems to wait."""
_TORCH: Final = "-packages/torch/"
_WARNS_OF_THREADS: Final = (3, 12)
"""The version from which on Python warns a process that forks where it has threads."""


class Whereabouts:
    """Tells the parent where the script's main thread is; it begins once, in that thread."""

    def __init__(self, channel: "Channel", journal: Journal, reads: "Reads") -> None:
        self._channel, self._stacks, self._reads = channel, journal.stacks, reads
        self._is_over = False
        self.note_step()

    def begin(self, torch: Any) -> None:
        """Begin to look.

        From the version on that warns of threads, only when CUDA is initialised, which makes threads on a real card.
        """
        if not self._stacks.are_recorded:
            return
        self._stacks.watch()
        if sys.version_info < _WARNS_OF_THREADS:
            self._start()
        else:
            torch.cuda._lazy_call(self._start)

    def note_step(self) -> None:
        """Begin to wait anew: a step has ended."""
        self._since, self._reads_before = time.monotonic(), self._reads.asked

    def end(self) -> None:
        """Tell nothing more."""
        self._is_over = True

    def _start(self) -> None:
        _thread.start_new_thread(self._look, ())  # it is none of threading's, which scripts enumerate

    def _look(self) -> None:
        while not self._is_over:
            time.sleep(_PAUSE_SECONDS)
            if time.monotonic() - self._since < _PATIENCE_SECONDS or self._is_over:
                continue
            stack = encode_basestring_ascii(self._stacks.watched().decode(errors="replace"))
            reads = str(self._reads.asked - self._reads_before)
            self._channel.write(('{"event": "at", "reads": ' + reads + ', "stack": ' + stack + "}\n").encode())


def words_for(stack: str, reads: int, script: str) -> str:
    """Say where a script is: "in generate (utils.py:2100), from train.py:40"; empty where the stack has no known frame.

    Args:
        stack: as `JournalStacks.watched`.
        reads: the number of values that the script has asked for since its last step, to branch on.
        script: its path.
    """
    library: Line | None = None
    for frame in stack.splitlines():
        file, line, function = frame.split("\t")
        place = Line(file, int(line), function)
        if file == script or is_users(file):
            waits = f", where a loop seems to wait for a value ({reads:,} were read)" if reads >= _WAITING_READS else ""
            inside = f"in {_short(library)}, from " if library else "at "
            return f"{inside}{place}{waits}"
        if library is None and is_librarys(file) and _TORCH not in file:  # which is not imported here
            library = place
    return f"in {_short(library)}" if library else ""


def _short(line: Line) -> str:
    return f"{line.function} ({Path(line.file).name}:{line.line})"
