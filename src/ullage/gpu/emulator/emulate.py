"""Emulate a GPU in this process and in every process that it starts.

A process emulates until it ends, because torch binds to CUDA libraries when it is imported. Child processes inherit the
GPU through environment variables. `ULLAGE_EMULATED_CARD` describes the GPU. `PYTHONPATH` leads to
`_child/hooks/sitecustomize.py`, which starts the emulation. `LD_PRELOAD` names the library of `_child/handover.c`. It
restores these variables if a program changes the environment of its child processes.
"""

import atexit
import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ullage.base.child_process import HOOKS_FOLDER, hand_over, keep_for_children, reach_children
from ullage.base.errors import EmulationError, UsageError, quoted
from ullage.base.public import public
from ullage.base.units import text_of_bytes
from ullage.gpu.emulator import library
from ullage.gpu.emulator.cudnn.start import use_planner, version_of
from ullage.gpu.emulator.profile import profile_of
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.gpus import Gpu, find_gpu
from ullage.gpu.placement import PLACEMENTS, Placement
from ullage.gpu.tracing.torch_import import ImportWatch
from ullage.gpu.values.choice import ValuesChoice, ValuesMode

CARD_VARIABLE: Final = "ULLAGE_EMULATED_CARD"
USE_VARIABLE: Final = "ULLAGE_EMULATED_USE"
PYTHON_VARIABLE: Final = "ULLAGE_PYTHON"
SMI_FOLDER: Final = str(Path(__file__).parent / "nvidia_smi" / "bin")
_MAX_COUNT: Final = 16
_CUDNN_DECIDES: Final = -1  # the value that means that the user has not set the workspaces

# PyTorch's autograd thread may still request Python's global interpreter lock while the interpreter shuts down, which
# ends the process with "terminate called without an active exception". A real GPU is slow enough to hide this race; the
# emulated GPU is not.
_EXIT_PAUSE_SECONDS: Final = 0.05


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """The emulated GPU of this process. Sizes are in bytes."""

    gpu: str
    count: int
    total_memory_bytes: int
    context_bytes: int
    cudnn_workspace_bytes: int | None
    """The workspace size of every cuDNN plan, if the user has set one. None: cuDNN's own sizes."""
    placement: Placement = PLACEMENTS[0]
    """The platform whose choice of GPU memory addresses is emulated, such as "linux" or "windows"."""
    figures: dict[str, int]
    values: ValuesChoice = field(default_factory=ValuesChoice)
    """The options for the tensor values that a script reads from the emulated GPU."""

    def __post_init__(self) -> None:
        if isinstance(self.values, dict):
            object.__setattr__(self, "values", ValuesChoice(**self.values))

    def __repr__(self) -> str:
        each = " each" if self.count > 1 else ""
        return f"<Emulation: {self.count} x {self.gpu}, {text_of_bytes(self.total_memory_bytes)}{each}>"


_current: Emulation | None = None
# ullage's C code writes the used GPU memory here until the process ends. The emulated nvidia-smi reads it.
_shown: object = None


