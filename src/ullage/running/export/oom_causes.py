"""Why memory ran out, of every folder of evidence that a run leaves, read while the run goes on.

In a thread of its own: to read a snapshot takes a moment, and whoever waits for the command waits for signals too.
"""

import threading
from pathlib import Path
from typing import Final

from ullage.base.errors import UllageError

UNKNOWN: Final = "cannot_tell"
"""The cause of evidence that cannot be read."""


class OomCauses:
    """The causes that are known by now."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        """The cause by the name of the folder of evidence."""
        self._reading: threading.Thread | None = None

    def look(self, folder: Path) -> None:
        """Begin to read evidence that is new, unless some is being read."""
        if self._reading is not None and self._reading.is_alive():
            return
        new = [path for path in folder.glob("oom-*/snapshot.pickle") if path.parent.name not in self.known]
        if new:
            self._reading = threading.Thread(target=self._read, args=(new,), name="ullage-causes", daemon=True)
            self._reading.start()

    def finish(self, folder: Path) -> None:
        """Read what is left."""
        if self._reading is not None:
            self._reading.join()
        self.look(folder)
        if self._reading is not None:
            self._reading.join()

    def _read(self, snapshots: list[Path]) -> None:
        from ullage.explaining.fleet.rank_summary import summary_of  # numpy is not for runs whose memory never runs out

        for path in snapshots:
            try:
                self.known[path.parent.name] = summary_of(path).cause
            except (UllageError, OSError):
                self.known[path.parent.name] = UNKNOWN
