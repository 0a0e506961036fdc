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
_AMD_WORDS: Final = (
    ("CUDA_LAUNCH_BLOCKING=1", "AMD_SERIALIZE_KERNEL=3"),
    ("an Xid in dmesg", "amdgpu errors in dmesg"),
    ("nvidia-smi", "rocm-smi"),
)
_FULL: Final = re.compile(
    r"\b(?:memory|vram|ram)\b[^\n]{0,30}\b(?:fills?|filled|full|maxed|exhausted|runs? out|ran out|100 ?%)"
    r"|\b(?:fills?|filled|exhausts?|takes?|uses) (?:up )?(?:all|the (?:whole|entire)) (?:of )?(?:the |my )?"
    r"(?:gpu |video |system )?(?:memory|vram|ram)\b",
    re.IGNORECASE,
)
"""Pattern for a sentence that says that memory was full."""
_RARELY: Final = "It rarely means a lack of memory"
_MAYBE: Final = (
    "The text says that memory was full, which can lead to this error: first use less memory (a smaller batch, input "
    "or model). The error itself rarely means a lack of memory"
)
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
    *(
        _OtherError(
            find,
            f"{_RARELY}: the program did not find cuDNN's library. Install the version that it needs (pip install "
            "nvidia-cudnn-cu12 or -cu13), and add its folder to LD_LIBRARY_PATH (on Windows to PATH).",
        )
        for find in ("libcudnn_", "cudnn_ops64", "cudnn_ops_infer64", "cudnn64_", "Could not locate cudnn")
    ),
    _OtherError(
        "Too many open files",
        f"{_RARELY}: the process reached its limit of open files. Raise it (ulimit -n), use "
        "torch.multiprocessing.set_sharing_strategy('file_system'), or use fewer workers (num_workers).",
    ),
    _OtherError(
        "illegal memory access",
        f"{_RARELY}: a GPU kernel used an address that is not its own, usually because of "
        "a bug in "
        f"the kernel or an index that is out of range; {_BLOCKING}, and update the library that has the kernel.",
    ),
    _OtherError(
        "is/are busy or unavailable",
        f"{_RARELY}: the driver refused access to the GPU. Look with nvidia-smi for "
        "another process in "
        "exclusive compute mode, use another GPU, or restart the machine if the driver is in a bad state.",
    ),
    _OtherError(
        "Memory access fault by GPU node",
        f"{_RARELY}: a kernel used an invalid address, often because ROCm or PyTorch was "
        "built for "
        "another GPU; remove HSA_OVERRIDE_GFX_VERSION, and update the ROCm build, kernel and driver.",
    ),
    _OtherError(
        "misaligned address",
        f"{_RARELY}: a GPU kernel used a misaligned address, a bug in the kernel; {_BLOCKING}.",
    ),
    _OtherError(
        "too many resources requested for launch",
        f"{_RARELY}: a kernel needs more registers or threads per block than the GPU has; "
        "use another "
        "version or build of the library that has the kernel, or another attention backend.",
    ),
    _OtherError(
        "device-side assert triggered",
        f"{_RARELY}: a check in a GPU kernel failed, usually an index that is out of range; {_BLOCKING}.",
    ),
    _OtherError(
        "no kernel image is available",
        f"{_RARELY}: the build of the library does not support this GPU; install one that does.",
    ),
    _OtherError(
        "unspecified launch failure",
        f"{_RARELY}: a GPU kernel crashed; {_BLOCKING}, and look for an Xid in dmesg.",
    ),
    _OtherError(
        "Cuda failure 999 'unknown error'",
        f"{_RARELY}: the driver failed with an unknown error; look at the first CUDA error "
        "before it, "
        "restart WSL or the machine, and update the driver.",
    ),
    _OtherError(
        "CUDA error: unknown error",
        f"{_RARELY}: the driver failed with an unknown error; look at the first CUDA error "
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
        f"{_RARELY}: native code crashed; update the library at the top of the stack.",
    ),
    _OtherError(
        "Segmentation fault",
        f"{_RARELY}: native code crashed; update the library at the top of the stack.",
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
            advice = error.advice
            for nvidia, amd in _AMD_WORDS if is_amd else ():
                advice = advice.replace(nvidia, amd)
            if _FULL.search(text, max(0, at - _CONTEXT_CHARACTERS), at + _CONTEXT_CHARACTERS) is not None:
                advice = advice.replace(_RARELY, _MAYBE)
            found.append((at, advice))
    return min(found, default=None)
