"""Load the emulated CUDA libraries, describe the GPUs to them, and read their counters.

They must be loaded before torch. Their C code is in `cuda/`, with one file for each library.
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

# The order of `enum card_figure` in the C header of the emulator.
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
    """The origin of a cuDNN workspace size. The order is that of `enum plan_source` in `cuda/card.h`."""

    UNKNOWN = 0
    GIVEN = 1
    TABLE = 2
    CUDNN = 3


# The order of `enum guess_kind` in the C header of the emulator.
GUESSES: Final = ("rnn", "batch_norm", "dropout", "ctc", "fft")


class _PlanStruct(ctypes.Structure):
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
    """Totals of allocations whose sizes are guessed, because a CUDA library reveals them only on a real GPU."""

    # The fields have the same order as in the C code's `struct guess_figures`.
    count: int
    guessed_bytes: int
    """The peak of GPU memory in allocations whose sizes ullage guesses, in bytes."""
    below_bytes: int
    """The number of bytes by which a real GPU may use less memory than ullage guessed."""
    above_bytes: int
    expected_below_bytes: int
    """The number of bytes by which a real GPU probably uses less memory than ullage guessed.

    The number is 0 unless memory ran out when a guessed size was requested.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorFigures:
    """Totals of the NCCL communicators that connect several ranks and have executed an operation."""

    # The fields have the same order as in the C code's `struct communicator_figures`.
    communicators: int
    """The largest number of NCCL communicators in use at one time."""
    peers: int
    """The largest number of ranks with which this rank exchanged point-to-point messages at one time.

    A rank counts once for each NCCL communicator.
    """
    sent_bytes: int = 0
    """The bytes that this rank has sent to other ranks. Collectives are assumed to use rings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """Totals of the cuDNN plans whose workspace sizes come from one source, such as cuDNN itself."""

    # The fields have the same order as in the C code's `struct plan_figures`.
    runs: int
    problems: int
    """The number of cuDNN graphs that differ in their operations or tensor shapes."""
    largest_tensor_bytes: int
    """The total bytes of all tensors in the largest cuDNN graph."""
    largest_workspace_bytes: int
    most_below_bytes: int
    """The largest number of bytes by which a real GPU's workspace may be smaller than the emulated workspace.

    The number is 0 if the real size is known.
    """
    most_above_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFigures:
    """The memory that one library requested from the driver, outside PyTorch's allocator.

    Sizes are in bytes, before rounding.
    """

    # The fields have the same order as in the C code's `struct outside_figures`.
    calls: int
    bytes: int
    """The GPU memory that one shared library holds now, in bytes."""
    peak_bytes: int
    """The largest amount of GPU memory that one shared library has held at one time, in bytes."""
    managed_peak_bytes: int
    """The peak of managed memory (cudaMallocManaged) in bytes. It is in host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnPlans:
    """The cuDNN plans that the process has run."""

    by_source: dict[str, PlanFigures]
    """Totals of the cuDNN plans for each source of their workspace sizes, such as "table" or "cudnn"."""
    reasons: tuple[str, ...]
    """The reasons why some workspace sizes do not come from cuDNN itself."""

    @property
    def count(self) -> int:
        """The number of different cuDNN graphs."""
        return sum(figures.problems for figures in self.by_source.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A cuDNN graph that the process has run, and the size of its workspace."""

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
    """Set the properties of the emulated GPUs. Call this before the process uses them."""
    card = _card()
    values = (ctypes.c_int64 * len(FIGURES))(*(figures[figure] for figure in FIGURES))
    described = card.card_configure(count, cuda_number, cudnn) and all(
        card.card_describe(device, name.encode(), values, len(FIGURES)) for device in range(count)
    )
    if not described:
        raise EmulationError(f"{count} GPUs cannot be emulated; expected 1 to 16")


def change_cards(name: str, figures: dict[str, int], *, count: int) -> None:
    """Change the properties of emulated GPUs that may already be in use."""
    values = (ctypes.c_int64 * len(FIGURES))(*(figures[figure] for figure in FIGURES))
    for device in range(count):
        _card().card_describe(device, name.encode(), values, len(FIGURES))


def load(cuda_major: int) -> Path:
    """Load the emulated libraries for a CUDA version, and return their folder.

    The dynamic linker resolves torch's dependencies by SONAME from libraries that are already loaded. So installed
    nvidia-* wheels and drivers are not used and not changed. A package may be built for another CUDA version than
    torch. So libraries of the other version are loaded, too.
    """
    folder = FOLDER / str(cuda_major)
    for path in sorted(folder.iterdir()):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    for path in sorted((FOLDER / str(_OTHER_MAJOR[cuda_major])).glob("libullage_*.so")):
        if path.stem in _BY_MAJOR:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return folder


def use_planner(cuda_major: int, *, python: str, code: str, root: str, setup: str) -> None:
    """Set the command that starts the planner process, which asks the real cuDNN for workspace sizes.

    Raises:
        MemoryError: the C library cannot allocate memory for the command.
    """
    library = ctypes.CDLL(str(FOLDER / str(cuda_major) / "libullage_cudnn.so"))
    library.cudnn_planner_configure.restype = ctypes.c_bool
    if not library.cudnn_planner_configure(os.fsencode(python), code.encode(), os.fsencode(root), setup.encode()):
        raise MemoryError


def answer(number: int | None, /) -> None:
    """Set the number that the calling thread receives when it copies a value from the GPU to the host.

    If the argument is None, the thread receives zero.
    """
    _card().card_answer(number is not None, number or 0)


def show_use(address: int | None) -> None:
    """Keep the current memory use of each emulated GPU in an array in host memory.

    Args:
        address: the address of the array; None: stop updating it. CUDA contexts are not counted.
    """
    _card().card_show_use(address)


def hold_values() -> None:
    """Store the emulated GPU's memory in host memory, so that tensor values can be computed.

    Call this before any memory is allocated.
    """
    _card().card_hold_values()


def leave_memory(leaves: bool) -> None:  # noqa: FBT001  # called for each operator, by place
    """Set whether the calling thread's copies and fills of GPU memory are ignored."""
    _card().card_leave_memory(leaves)


def remember_sent(*, on: bool) -> None:
    """Set whether the emulator keeps the data of each thread's last copy to the GPU. `take_sent` reads the data."""
    _card().card_remember_sent(on)


def sent_is_noted(is_noted: bool) -> None:  # noqa: FBT001  # called for each copy, by place
    """Set whether the calling thread records its own copies to the GPU.

    If so, the emulator does not keep their data.
    """
    _card().card_sent_is_noted(is_noted)


def take_sent(address: int, size_bytes: int, destination: int, /) -> bool:
    """Read the data of the calling thread's last copy to the GPU.

    Return False if the thread's last copy went to a different GPU address.

    Args:
        address: the GPU address of the copy.
        size_bytes: the size of the copy.
        destination: the host address to which the data is written.
    """
    return bool(_card().card_take_sent(address, size_bytes, destination))


def sent_at_high(high_bytes: int) -> tuple[int, int]:
    """Return how many bytes of the host memory peak are copies that ullage kept of data sent to the GPU.

    Args:
        high_bytes: the peak of resident bytes of this process, as the kernel reports it.

    Returns:
        the bytes of remembered copies within that peak; and the largest resident size measured just before a copy was
        remembered, without remembered copies.
    """
    of_high, before = ctypes.c_int64(), ctypes.c_int64()
    _card().card_sent_at_high(high_bytes, ctypes.byref(of_high), ctypes.byref(before))
    return of_high.value, before.value


def watch_writes(is_seen: int | None, key: int) -> ctypes.c_uint64:
    """Count the GPU writes of threads that PyTorch's dispatcher hooks do not see. Return the counter.

    Args:
        is_seen: the address of a C function that takes a dispatch key and returns whether the calling thread includes
            it; None: stop counting.
        key: the dispatch key that is passed to the function.
    """
    card = _card()
    card.card_watch_writes(is_seen, key)
    return ctypes.c_uint64.in_dll(card, "card_unseen_writes")


def note_reason(text: str) -> None:
    """Record a reason why workspace sizes do not come from cuDNN itself."""
    _card().card_note_reason(text.encode(errors="replace"))


def cudnn_plans() -> CudnnPlans:
    """Return totals of the cuDNN plans that were run, grouped by the origin of their workspace sizes."""
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
    """Return the cuDNN graphs that were run, in the order of their first run."""
    card = _card()
    found: list[Problem] = []
    plan = _PlanStruct()
    while card.card_problem(len(found), ctypes.byref(plan)):
        numbers = {name: getattr(plan, name) for name, *_ in plan._fields_}
        found.append(Problem(**numbers | {"source": PlanSource(plan.source).name.lower()}))
    return found


def guesses() -> dict[str, GuessFigures]:
    """Return totals of the allocations whose sizes were guessed, for each kind of guess."""
    found = {kind: _filled(GuessFigures, _card().card_guess_figures, number)[1] for number, kind in enumerate(GUESSES)}
    return {kind: figures for kind, figures in found.items() if figures.count}


def communicators() -> CommunicatorFigures:
    """Return how many NCCL communicators are in use, and how many ranks they send to."""
    return _filled(CommunicatorFigures, _card().card_communicator_figures)[1]


def outside() -> dict[str, OutsideFigures]:
    """Return the GPU memory that each library requested outside PyTorch's allocator, by file name."""
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
    """Return the peak memory use of an emulated GPU in bytes, including the CUDA context."""
    return int(_card().card_peak_used_bytes(device))


def managed_peak_on_card_bytes(device: int) -> int:
    """Return the largest number of bytes of managed memory that were on a GPU at the same time."""
    return int(_card().card_managed_peak_on_card(device))


def pinned_untouched_bytes() -> int:
    """Return the bytes of pinned host memory that were never written, and so use no host memory."""
    return int(_card().card_pinned_untouched())


def cudnn_version() -> int:
    """Return the version number of the emulated cuDNN: 91900 for 9.19.0."""
    return int(_card().card_cudnn_version())


def _filled(kind: type[Figures], function: Callable[..., Any], *place: int) -> tuple[Any, Figures]:
    names = [field.name for field in fields(kind)]
    numbers = (ctypes.c_int64 * len(names))()
    answer = function(*place, numbers)
    return answer, kind(**dict(zip(names, numbers, strict=True)))


def unwritten_functions() -> dict[str, int]:
    """Count the calls of CUDA functions that ullage does not implement, such as "cublas:cublasFoo"."""
    card = _card()
    calls = ctypes.c_uint64()
    found = {}
    for index in range(card.card_unwritten_count()):
        name = card.card_unwritten_name(index, ctypes.byref(calls))
        found[name.decode()] = calls.value
    return found
