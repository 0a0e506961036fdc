"""The names of the tools and environment variables of GPU vendors, for advice."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """What a vendor calls its device, its command that lists processes, and its variable that selects devices."""

    device: str
    """The word for the device in sentences: "GPU" or "NPU"."""
    list_processes: str
    """The command that lists the processes on the device and their memory."""
    select_device: str
    """The environment variable that selects the devices of a process."""
    driver: str = "CUDA"
    """The name of the vendor's driver or runtime."""
    blocking: str = "CUDA_LAUNCH_BLOCKING=1"
    """The setting with which errors are reported at the call that failed."""


_NVIDIA: Final = Vendor(device="GPU", list_processes="nvidia-smi", select_device="CUDA_VISIBLE_DEVICES")
_VENDORS: Final = {
    "HIP": Vendor(
        device="GPU",
        list_processes="amd-smi process or rocm-smi --showpids",
        select_device="HIP_VISIBLE_DEVICES",
        driver="HIP",
        blocking="AMD_SERIALIZE_KERNEL=3",
    ),
    "XPU": Vendor(device="GPU", list_processes="xpu-smi ps", select_device="ZE_AFFINITY_MASK"),
    "NPU": Vendor(device="NPU", list_processes="npu-smi info", select_device="ASCEND_RT_VISIBLE_DEVICES"),
    "MUSA": Vendor(device="GPU", list_processes="mthreads-gmi", select_device="MUSA_VISIBLE_DEVICES"),
}


def vendor_of(backend: str | None) -> Vendor:
    """Return the vendor of a device from the word that PyTorch's message begins with, such as "HIP" or "NPU".

    Messages without such a word, and words of NVIDIA's libraries, are NVIDIA's.
    """
    return _VENDORS.get(backend or "", _NVIDIA)
