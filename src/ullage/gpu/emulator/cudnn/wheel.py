"""Find NVIDIA's own libraries among the installed packages, without loading them."""

import os
import re
import site
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "ULLAGE_CUDNN"
"""An environment variable for the folder of the cuDNN packages, if PyTorch was installed without cuDNN."""

_HEADER: Final = "include/cudnn_version.h"
_LIBRARY: Final = "lib/libcudnn.so.9"
_VERSION_PART_LIMIT: Final = 100  # characters of one part of a version number; no part is longer
_NUMBERS: Final = ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnWheel:
    """An installed package nvidia-cudnn-cu12 or nvidia-cudnn-cu13."""

    library: Path
    version: int
    """The cuDNN version in the form of `cudnnGetVersion`: 91900 for 9.19.0."""

    @property
    def text(self) -> str:
        """The version of cuDNN as text, such as 9.19.0."""
        return f"{self.version // 10000}.{self.version // 100 % 100}.{self.version % 100}"


def find_cudnn(torch_folder: Path) -> CudnnWheel | None:
    """Return the cuDNN package that torch would load, or None.

    Args:
        torch_folder: torch's folder; the wheels are installed next to it, or in another folder of packages.
    """
    for folder in _folders(torch_folder):
        library = (folder / "nvidia" / "cudnn" / _LIBRARY).absolute()
        if library.is_file():
            version = _version_of(folder / "nvidia" / "cudnn" / _HEADER)
            return CudnnWheel(library=library, version=version) if version else None
    return None


def why_none(torch_folder: Path) -> str:
    """Return the reason why `find_cudnn` finds no cuDNN."""
    named = os.environ.get(VARIABLE)
    text = "cuDNN is not installed with torch"
    if named:
        text = f"{VARIABLE} is {named}, which does not contain nvidia/cudnn/{_LIBRARY}, and {text}"
    for folder in _folders(torch_folder):
        if (folder / "nvidia" / "cudnn" / _LIBRARY).is_file():
            return f"{folder / 'nvidia' / 'cudnn' / _HEADER} does not contain cuDNN's version"
    return text


def _folders(torch_folder: Path) -> dict[Path, None]:
    given = [Path(named)] if (named := os.environ.get(VARIABLE)) else []
    return dict.fromkeys([*given, torch_folder.parent, *map(Path, sys.path), *map(Path, site.getsitepackages())])


def find_compiler(cudnn: CudnnWheel) -> tuple[Path, ...]:
    """Return the path of the builtins library of NVRTC, cuDNN's compiler.

    The result is empty if NVRTC is not installed. cuDNN finds the builtins library only if it is already loaded.
    """
    packages = cudnn.library.parents[2]
    for folder in (packages / "cu13" / "lib", packages / "cuda_nvrtc" / "lib"):
        if any(folder.glob("libnvrtc.so.*")):
            return tuple(sorted(folder.glob("libnvrtc-builtins.so.*")))[:1]
    return ()


def _version_of(header: Path) -> int | None:
    try:
        text = header.read_text(errors="replace")
    except OSError:
        return None
    found = [re.search(rf"^#define\s+{name}\s+(\d+)", text, re.MULTILINE) for name in _NUMBERS]
    if not all(found):
        return None
    major, minor, patch = (int(match[1]) for match in found if match)
    return major * 10000 + minor * 100 + patch if max(minor, patch) < _VERSION_PART_LIMIT else None
