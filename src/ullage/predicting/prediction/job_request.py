"""Create the lines of a cluster job script that request the predicted resources, for Slurm or Kubernetes.

A request that is larger than the measured value has a comment with the measured value, the margin, and the rounding.
"""

import math
from dataclasses import dataclass
from typing import Final

from ullage.base.units import GIB, text_of_bytes

MARGIN: Final = 0.25
"""The safety margin for host memory in the job script: 0.25 requests 25 % more than ullage measured.

The margin covers the host memory of the CUDA driver, and growth during an epoch.
"""
LEAST_MARGIN_BYTES: Final = 2 * GIB
SHM_MARGIN: Final = 1.0
"""The safety margin for /dev/shm in the job script: 1.0 requests twice as much as ullage measured.

The margin is large because ullage measures /dev/shm only a few times a second.
"""
_NAME_WIDTH: Final = 40  # characters
NAMES: Final = {"slurm": "Slurm", "k8s": "Kubernetes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    """The predicted resources for one node. Sizes are in bytes."""

    script: str
    gpu: str
    card_bytes: int
    """The total memory of the emulated GPU, in bytes."""
    used_bytes: int
    """The highest number of bytes that the driver may report as used GPU memory."""
    fits: bool
    nodes: int
    gpus: int
    """The number of GPUs per node."""
    ranks: int
    """The number of training processes per node."""
    workers: int
    """The number of processes, such as DataLoader workers, that each training process starts."""
    host_bytes: int | None
    """The host memory in bytes that one node needs, or None if it is unknown."""
    shared_memory_bytes: int
    """The part of the host memory in /dev/shm, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """The lines of a job script and the resources that they request."""

    kind: str
    """The cluster software: "slurm" or "k8s"."""
    text: str
    gpus: int
    cpus: int
    """The number of CPU cores per task (Slurm) or per pod (Kubernetes)."""
    memory_bytes: int | None
    """The requested host memory in bytes, including the margin."""
    shared_memory_bytes: int
    """The requested size of /dev/shm in bytes, including the margin."""

    @property
    def whose(self) -> str:
        """The name of the cluster software, such as "Slurm"."""
        return NAMES[self.kind]


def job_request_of(kind: str, needs: JobNeeds) -> JobRequest:
    """Return the lines of a job script that request the predicted resources."""
    cpus = needs.workers + 1
    memory = None if needs.host_bytes is None else _with_margin(needs.host_bytes)
    shared = _whole_gib(needs.shared_memory_bytes * (1 + SHM_MARGIN)) if needs.shared_memory_bytes else 0
    if memory is not None and shared > needs.shared_memory_bytes:
        memory = max(memory, shared)
    write = _slurm if kind == "slurm" else _pod
    return JobRequest(
        kind=kind,
        text="\n".join(write(needs, cpus, memory, shared)),
        gpus=needs.gpus,
        cpus=cpus if kind == "slurm" else cpus * needs.ranks,
        memory_bytes=memory,
        shared_memory_bytes=shared,
    )


def _whole_gib(size: float) -> int:
    return math.ceil(size / GIB) * GIB


def _with_margin(size: int) -> int:
    return _whole_gib(size + max(size * MARGIN, LEAST_MARGIN_BYTES))


# ---- the text of both formats: comments are at most 80 columns wide


def _about(needs: JobNeeds) -> list[str]:
    verdict = "" if needs.fits else " (NOT known to fit)"
    return [
        f"# ullage predict {_one_line(needs.script)}{verdict}",
        f"# for {_one_line(needs.gpu)}",
        f"# each GPU: at most {text_of_bytes(needs.used_bytes)} of {text_of_bytes(needs.card_bytes)} used",
    ]


# Cluster software must not read the name as an option or a command.
def _one_line(name: str) -> str:
    shown = "".join(character if character.isprintable() else "?" for character in name)
    return shown if len(shown) <= _NAME_WIDTH else f"{shown[: _NAME_WIDTH - 1]}…"


def _about_memory(needs: JobNeeds, memory: int | None) -> list[str]:
    if memory is None or needs.host_bytes is None:
        return ["# host memory: not measured; add a request yourself"]
    share = f"{MARGIN:.0%}" if needs.host_bytes * MARGIN >= LEAST_MARGIN_BYTES else text_of_bytes(LEAST_MARGIN_BYTES)
    return [
        f"# host memory: {text_of_bytes(needs.host_bytes)} measured, margin {share}, rounded up to whole GiB",
        "# (the margin covers the CUDA driver's host memory, which is not measured)",
    ]


def _about_shared(needs: JobNeeds, shared: int) -> list[str]:
    if not shared:
        return []
    return [
        (
            f"# /dev/shm: {text_of_bytes(needs.shared_memory_bytes)} measured, margin {SHM_MARGIN:.0%}, rounded up to "
            "whole GiB"
        ),
    ]


def _about_cpus(needs: JobNeeds) -> str:
    workers = f"{needs.workers} worker{'' if needs.workers == 1 else 's'}"
    return f"# CPU cores: 1 for the script and 1 for each of its {workers}; no margin"


def _slurm(needs: JobNeeds, cpus: int, memory: int | None, shared: int) -> list[str]:
    tasks = ["# (if torchrun starts the ranks: --ntasks-per-node=1 with the cores of all)"]
    return [
        *_about(needs),
        f"#SBATCH --nodes={needs.nodes}",
        f"#SBATCH --ntasks-per-node={needs.ranks}",
        *(tasks if needs.ranks > 1 else []),
        f"#SBATCH --gpus-per-node={needs.gpus}",
        "# or by GPU type, with your site's name for it (see sinfo -o %G):",
        f"##SBATCH --gres=gpu:{_type_of(needs.gpu)}:{needs.gpus}",
        _about_cpus(needs),
        f"#SBATCH --cpus-per-task={cpus}",
        *_about_memory(needs, memory),
        *([] if memory is None else [f"#SBATCH --mem={memory // GIB}G"]),
        *_about_shared(needs, shared),
        *(["# (it counts towards --mem; by default /dev/shm has half of a node's memory)"] if shared else []),
    ]


# Sites often use this name in Slurm's gres.conf: h100 for "NVIDIA H100 80GB HBM3".
def _type_of(gpu: str) -> str:
    words = [word for word in gpu.lower().replace("-", " ").split() if word not in ("nvidia", "geforce", "tesla")]
    kept = [word for word in words if not word.endswith("gb") and word not in ("hbm3", "hbm2e", "pcie", "sxm4", "sxm5")]
    return "_".join(kept[:3]) or "gpu"


def _pod(needs: JobNeeds, cpus: int, memory: int | None, shared: int) -> list[str]:
    sizes = [] if memory is None else [f"memory: {memory // GIB}Gi"]
    sizes.append(f'cpu: "{cpus * needs.ranks}"')
    lines = [
        *_about(needs),
        *([f"# {needs.nodes} pods of this kind, one on each node"] if needs.nodes > 1 else []),
        "# nodes that have this GPU: kubectl get nodes -L nvidia.com/gpu.product",
        *_about_memory(needs, memory),
        _about_cpus(needs),
        "containers:",
        "  - name: train",
        "    resources:",
        "      limits:",
        f"        nvidia.com/gpu: {needs.gpus}",
        *(f"        {size}" for size in sizes),
        "      requests:",
        *(f"        {size}" for size in sizes),
    ]
    if shared:
        lines += [
            "    volumeMounts:",
            "      - name: shm",
            "        mountPath: /dev/shm",
            *_about_shared(needs, shared),
            "# (it counts towards the container's memory; the default size is 64 MiB)",
            "volumes:",
            "  - name: shm",
            "    emptyDir:",
            "      medium: Memory",
            f"      sizeLimit: {shared // GIB}Gi",
        ]
    return lines