@public
def emulate(
    gpu: str | Gpu,
    *,
    total_memory_bytes: int | None = None,
    context_bytes: int | None = None,
    cudnn_workspace_bytes: int | None = None,
    placement: Placement = PLACEMENTS[0],
    count: int = 1,
    values: ValuesMode = "on",
    values_seed: int = 0,
    routing: str = "drawn",
) -> Emulation:
    """Emulate `count` GPUs in this process and its children until they end.

    Call this function before torch is imported. PyTorch's own allocator then runs, and reports its own byte counts.

    Args:
        gpu: a GPU's name ("RTX 4090") or size ("24GiB"), see `ullage.gpu.gpus.find_gpu`.
        total_memory_bytes: the GPU's memory as the driver reports it; None: the value in ullage's table of GPUs.
        context_bytes: the memory that the CUDA context uses; None: the value in the GPU's profile.
        cudnn_workspace_bytes: the workspace of every cuDNN plan. None: cuDNN's own answer, if cuDNN is installed with
            torch or the environment variable ULLAGE_CUDNN names its folder; otherwise an estimate from similar graphs.
        placement: the platform whose choice of GPU addresses is emulated: "linux", "wsl", "windows" or "linux-host".
            With "linux-host", GPU memory shares the address space with the process's own mappings. Up to torch 2.11,
            PyTorch chooses the block with the lower address among free blocks of equal size, so the reserved memory
            depends on GPU addresses.
        count: the number of GPUs.
        values: the values that are read back from the GPU. "on": values that follow from the data that the host has
            sent are computed, and other values are plausible random numbers; "off": zero; "all": all values are
            computed on the host, however long that takes.
        values_seed: the seed of the plausible random numbers.
        routing: the experts that a router with random scores chooses: "drawn" (those with the highest random scores),
            "balanced", "worst", or a number, the exponent of a Zipf distribution.

    Raises:
        EmulationError: torch is imported already, or this process emulates a different GPU already.
        TorchMissingError: torch is not installed, or not built for CUDA.
        UnknownGpuError: no GPU has that name.
        UsageError: a size, the placement, the count or the choice of values is invalid.
    """
    emulation = _emulation_of(
        gpu,
        placement=placement,
        total_memory_bytes=total_memory_bytes,
        context_bytes=context_bytes,
        cudnn_workspace_bytes=cudnn_workspace_bytes,
        count=count,
        values=ValuesChoice(mode=values, seed=values_seed, routing=routing),
    )
    _start(emulation)
    # CUDA_VISIBLE_DEVICES of this process selects among this machine's real GPUs and does not apply to emulated GPUs; a
    # launcher's value, in a child process, does.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return emulation


def emulate_in(environment: MutableMapping[str, str], gpu: str | Gpu, **choices: Any) -> Emulation:
    """Make Python processes with this environment emulate GPUs. This process is not affected.

    Args:
        environment: the environment of a process that is about to be started.
        gpu: see `emulate`.
        **choices: total_memory_bytes, context_bytes, cudnn_workspace_bytes, placement, count, and values (a
            `ValuesChoice`), as for `emulate`.

    Raises:
        UnknownGpuError: no GPU has that name.
        UsageError: the count, a size or the placement is invalid.
    """
    emulation = _emulation_of(gpu, **choices)
    environment[CARD_VARIABLE] = json.dumps(asdict(emulation))
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    reach_children(environment)
    hand_over(environment)
    _put_in_path(environment)
    return emulation


def inherit() -> None:
    """Emulate the parent process's GPU. `_child/hooks/sitecustomize.py` calls this function in child processes."""
    if _current is None:
        _start(Emulation(**json.loads(os.environ[CARD_VARIABLE])))


def inherited() -> Emulation:
    """Return the emulation that this process inherited from its parent."""
    inherit()
    assert _current is not None
    return _current


def _emulation_of(
    gpu: str | Gpu,
    *,
    total_memory_bytes: int | None = None,
    context_bytes: int | None = None,
    cudnn_workspace_bytes: int | None = None,
    placement: Placement = PLACEMENTS[0],
    count: int = 1,
    values: ValuesChoice | None = None,
) -> Emulation:
    card = find_gpu(gpu) if isinstance(gpu, str) else gpu
    context = profile_of(card).context_bytes if context_bytes is None else context_bytes
    total = card.total_memory_bytes if total_memory_bytes is None else total_memory_bytes
    if not 1 <= count <= _MAX_COUNT:
        raise UsageError(f"count={count} is out of range; expected 1 to {_MAX_COUNT} emulated GPUs")
    check_placement("placement=", placement)
    values = values or ValuesChoice()
    values.check()
    if min(total, context, cudnn_workspace_bytes or 0) < 0:
        raise UsageError(
            f"a size is negative: total {total}, context {context}, cuDNN workspace {cudnn_workspace_bytes} bytes"
        )
    if total <= context:
        raise UsageError(
            f"a GPU of {text_of_bytes(total)} has no memory left with a CUDA context of {text_of_bytes(context)}; "
            "give a larger total or a smaller context"
        )
    workspace = _CUDNN_DECIDES if cudnn_workspace_bytes is None else cudnn_workspace_bytes
    return Emulation(
        gpu=card.driver_name,
        count=count,
        total_memory_bytes=total,
        context_bytes=context,
        cudnn_workspace_bytes=cudnn_workspace_bytes,
        placement=placement,
        values=values,
        figures=figures_of(card)
        | {
            "total_memory_bytes": total,
            "context_bytes": context,
            "cudnn_workspace_bytes": workspace,
            "placement": PLACEMENTS.index(placement),
        },
    )


