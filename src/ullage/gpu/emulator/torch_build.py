"""Find the installed PyTorch without importing it.

The search reads `torch/version.py` as text, and the metadata of the wheel. It does not check whether torch can be
loaded.
"""

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.base.errors import TorchMissingError

TESTED: Final = ("2.6", "2.15")
"""The oldest and the newest PyTorch version that ullage is tested with."""

INSTALL_LINE: Final = "pip install torch"
_CPU_BUILD_REMEDY: Final = "pip install --upgrade --force-reinstall torch"
_UNKNOWN_CUDNN: Final = (
    99900  # Above every real version: PyTorch refuses a cuDNN older than the version it was compiled with.
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """An installed PyTorch built for CUDA."""

    version: str
    """The version of PyTorch as in `torch.__version__`, such as "2.11.0+cu130"."""
    cuda: tuple[int, int]
    """The version of the CUDA toolkit that torch was compiled with, such as (13, 0)."""
    cudnn: int
    """The cuDNN version that torch was compiled with, in the form of `cudnnGetVersion`: 91900 for 9.19.0."""
    folder: Path
    planning: tuple[str, ...] = ()
    """The pip packages (cuDNN and NVRTC) that cuDNN needs to build plans without a GPU."""

    @property
    def cuda_number(self) -> int:
        """The CUDA version in CUDA's own form: 13000 for 13.0."""
        return self.cuda[0] * 1000 + self.cuda[1] * 10

    @property
    def is_tested(self) -> bool:
        """Whether ullage is tested with this PyTorch version."""
        return release_of(TESTED[0]) <= release_of(self.version) <= release_of(TESTED[1])


def release_of(version: str) -> tuple[int, int]:
    """Return the major and minor version of PyTorch, such as (2, 11) for "2.11.0+cu130"."""
    major, minor = version.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def has_code_for(compute_capability: tuple[int, int], architectures: list[str]) -> bool:
    """Return whether a build of torch runs on a GPU.

    The build needs code for the GPU's generation (sm_86 for 8.9), or PTX for an older GPU.

    Args:
        compute_capability: the GPU's compute capability, such as (8, 9).
        architectures: the result of `torch.cuda.get_arch_list`, such as ["sm_86", "compute_120"].
    """
    for name in architectures:
        kind, _, digits = name.partition("_")
        number = int(re.sub(r"\D", "", digits) or 0)
        built = divmod(number, 10)
        if kind == "compute" and built <= compute_capability:
            return True
        if kind == "sm" and built[0] == compute_capability[0] and built <= compute_capability:
            return True
    return not architectures


def find_torch() -> TorchBuild:
    """Return the installed PyTorch, found without importing it.

    Raises:
        TorchMissingError: PyTorch is not installed, or it is built without CUDA.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise TorchMissingError(f"PyTorch is not installed in this environment; install its CUDA build: {INSTALL_LINE}")
    folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text()
    except OSError as error:
        raise TorchMissingError(
            f"the PyTorch in {folder} cannot be read ({error.strerror}); install it again: {INSTALL_LINE}"
        ) from error
    version = _assigned(text, "__version__") or "unknown"
    cuda = _assigned(text, "cuda")
    if cuda is None:
        raise TorchMissingError(
            f"the PyTorch in this environment ({version}) is built without CUDA, and the emulator runs PyTorch's own "
            f"CUDA build (no GPU is needed); install it: {_CPU_BUILD_REMEDY}"
        )
    major, minor = (int(part) for part in cuda.split(".")[:2])
    if major not in (12, 13):
        raise TorchMissingError(
            f"the PyTorch in this environment ({version}) is built for CUDA {cuda}; only CUDA 12 and 13 can be "
            f"emulated; install a newer build: {INSTALL_LINE}"
        )
    required = _requirements()
    return TorchBuild(
        version=version,
        cuda=(major, minor),
        cudnn=_compiled_cudnn(required),
        folder=folder,
        planning=_planning(required),
    )


def _assigned(text: str, name: str) -> str | None:
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def _requirements() -> dict[str, str]:
    try:
        requirements = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    pinned = (re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*==\s*([\w.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in pinned if match}


def _compiled_cudnn(required: dict[str, str]) -> int:
    for name, version in required.items():
        if name.startswith("nvidia-cudnn-cu") and (match := re.match(r"(\d+)\.(\d+)\.(\d+)", version)):
            major, minor, patch = (int(part) for part in match.groups())
            return major * 10000 + minor * 100 + patch
    return _UNKNOWN_CUDNN


def _planning(required: dict[str, str]) -> tuple[str, ...]:
    found = []
    for name, version in required.items():
        if name.startswith(("nvidia-cudnn-cu", "nvidia-cuda-nvrtc")):
            found.append(f"{name}=={version}")
        elif name == "cuda-toolkit":  # Since CUDA 13, torch's metadata names the NVRTC version.
            found.append(f"nvidia-cuda-nvrtc=={'.'.join(version.split('.')[:2])}.*")
    return tuple(found)
