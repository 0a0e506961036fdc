"""The connection of this process's emulated cuDNN to the real one."""

import sys
from pathlib import Path
from typing import Final

from ullage.gpu.emulator import library
from ullage.gpu.emulator.cudnn.cache import default_folder
from ullage.gpu.emulator.cudnn.card import json_of
from ullage.gpu.emulator.cudnn.planner import Setup
from ullage.gpu.emulator.cudnn.real import OLDEST
from ullage.gpu.emulator.cudnn.wheel import VARIABLE, CudnnWheel, find_compiler, find_cudnn, why_none
from ullage.gpu.emulator.torch_build import TorchBuild

# Isolated, without site packages, so nothing of the user's is imported; the command says where this package is.
_CODE: Final = (
    "import sys; root, setup, client = sys.argv[1:]; sys.path.append(root); "
    "from ullage.gpu.emulator.cudnn.server import main; main(setup, int(client))"
)
_ROOT: Final = str(Path(__file__).resolve().parents[4])


def use_planner(gpu: str, figures: dict[str, int], torch: TorchBuild) -> None:
    """Let cuDNN answer for workspaces where it is installed; its process starts with the first question."""
    wheel = wheel_of(torch)
    folder = library.FOLDER / str(torch.cuda[0])
    builtins = find_compiler(wheel) if wheel else ()
    setup = Setup(
        library=str(wheel.library) if wheel and wheel.version >= OLDEST else "",
        why_not=_why_not(wheel, torch),
        version=wheel.version if wheel else torch.cudnn,
        # It asks cuBLAS for its version, and the driver and NVRTC to compile and load kernels, which then never run.
        symbols=(str(library.FOLDER / "libullage_card.so"), str(folder / "libullage_cublasLt.so")),
        before=(str(folder / "libcuda.so.1"), *map(str, builtins)),
        without_compiler="" if builtins else _without_compiler(torch),
        capability=figures["cc_major"] * 10 + figures["cc_minor"],
        device_json=json_of(gpu, figures, cuda_number=torch.cuda_number),
        cache=_cache(),
    )
    if sys.executable:
        library.use_planner(torch.cuda[0], python=sys.executable, code=_CODE, root=_ROOT, setup=setup.to_json())
    else:
        library.note_reason("sys.executable names no Python that could ask cuDNN")


def state_of(torch: TorchBuild) -> str:
    """Return, in words, where the workspaces of this torch's convolutions and attention come from."""
    wheel = wheel_of(torch)
    if wheel is None or wheel.version < OLDEST:
        return f"estimated; {_why_not(wheel, torch)}"
    return f"cuDNN {wheel.text}'s own" + ("" if find_compiler(wheel) else f", in part; {_without_compiler(torch)}")


def version_of(torch: TorchBuild) -> int:
    """Return the version that the emulated cuDNN reports: the installed one's, or the one that torch requires."""
    wheel = wheel_of(torch)
    return wheel.version if wheel else torch.cudnn


def wheel_of(torch: TorchBuild) -> CudnnWheel | None:
    """Return the cuDNN that this torch would load."""
    return find_cudnn(torch.folder)


def _cache() -> str:
    try:
        return str(default_folder())
    except RuntimeError:  # there is no home: nothing is kept
        return ""


def _why_not(wheel: CudnnWheel | None, torch: TorchBuild) -> str:
    if wheel is None:
        return why_none(torch.folder) + _remedy(torch)
    if wheel.version < OLDEST:
        return f"cuDNN {wheel.text} is too old to plan for a card that is not there (9.8 and newer can){_remedy(torch)}"
    return ""


def _without_compiler(torch: TorchBuild) -> str:
    return f"cuDNN would compile kernels while it plans, and NVRTC is not installed beside it{_remedy(torch)}"


def _remedy(torch: TorchBuild) -> str:
    if not torch.planning:
        return ""
    packages = " ".join(f'"{package}"' for package in torch.planning)
    return f"; pip install --no-deps --target FOLDER {packages}, and {VARIABLE}=FOLDER, has cuDNN's own plans"
