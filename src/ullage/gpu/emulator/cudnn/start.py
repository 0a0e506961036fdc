"""The connection of this process's emulated cuDNN to the real one."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ullage.gpu.emulator import library
from ullage.gpu.emulator.cudnn.cache import default_folder
from ullage.gpu.emulator.cudnn.planner import Setup
from ullage.gpu.emulator.cudnn.real import OLDEST
from ullage.gpu.emulator.cudnn.wheel import VARIABLE, CudnnWheel, find_compiler, find_cudnn, why_none
from ullage.gpu.emulator.torch_build import TorchBuild

# Isolated, without site packages, so nothing of the user's is imported; the command says where this package is.
_CODE: Final = (
    "import sys; root, setup, client = sys.argv[1:]; sys.path.append(root); "
    "from ullage.gpu.emulator.cudnn.planner import main; main(setup, int(client))"
)
_ROOT: Final = str(Path(__file__).resolve().parents[4])

# What no list of cards has, and what was the same in every program that was found. Of what is described only the
# compute capability changed cuDNN's answers much; the number of multiprocessors did a little on older cards.
_CLOCK_KHZ: Final = 1_500_000
_MEMORY_CLOCK_KHZ: Final = 5_000_000
_SHARED_PER_BLOCK_BYTES: Final = 48 << 10
_RESERVED_SHARED_PER_BLOCK_BYTES: Final = 1 << 10  # from compute capability 8.0 on
_AMPERE: Final = 8


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


def json_of(name: str, figures: Mapping[str, int], *, cuda_number: int) -> str:
    """Describe a card as the JSON text that cuDNN's device-properties descriptor takes.

    Args:
        name: the driver's name of the card.
        figures: the values of `ullage.gpu.emulator.library.FIGURES`.
        cuda_number: 13000 for CUDA 13.0.
    """
    capability = figures["cc_major"] * 10 + figures["cc_minor"]
    return json.dumps(
        {
            "deviceName": name,
            "cudaDeviceId": 0,
            "pciDeviceId": 0,
            "deviceVer": capability * 10,
            "driverVer": cuda_number,
            "isTccDriver": 0,
            "warpSize": 32,
            "multiProcessorCount": figures["sm_count"],
            "totalGlobalMem": figures["total_memory_bytes"],
            "l2CacheSize": figures["l2_cache_bytes"],
            "smClockRateKHz": _CLOCK_KHZ,
            "memClockRateKHz": _MEMORY_CLOCK_KHZ,
            "maxGridSize": [2**31 - 1, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64],
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": figures["max_threads_per_sm"],
            "maxCtasPerSM": figures["max_blocks_per_sm"],
            "regsPerBlock": 65536,
            "maxRegistersPerSM": figures["regs_per_sm"],
            "maxSharedMemoryPerBlock": _SHARED_PER_BLOCK_BYTES,
            "maxSharedMemoryPerBlockOptin": figures["shared_memory_per_block_optin_bytes"],
            "reservedSharedMemoryPerBlock": _RESERVED_SHARED_PER_BLOCK_BYTES if figures["cc_major"] >= _AMPERE else 0,
            "supportCoopLaunch": 1,
        },
        sort_keys=True,
    )


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
