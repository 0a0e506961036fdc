"""Connect the emulated cuDNN of this process to the real cuDNN, which computes workspace sizes."""

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

# Python runs isolated and without site packages, so that nothing of the user's is imported; the command adds ullage's
# folder.
_CODE: Final = (
    "import sys; root, setup, client = sys.argv[1:]; sys.path.append(root); "
    "from ullage.gpu.emulator.cudnn.planner import main; main(setup, int(client))"
)
_ROOT: Final = str(Path(__file__).resolve().parents[4])

# These properties are missing in lists of GPUs, and were the same in every program that was found. Of all described
# properties, only the compute capability changed cuDNN's answers much; the number of multiprocessors changed them a
# little on older GPUs.
_CLOCK_KHZ: Final = 1_500_000
_MEMORY_CLOCK_KHZ: Final = 5_000_000
_SHARED_PER_BLOCK_BYTES: Final = 48 << 10
_RESERVED_SHARED_PER_BLOCK_BYTES: Final = 1 << 10  # for compute capability 8.0 and newer
_AMPERE: Final = 8


def use_planner(gpu: str, figures: dict[str, int], torch: TorchBuild) -> None:
    """Use the workspace sizes of the real cuDNN, if it is installed.

    The planner process, which loads cuDNN, starts with the first query.
    """
    wheel = wheel_of(torch)
    folder = library.FOLDER / str(torch.cuda[0])
    builtins = find_compiler(wheel) if wheel else ()
    setup = Setup(
        library=str(wheel.library) if wheel and wheel.version >= OLDEST else "",
        why_not=_why_not(wheel, torch),
        version=wheel.version if wheel else torch.cudnn,
        # cuDNN asks cuBLAS for its version, and the driver and NVRTC to compile and load kernels, which are never run.
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
        library.note_reason("sys.executable is not set, so the planner process for cuDNN cannot be started")


def json_of(name: str, figures: Mapping[str, int], *, cuda_number: int) -> str:
    """Return a JSON description of a GPU for cuDNN.

    Args:
        name: the driver's name of the GPU.
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
    """Return a sentence that says where the workspace sizes of convolutions and attention come from."""
    wheel = wheel_of(torch)
    if wheel is None or wheel.version < OLDEST:
        return f"estimated; {_why_not(wheel, torch)}"
    return f"from cuDNN {wheel.text} itself" + (
        "" if find_compiler(wheel) else f", in part; {_without_compiler(torch)}"
    )


def version_of(torch: TorchBuild) -> int:
    """Return the version of the installed cuDNN or, without one, the version that torch requires."""
    wheel = wheel_of(torch)
    return wheel.version if wheel else torch.cudnn


def wheel_of(torch: TorchBuild) -> CudnnWheel | None:
    """Return the cuDNN package that torch would load, or None."""
    return find_cudnn(torch.folder)


def _cache() -> str:
    try:
        return str(default_folder())
    except RuntimeError:  # The user has no home folder, so answers are not cached.
        return ""


def _why_not(wheel: CudnnWheel | None, torch: TorchBuild) -> str:
    if wheel is None:
        return why_none(torch.folder) + _remedy(torch)
    if wheel.version < OLDEST:
        return f"cuDNN {wheel.text} is too old to plan without a GPU (9.8 and newer can){_remedy(torch)}"
    return ""


def _without_compiler(torch: TorchBuild) -> str:
    return f"cuDNN compiles kernels while it plans, and NVRTC is not installed with it{_remedy(torch)}"


def _remedy(torch: TorchBuild) -> str:
    if not torch.planning:
        return ""
    packages = " ".join(f'"{package}"' for package in torch.planning)
    return f"; for cuDNN's own plans: pip install --no-deps --target FOLDER {packages}, and set {VARIABLE}=FOLDER"
