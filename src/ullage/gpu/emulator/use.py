"""What this process uses of its cards, where the emulated nvidia-smi can read it: memory behind a file descriptor."""

import ctypes
import mmap
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from ullage.gpu.emulator import library

USE_VARIABLE: Final = "ULLAGE_EMULATED_USE"
PYTHON_VARIABLE: Final = "ULLAGE_PYTHON"
SMI_FOLDER: Final = str(Path(__file__).parent / "nvidia_smi" / "bin")
_MOST_CARDS: Final = 16

_shown: object = None
"""The memory that C writes into, kept for the life of the process."""


def put_in_path(environment: MutableMapping[str, str]) -> None:
    """Have programs with this environment find the emulated nvidia-smi first."""
    before = environment.get("PATH", os.defpath)
    if SMI_FOLDER not in before.split(os.pathsep):
        environment["PATH"] = os.pathsep.join([SMI_FOLDER, before])
    environment[PYTHON_VARIABLE] = sys.executable or "python3"  # a program that embeds Python may not know


def show_use() -> None:
    """Have what this process uses of its cards written where `USE_VARIABLE` says, for what it starts."""
    global _shown
    try:
        descriptor = os.memfd_create("ullage-card")
        os.truncate(descriptor, mmap.PAGESIZE)
        memory = mmap.mmap(descriptor, mmap.PAGESIZE)
    except OSError:
        return  # no memory or no descriptor is left: nvidia-smi tells of no use
    _shown = numbers = (ctypes.c_int64 * _MOST_CARDS).from_buffer(memory)
    library.show_use(ctypes.addressof(numbers))
    os.register_at_fork(after_in_child=lambda: library.show_use(None))
    own = f"{os.getpid()}:{descriptor}"
    os.environ[USE_VARIABLE] = " ".join(filter(None, [os.environ.get(USE_VARIABLE), own]))
