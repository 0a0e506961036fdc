"""The location of NVIDIA's own libraries, if they are installed beside torch; nothing is loaded."""

import os
import re
import site
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "ULLAGE_CUDNN"
"""The environment variable that names a folder with cuDNN's packages, where cuDNN is not installed beside torch."""

_HEADER: Final = "include/cudnn_version.h"
_LIBRARY: Final = "lib/libcudnn.so.9"
_VERSION_PART_LIMIT: Final = 100  # of a version's number; no part is larger
_NUMBERS: Final = ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudnnWheel:
    """An installed nvidia-cudnn-cu12 or nvidia-cudnn-cu13."""

    library: Path
    version: int
    """The version in the form of `cudnnGetVersion`: 91900 for 9.19.0."""

    @property
    def text(self) -> str:
        """The version as people write it: 9.19.0."""
        return f"{self.version // 10000}.{self.version // 100 % 100}.{self.version % 100}"


def find_cudnn(beside: Path) -> CudnnWheel | None:
    """Find the cuDNN that torch would load.

    Args:
        beside: torch's folder; wheels lie next to it, or in another folder of packages.
    """
    for folder in _folders(beside):
        library = (folder / "nvidia" / "cudnn" / _LIBRARY).absolute()
        if library.is_file():
            version = _version_of(folder / "nvidia" / "cudnn" / _HEADER)
            return CudnnWheel(library=library, version=version) if version else None
    return None


def why_none(beside: Path) -> str:
    """Return the reason why `find_cudnn` finds none."""
    named = os.environ.get(VARIABLE)
    text = "cuDNN is not installed beside torch"
    if named:
        text = f"{VARIABLE} names {named}, which has no nvidia/cudnn/{_LIBRARY}, and {text}"
    for folder in _folders(beside):
        if (folder / "nvidia" / "cudnn" / _LIBRARY).is_file():
            return f"{folder / 'nvidia' / 'cudnn' / _HEADER} does not say which cuDNN it is"
    return text


def _folders(beside: Path) -> dict[Path, None]:
    given = [Path(named)] if (named := os.environ.get(VARIABLE)) else []
    return dict.fromkeys([*given, beside.parent, *map(Path, sys.path), *map(Path, site.getsitepackages())])


def find_compiler(cudnn: CudnnWheel) -> tuple[Path, ...]:
    """Find the builtins of the NVRTC that cuDNN would load; empty where there is none.

    NVRTC itself is found by cuDNN, its builtins only where they are loaded already.
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
