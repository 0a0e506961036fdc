"""Recognizes errors that people take for out-of-memory errors, although they are none, and says what they are."""

import re
from dataclasses import dataclass
from typing import Final

_CONTEXT_CHARACTERS: Final = 1500


@dataclass(frozen=True, slots=True)
class _OtherError:
    find: str
    advice: str
    around: re.Pattern[str] | None = None
    """A pattern that the text around the error must match."""


_AMD: Final = re.compile(r"\bHIP\b|ROCm|rocm|amdgpu|gfx\d")
_BLOCKING: Final = "run with CUDA_LAUNCH_BLOCKING=1 to see the call that fails"
_ERRORS: Final = (
    # The first entry that fits decides.
    _OtherError(
        "CUDA error: invalid argument",
        "The failing call probably pins host memory (pin_memory=True), and the driver refused it: pin less memory at "
        "once (a smaller host buffer or cache), use "
        "pin_memory=False, or check ulimit -l.",
        re.compile(r"pin_memory=True|\.pin_memory\(|cudaHost|memory_pool_host\.py|_init_kv_buffer|exp_avg"),
    ),
    _OtherError(
        "Too many open files",
        "It rarely means a lack of memory: the process reached its limit of open files. Raise it (ulimit -n), use "
        "torch.multiprocessing.set_sharing_strategy('file_system'), or use fewer workers (num_workers).",
    ),
    _OtherError(
        "illegal memory access",
        "It rarely means a lack of memory: a GPU kernel used an address that is not its own, usually because of "
        "a bug in "
        f"the kernel or an index that is out of range; {_BLOCKING}, and update the library that has the kernel.",
    ),
    _OtherError(
        "is/are busy or unavailable",
        "It rarely means a lack of memory: the driver refused access to the GPU. Look with nvidia-smi for "
        "another process in "
        "exclusive compute mode, use another GPU, or restart the machine if the driver is in a bad state.",
    ),
    _OtherError(
        "Memory access fault by GPU node",
        "It rarely means a lack of memory: a kernel used an invalid address, often because ROCm or PyTorch was "
        "built for "
        "another GPU; remove HSA_OVERRIDE_GFX_VERSION, and update the ROCm build, kernel and driver.",
    ),
    _OtherError(
        "misaligned address",
        f"It rarely means a lack of memory: a GPU kernel used a misaligned address, a bug in the kernel; {_BLOCKING}.",
    ),
    _OtherError(
        "too many resources requested for launch",
        "It rarely means a lack of memory: a kernel needs more registers or threads per block than the GPU has; "
        "use another "
        "version or build of the library that has the kernel, or another attention backend.",
    ),
    _OtherError(
        "device-side assert triggered",
        "It rarely means a lack of memory: a check in a GPU kernel failed, usually an index that is out of range; "
        f"{_BLOCKING}.",
    ),
    _OtherError(
        "no kernel image is available",
        "It rarely means a lack of memory: the build of the library does not support this GPU; install one that does.",
    ),
    _OtherError(
        "unspecified launch failure",
        f"It rarely means a lack of memory: a GPU kernel crashed; {_BLOCKING}, and look for an Xid in dmesg.",
    ),
    _OtherError(
        "Cuda failure 999 'unknown error'",
        "It rarely means a lack of memory: the driver failed with an unknown error; look at the first CUDA error "
        "before it, "
        "restart WSL or the machine, and update the driver.",
    ),
    _OtherError(
        "CUDA error: unknown error",
        "It rarely means a lack of memory: the driver failed with an unknown error; look at the first CUDA error "
        "before it, "
        "restart WSL or the machine, and update the driver.",
    ),
    _OtherError(
        "Warning [IsEnoughWorkspace]",
        "It is a harmless warning: MIOpen tried a solver without its workspace and chooses another one; "
        "MIOPEN_FIND_MODE=FAST avoids it, and updating MIOpen may too.",
    ),
    _OtherError(
        "Segfault encountered",
        "It rarely means a lack of memory: native code crashed; update the library at the top of the stack.",
    ),
    _OtherError(
        "Segmentation fault",
        "It rarely means a lack of memory: native code crashed; update the library at the top of the stack.",
    ),
)


def other_error(text: str, begin: int, until: int) -> tuple[int, str] | None:
    """Return the position of the first such error between two positions of a text, and what it means, or None."""
    found = []
    for error in _ERRORS:
        at = text.find(error.find, begin, until)
        if at < 0:
            continue
        around = text[max(0, at - _CONTEXT_CHARACTERS) : at]
        if error.around is None or error.around.search(around) is not None:
            is_amd = _AMD.search(text, max(0, at - _CONTEXT_CHARACTERS), at + _CONTEXT_CHARACTERS) is not None
            advice = (
                error.advice.replace("CUDA_LAUNCH_BLOCKING=1", "AMD_SERIALIZE_KERNEL=3") if is_amd else error.advice
            )
            found.append((at, advice))
    return min(found, default=None)
