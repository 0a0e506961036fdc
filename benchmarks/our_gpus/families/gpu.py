"""The GPU, its driver and the installed packages: the first line of a record."""

import importlib.metadata
import os
import platform
from typing import Any

from ..instruments import IGNORED_VARIABLE, driver_version, is_own_process_in_nvml
from ..question import Answer, GpuUnderTest, Question

PACKAGES = (
    "transformers", "peft", "accelerate", "bitsandbytes", "timm", "torchvision", "torch_geometric", "triton", "ullage",
)  # fmt: skip


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Ask PyTorch and NVML."""
    import torch

    torch.ones(1, device="cuda")  # NVML lists processes that have a context
    properties = torch.cuda.get_device_properties(0)
    return {
        "emulated": gpu.emulated or None,
        "uuid": str(getattr(properties, "uuid", "")),
        "gpu": properties.name,
        "total_memory_bytes": properties.total_memory,
        "compute_capability": [properties.major, properties.minor],
        "sm_count": properties.multi_processor_count,
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "is_own_process_in_nvml": is_own_process_in_nvml(),
        "ignored_variables": os.environ.get(IGNORED_VARIABLE, "").split(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "host": {"cores": os.cpu_count(), "system": platform.system()},
    }


def _version(name: str) -> Any:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
