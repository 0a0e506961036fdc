"""How the emulated cuDNN of this process comes to ask the real one."""

import sys
from pathlib import Path
from typing import Final

from ullage.emulator import library
from ullage.emulator.cudnn.cache import default_folder
from ullage.emulator.cudnn.card import json_of
from ullage.emulator.cudnn.planner import Setup
from ullage.emulator.cudnn.real import OLDEST
from ullage.emulator.cudnn.wheel import CudnnWheel, find_compiler, find_cudnn
from ullage.emulator.torch_build import TorchBuild

# Isolated, without site packages, so nothing of the user's is imported; where this package is, is told.
_CODE: Final = (
    "import sys; root, setup, client = sys.argv[1:]; sys.path.append(root); "
    "from ullage.emulator.cudnn.server import main; main(setup, int(client))"
)
_ROOT: Final = str(Path(__file__).resolve().parents[3])


def use_planner(gpu: str, figures: dict[str, int], torch: TorchBuild) -> None:
    """Have workspaces answered by cuDNN where it is installed; nothing is started before the first question."""
    wheel = wheel_of(torch)
    folder = library.FOLDER / str(torch.cuda[0])
    builtins = find_compiler(wheel) if wheel else ()
    setup = Setup(
        library=str(wheel.library) if wheel and wheel.version >= OLDEST else "",
        why_not=_why_not(wheel),
        version=wheel.version if wheel else torch.cudnn,
        # It asks cuBLAS for its version, and the driver and NVRTC to compile and load kernels, which then never run.
        symbols=(str(library.FOLDER / "libullage_card.so"), str(folder / "libullage_cublasLt.so")),
        before=(str(folder / "libcuda.so.1"), *map(str, builtins)),
        without_compiler=""
        if builtins
        else "cuDNN would compile its kernels for it, and NVRTC is not installed beside torch",
        capability=figures["cc_major"] * 10 + figures["cc_minor"],
        device_json=json_of(gpu, figures, cuda_number=torch.cuda_number),
        cache=_cache(),
    )
    if sys.executable:
        library.use_planner(torch.cuda[0], python=sys.executable, code=_CODE, root=_ROOT, setup=setup.to_json())


def version_of(torch: TorchBuild) -> int:
    """Return the version that the emulated cuDNN says it is: the installed one's, or the one that torch asks for."""
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


def _why_not(wheel: CudnnWheel | None) -> str:
    if wheel is None:
        return "cuDNN is not installed beside torch"
    if wheel.version < OLDEST:
        return f"cuDNN {wheel.text} is too old to plan for a card that is not there (9.8 and newer can)"
    return ""