def check_placement(what: str, placement: str) -> None:
    """Raise UsageError if ullage cannot emulate the memory addresses of the named driver."""
    if placement not in PLACEMENTS:
        raise UsageError(f"{what}{quoted(placement)} is not a known driver; expected one of: {', '.join(PLACEMENTS)}")


def figures_of(card: Gpu) -> dict[str, int]:
    """Return a GPU's properties, under the names that the emulated CUDA libraries expect."""
    major, minor = card.compute_capability
    own = {name: getattr(card, name) for name in library.FIGURES if hasattr(card, name)}
    return own | {"cc_major": major, "cc_minor": minor, "max_blocks_per_sm": _blocks_per_sm(card)}


def _start(emulation: Emulation) -> None:
    global _current
    if _current == emulation:
        return
    if _current is not None:
        raise EmulationError(
            f"this process emulates {_current.count} x {_current.gpu} already, and cannot change that; "
            "use a new process for a different GPU"
        )
    if "torch" in sys.modules:
        raise EmulationError(
            "torch is imported already, so this process keeps the CUDA libraries it found; call ullage.emulate(...) "
            "before the first `import torch`, or run the script with: ullage predict SCRIPT --gpu NAME"
        )
    torch = find_torch()
    library.describe_cards(
        emulation.gpu,
        emulation.figures,
        count=emulation.count,
        cuda_number=torch.cuda_number,
        cudnn=version_of(torch),
    )
    folder = library.load(torch.cuda[0])
    use_planner(emulation.gpu, emulation.figures, torch)
    os.environ[CARD_VARIABLE] = json.dumps(asdict(emulation))
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    reach_children(os.environ)
    hand_over(os.environ)
    _put_in_path(os.environ)
    _show_use()
    keep_for_children()
    if HOOKS_FOLDER not in sys.path:  # The workers of torch.compile inherit this path.
        sys.path.append(HOOKS_FOLDER)
    ImportWatch("torch", before=lambda: None, after=lambda torch: _give_values(emulation, torch)).install()
    atexit.register(time.sleep, _EXIT_PAUSE_SECONDS)
    _current = emulation


def _put_in_path(environment: MutableMapping[str, str]) -> None:
    before = environment.get("PATH", os.defpath)
    if SMI_FOLDER not in before.split(os.pathsep):
        environment["PATH"] = os.pathsep.join([SMI_FOLDER, before])
    # In a program that embeds Python, sys.executable may be empty.
    environment[PYTHON_VARIABLE] = sys.executable or "python3"


def _show_use() -> None:
    global _shown
    try:
        descriptor = os.memfd_create("ullage-card")
        os.truncate(descriptor, mmap.PAGESIZE)
        memory = mmap.mmap(descriptor, mmap.PAGESIZE)
    except OSError:
        return  # No memory or file descriptor is left; nvidia-smi then shows no use.
    _shown = numbers = (ctypes.c_int64 * _MAX_COUNT).from_buffer(memory)
    library.show_use(ctypes.addressof(numbers))
    os.register_at_fork(after_in_child=lambda: library.show_use(None))
    own = f"{os.getpid()}:{descriptor}"
    os.environ[USE_VARIABLE] = " ".join(filter(None, [os.environ.get(USE_VARIABLE), own]))


def _give_values(emulation: Emulation, torch: ModuleType) -> None:
    from ullage.gpu.values.start import Values

    if emulation.values.mode == "all":
        library.hold_values()
    Values(emulation.values, library).start()


# CUDA C++ Programming Guide, specifications per compute capability
def _blocks_per_sm(card: Gpu) -> int:
    return {(7, 5): 16, (8, 6): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}.get(card.compute_capability, 32)
