"""How much memory this process has on the host, as the kernel counts it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.base.units import KIB

_STATUS: Final = Path("/proc/self/status")
_FIELDS: Final = {"VmHWM": "peak_bytes", "VmRSS": "bytes", "RssFile": "file_bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """What of a process's memory is in the machine's: its pages, whoever else has them too."""

    bytes: int
    peak_bytes: int
    """The most since the process began."""
    file_bytes: int
    """Pages of files, such as the code of libraries, which every process that maps them shares."""


def resident(status: Path = _STATUS) -> Resident:
    """Read what this process has now; zeros where the kernel does not tell."""
    found = dict.fromkeys(_FIELDS.values(), 0)
    try:
        lines = status.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * KIB
    return Resident(**found)
