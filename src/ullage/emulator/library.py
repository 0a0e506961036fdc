"""The emulated libraries as Python sees them: load them before torch, describe the cards, read the counters.

The libraries themselves are in `cuda/`, one C file a library.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from ullage._errors import EmulationError

FOLDER: Final = Path(__file__).parent / "cuda" / "lib"

# The order of `enum card_figure` in cuda/card.h.
FIGURES: Final = (
    "total_memory_bytes",
    "context_bytes",
    "cudnn_workspace_bytes",
    "cc_major",
    "cc_minor",
    "sm_count",
    "l2_cache_bytes",
    "shared_memory_per_block_optin_bytes",
    "shared_memory_per_sm_bytes",
    "max_threads_per_sm",
    "regs_per_sm",
    "max_blocks_per_sm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnPlans:
    """The cuDNN plans that ran, whose workspaces only a real card knows."""

    count: int
    largest_tensors_bytes: int
    """Bytes of all tensors of the largest plan."""


@cache
def _card() -> ctypes.CDLL:
    path = FOLDER / "libullage_card.so"
    if not path.exists():
        raise EmulationError(
            f"the emulated CUDA libraries are missing from this installation ({path}); they are built on Linux x86-64 "
            "when the package is installed: pip install --force-reinstall . (in the source tree)"
        )
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.card_describe.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int]
    for name in ("card_used_bytes", "card_peak_used_bytes", "card_largest_plan_bytes"):
        getattr(library, name).restype = ctypes.c_int64
    for name in ("card_plans", "card_launches"):
        getattr(library, name).restype = ctypes.c_uint64
    library.card_unwritten_name.restype = ctypes.c_char_p
    library.card_unwritten_name.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    return library


def describe_cards(name: str, figures: dict[str, int], *, count: int, cuda_number: int, cudnn: int) -> None:
    """Set what the cards of this process are, before anything asks."""
    card = _card()
    values = (ctypes.c_int64 * len(FIGURES))(*(figures[figure] for figure in FIGURES))
    described = card.card_configure(count, cuda_number, cudnn) and all(
        card.card_describe(device, name.encode(), values, len(FIGURES)) for device in range(count)
    )
    if not described:
        raise EmulationError(f"{count} cards cannot be emulated; expected 1 to 16")


def load(cuda_major: int) -> Path:
    """Load the emulated libraries for a CUDA version into the process; returns their folder.

    The dynamic linker matches what torch needs by SONAME with what is loaded already, so torch's own search path
    never comes into play, and an installed nvidia-* wheel or driver stays untouched.
    """
    folder = FOLDER / str(cuda_major)
    for path in sorted(folder.iterdir()):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return folder


def cudnn_plans() -> CudnnPlans:
    """Read how many cuDNN plans ran, and the size of the largest."""
    card = _card()
    return CudnnPlans(count=card.card_plans(), largest_tensors_bytes=card.card_largest_plan_bytes())


def unwritten_functions() -> dict[str, int]:
    """Name the CUDA functions that were called and that nobody wrote ("cublas:cublasFoo"), with their calls."""
    card = _card()
    calls = ctypes.c_uint64()
    found = {}
    for index in range(card.card_unwritten_count()):
        name = card.card_unwritten_name(index, ctypes.byref(calls))
        found[name.decode()] = calls.value
    return found
