"""The emulated libraries as Python sees them: load them before torch, describe the cards, read the counters.

The libraries themselves are in `cuda/`, one C file a library.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from ullage.base.errors import EmulationError

Figures = TypeVar("Figures", "GuessFigures", "CommunicatorFigures", "PlanFigures", "OutsideFigures")

FOLDER: Final = Path(__file__).parent / "cuda" / "lib"
_OTHER_MAJOR: Final = {12: 13, 13: 12}
# Libraries whose SONAME and symbol versions differ between CUDA 12 and 13. All others exist once in a process.
_BY_MAJOR: Final = frozenset(
    f"libullage_{name}" for name in ("cudart", "cublas", "cublasLt", "cufft", "cusolver", "nvrtc", "nvJitLink")
)

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
    "placement",
)


class PlanSource(IntEnum):
    """The source of a cuDNN plan's workspace; the order is that of `enum plan_source` in cuda/card.h."""

    UNKNOWN = 0
    GIVEN = 1
    TABLE = 2
    CUDNN = 3


# The order of `enum guess_kind` in cuda/card.h.
GUESSES: Final = ("rnn", "batch_norm", "dropout", "ctc", "fft")


class _PlanStruct(ctypes.Structure):
    """Field for field `struct cudnn_plan` of cuda/card.h."""

    _fields_ = (
        ("source", ctypes.c_int),
        ("problem", ctypes.c_uint64),
        ("tensor_bytes", ctypes.c_int64),
        ("workspace_bytes", ctypes.c_int64),
        ("low_bytes", ctypes.c_int64),
        ("high_bytes", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessFigures:
    """The guesses of one kind: sizes that a library reveals only on a real card.

    Field for field `struct guess_figures` of cuda/card.h.
    """

    count: int
    guessed_bytes: int
    """The largest sum of guessed bytes in use at once."""
    below_bytes: int
    """Bytes by which a real card may use less."""
    above_bytes: int
    expected_below_bytes: int
    """Bytes by which a real card may use less, of the last request, over which memory ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorFigures:
    """The communicators of NCCL, with more than one rank, that have done something; at most at once.

    Field for field `struct communicator_figures` of cuda/card.h.
    """

    communicators: int
    peers: int
    """The ranks that they send to or receive from, summed over communicators; collectives do not count."""
    sent_bytes: int = 0
    """The bytes that this rank has sent since the beginning, where collectives go round in rings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """Figures of the cuDNN plans whose workspaces come from one source; a problem is a graph with its shapes.

    Field for field `struct plan_figures` of cuda/card.h.
    """

    runs: int
    problems: int
    largest_tensor_bytes: int
    """Bytes of all tensors of the largest problem."""
    largest_workspace_bytes: int
    most_below_bytes: int
    """Largest number of bytes by which a workspace may be smaller than the one taken; 0 where it is known."""
    most_above_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFigures:
    """The memory that one shared object asked the driver for, outside PyTorch's allocator; bytes as requested.

    Field for field `struct outside_figures` of cuda/card.h.
    """

    calls: int
    bytes: int
    """Bytes that are not freed yet."""
    peak_bytes: int
    """The most bytes in use at once."""
    managed_peak_bytes: int
    """The most bytes of managed memory in use at once; they are the host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnPlans:
    """The cuDNN plans that were run."""

    by_source: dict[str, PlanFigures]
    """Figures by the name of a `PlanSource`, in lower case; sources without a plan are left out."""
    reasons: tuple[str, ...]
    """Reasons why some workspaces are not cuDNN's own."""

    @property
    def count(self) -> int:
        """Number of problems."""
        return sum(figures.problems for figures in self.by_source.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A graph with its shapes that cuDNN ran, identified by a number."""

    source: str
    problem: int
    tensor_bytes: int
    workspace_bytes: int
    low_bytes: int
    high_bytes: int


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
    for name in ("card_used_bytes", "card_peak_used_bytes", "card_managed_peak_on_card", "card_pinned_untouched"):
        getattr(library, name).restype = ctypes.c_int64
    library.card_launches.restype = ctypes.c_uint64
    library.card_reason.restype = library.card_outside.restype = ctypes.c_char_p
    library.card_problem.restype = ctypes.c_bool
    library.card_unwritten_name.restype = ctypes.c_char_p
    library.card_answer.argtypes = [ctypes.c_bool, ctypes.c_int64]
    library.card_answer.restype = library.card_show_use.restype = None
    library.card_show_use.argtypes = [ctypes.c_void_p]
    library.card_leave_memory.argtypes = [ctypes.c_bool]
    library.card_leave_memory.restype = library.card_hold_values.restype = None
    library.card_remember_sent.argtypes = [ctypes.c_bool]
    library.card_sent_is_noted.argtypes = [ctypes.c_bool]
    library.card_sent_is_noted.restype = None
    library.card_take_sent.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    library.card_take_sent.restype = ctypes.c_bool
    library.card_sent_at_high.argtypes = [ctypes.c_int64, *[ctypes.POINTER(ctypes.c_int64)] * 2]
    library.card_sent_at_high.restype = None
    library.card_watch_writes.argtypes = [ctypes.c_void_p, ctypes.c_uint16]
    library.card_watch_writes.restype = None
    library.card_unwritten_name.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
    return library


def describe_cards(name: str, figures: dict[str, int], *, count: int, cuda_number: int, cudnn: int) -> None:
    """Set the properties of this process's cards, before anything asks for them."""
    card = _card()
    values = (ctypes.c_int64 * len(FIGURES))(*(figures[figure] for figure in FIGURES))
    described = card.card_configure(count, cuda_number, cudnn) and all(
        card.card_describe(device, name.encode(), values, len(FIGURES)) for device in range(count)
    )
    if not described:
        raise EmulationError(f"{count} cards cannot be emulated; expected 1 to 16")


def change_cards(name: str, figures: dict[str, int], *, count: int) -> None:
    """Change the properties of cards that may be in use: what is asked for from now on is answered by these."""
    values = (ctypes.c_int64 * len(FIGURES))(*(figures[figure] for figure in FIGURES))
    for device in range(count):
        _card().card_describe(device, name.encode(), values, len(FIGURES))


def load(cuda_major: int) -> Path:
    """Load the emulated libraries for a CUDA version into the process; returns their folder.

    The dynamic linker matches what torch needs by SONAME with what is loaded already, so torch's own search path
    never comes into play, and an installed nvidia-* wheel or driver stays untouched. A package beside torch may be
    built for the other CUDA version: what has another SONAME and symbol version there is loaded, too, behind the first.
    """
    folder = FOLDER / str(cuda_major)
    for path in sorted(folder.iterdir()):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for path in sorted((FOLDER / str(_OTHER_MAJOR[cuda_major])).glob("libullage_*.so")):
        if path.stem in _BY_MAJOR:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return folder


def use_planner(cuda_major: int, *, python: str, code: str, root: str, setup: str) -> None:
    """Tell the emulated cuDNN how to start the planner process; see `ullage.gpu.emulator.cudnn`.

    Raises:
        MemoryError: there is none for it.
    """
    library = ctypes.CDLL(str(FOLDER / str(cuda_major) / "libullage_cudnn.so"))
    library.cudnn_planner_configure.restype = ctypes.c_bool
    if not library.cudnn_planner_configure(os.fsencode(python), code.encode(), os.fsencode(root), setup.encode()):
        raise MemoryError


def answer(number: int | None, /) -> None:
    """Answer what the calling thread reads back from the card with a number; None: with zero again."""
    _card().card_answer(number is not None, number or 0)


def show_use(address: int | None) -> None:
    """Have what is used of each card, without contexts, written to memory at an address; None: no longer."""
    _card().card_show_use(address)


def hold_values() -> None:
    """Give the card the host's memory, so that values can be computed in it; before any memory is handed out."""
    _card().card_hold_values()


def leave_memory(leaves: bool) -> None:  # noqa: FBT001  # called for each operator, by place
    """Have copies and fills of the calling thread leave the card's memory as it is, or no longer."""
    _card().card_leave_memory(leaves)


def remember_sent(*, on: bool) -> None:
    """Keep what each thread sends to the card last, for `take_sent`; or no longer."""
    _card().card_remember_sent(on)


def sent_is_noted(is_noted: bool) -> None:  # noqa: FBT001  # called for each copy, by place
    """Have what the calling thread sends not be kept for `take_sent`, as the caller has noted it; or again."""
    _card().card_sent_is_noted(is_noted)


def take_sent(address: int, size_bytes: int, destination: int, /) -> bool:
    """Write what the calling thread's last copy to the card was to an address on the host; False: it was another."""
    return bool(_card().card_take_sent(address, size_bytes, destination))


def sent_at_high(high_bytes: int) -> tuple[int, int]:
    """Return what is remembered of what was sent to the card, as far as it is in the most that was resident.

    Args:
        high_bytes: the most that this process had resident, by the kernel.

    Returns:
        what of it was remembered; and the most that was resident without that, at moments before it was.
    """
    of_high, before = ctypes.c_int64(), ctypes.c_int64()
    _card().card_sent_at_high(high_bytes, ctypes.byref(of_high), ctypes.byref(before))
    return of_high.value, before.value


def watch_writes(is_seen: int | None, key: int) -> ctypes.c_uint64:
    """Count writes on the card by threads that are not seen; returns the count, which goes on.

    Args:
        is_seen: the address of a function that tells, of a number, whether the calling thread is; None: count no more.
        key: the number that it is given.
    """
    card = _card()
    card.card_watch_writes(is_seen, key)
    return ctypes.c_uint64.in_dll(card, "card_unseen_writes")


def note_reason(text: str) -> None:
    """Record a reason why workspaces are not cuDNN's own; `cudnn_plans` reports it."""
    _card().card_note_reason(text.encode(errors="replace"))


def cudnn_plans() -> CudnnPlans:
    """Return which cuDNN plans were run, and how well their workspaces are known."""
    card = _card()
    by_source = {}
    for source in PlanSource:
        _, figures = _filled(PlanFigures, card.card_plan_figures, int(source))
        if figures.problems:
            by_source[source.name.lower()] = figures
    reasons: list[str] = []
    while reason := card.card_reason(len(reasons)):
        reasons.append(reason.decode(errors="replace"))
    return CudnnPlans(by_source=by_source, reasons=tuple(reasons))


def cudnn_problems() -> list[Problem]:
    """Return the problems that cuDNN ran, in the order of their first run."""
    card = _card()
    found: list[Problem] = []
    plan = _PlanStruct()
    while card.card_problem(len(found), ctypes.byref(plan)):
        numbers = {name: getattr(plan, name) for name, *_ in plan._fields_}
        found.append(Problem(**numbers | {"source": PlanSource(plan.source).name.lower()}))
    return found


def guesses() -> dict[str, GuessFigures]:
    """Return the guesses by the names in `GUESSES`; kinds without a guess are left out."""
    found = {kind: _filled(GuessFigures, _card().card_guess_figures, number)[1] for number, kind in enumerate(GUESSES)}
    return {kind: figures for kind, figures in found.items() if figures.count}


def communicators() -> CommunicatorFigures:
    """Return the most communicators of NCCL that have worked, and the ranks that they send to."""
    return _filled(CommunicatorFigures, _card().card_communicator_figures)[1]


def outside() -> dict[str, OutsideFigures]:
    """Return the memory requested outside PyTorch's allocator, by the shared object's file name."""
    found: dict[str, OutsideFigures] = {}
    index = 0
    while (answer := _filled(OutsideFigures, _card().card_outside, index))[0] is not None:
        index += 1
        path, figures = os.fsdecode(answer[0]), answer[1]
        if figures.calls:
            name = Path(path).name
            found[name if name not in found else path] = figures
    return found


def used_peak_bytes(device: int) -> int:
    """Return the most memory in use on a card at once as the driver counts it, with the context."""
    return int(_card().card_peak_used_bytes(device))


def managed_peak_on_card_bytes(device: int) -> int:
    """Return the most managed memory that was on a card at once."""
    return int(_card().card_managed_peak_on_card(device))


def pinned_untouched_bytes() -> int:
    """Return how much of the pinned memory nobody has written, so that the emulation takes no memory for it."""
    return int(_card().card_pinned_untouched())


def cudnn_version() -> int:
    """Return the version number of the emulated cuDNN: 91900 for 9.19.0."""
    return int(_card().card_cudnn_version())


def _filled(kind: type[Figures], function: Callable[..., Any], *place: int) -> tuple[Any, Figures]:
    """Call a function that fills a structure, whose fields are the whole numbers of 64 bits of a class.

    Returns:
        what the function returns, and the figures.
    """
    names = [field.name for field in fields(kind)]
    numbers = (ctypes.c_int64 * len(names))()
    answer = function(*place, numbers)
    return answer, kind(**dict(zip(names, numbers, strict=True)))


def unwritten_functions() -> dict[str, int]:
    """Return the CUDA functions that were called but are not written ("cublas:cublasFoo"), with their calls."""
    card = _card()
    calls = ctypes.c_uint64()
    found = {}
    for index in range(card.card_unwritten_count()):
        name = card.card_unwritten_name(index, ctypes.byref(calls))
        found[name.decode()] = calls.value
    return found
