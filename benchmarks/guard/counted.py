"""Calls of torch to the emulated CUDA, counted by a library that stands before it (counted_cuda.c)."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

CALLS = ("synchronisations", "reads of the card", "cudaMalloc", "cudaFree", "kernels")
"""In the order of `enum call`."""


def build(folder: Path) -> Path:
    """Compile the library; return where it lies."""
    source = Path(__file__).with_name("counted_cuda.c")
    library = folder / "libcounted_cuda.so"
    subprocess.run(["gcc", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", source, "-o", library], check=True)
    return library


def counting(library: Path) -> Callable[[], dict[str, int]]:
    """Load the library, before the emulated ones; return what tells the calls made since, by name."""
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.calls_made.restype = ctypes.c_long
    return lambda: {name: loaded.calls_made(index) for index, name in enumerate(CALLS)}
