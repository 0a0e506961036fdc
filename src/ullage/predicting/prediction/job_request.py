"""Lines that ask a cluster for what a prediction found: an sbatch header, or a pod's resources.

Every line that is more than what was found says so: what was measured, the margin, and the rounding.
"""

import math
from dataclasses import dataclass
from typing import Final

from ullage.base.units import GIB, text_of_bytes

MARGIN: Final = 0.25
"""The share that is asked for beyond what was found: for the driver's own part, and for what an epoch adds."""
LEAST_MARGIN_BYTES: Final = 2 * GIB
SHM_MARGIN: Final = 1.0
"""The same for /dev/shm: what lies there is seen a few times a second."""
_NAME_WIDTH: Final = 40  # characters
NAMES: Final = {"slurm": "Slurm", "k8s": "Kubernetes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    """What a prediction found that a node has to have; sizes in bytes."""

    script: str
    gpu: str
    card_bytes: int
    """The memory of the card for which was predicted."""
    used_bytes: int
    """The most that the driver would say is used of it."""
    fits: bool
    nodes: int
    gpus: int
    """The cards of one node."""
    ranks: int
    """The processes of one node that train."""
    workers: int
    """The processes that each of them starts."""
    host_bytes: int | None
    """The host's memory of one node; None: not known."""
    shared_memory_bytes: int
    """The part of it that lies in /dev/shm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """The lines that ask for what was found, and their figures."""

    kind: str
    """"slurm" or "k8s"."""
    text: str
    gpus: int
    cpus: int
    """The processor cores of one task (Slurm) or one pod (Kubernetes)."""
    memory_bytes: int | None
    """The host's memory that is asked for, with the margin."""
    shared_memory_bytes: int
    """The size of /dev/shm that is asked for, with the margin."""

    @property
    def whose(self) -> str:
        """The name of what the lines are for."""
        return NAMES[self.kind]


def job_request_of(kind: str, needs: JobNeeds) -> JobRequest:
    """Write the lines."""
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


# ---- the text: comments of up to 80 columns, with the same facts for both


def _about(needs: JobNeeds) -> list[str]:
    verdict = "" if needs.fits else " (NOT known to fit)"
    return [
        f"# ullage predict {_one_line(needs.script)}{verdict}",
        f"# for {_one_line(needs.gpu)}",
        f"# each card: at most {text_of_bytes(needs.used_bytes)} of {text_of_bytes(needs.card_bytes)} used",
    ]


def _one_line(name: str) -> str:
    """Return a name that cannot end a comment: what follows it would be an option, or a command."""
    shown = "".join(character if character.isprintable() else "?" for character in name)
    return shown if len(shown) <= _NAME_WIDTH else f"{shown[: _NAME_WIDTH - 1]}…"


def _about_memory(needs: JobNeeds, memory: int | None) -> list[str]:
    if memory is None or needs.host_bytes is None:
        return ["# host memory: not measured; ask for it yourself"]
    share = f"{MARGIN:.0%}" if needs.host_bytes * MARGIN >= LEAST_MARGIN_BYTES else text_of_bytes(LEAST_MARGIN_BYTES)
    return [
        f"# host memory: {text_of_bytes(needs.host_bytes)} measured, margin {share}, up to whole GiB",
        "# (the CUDA driver's own part is not measured, and lies in the margin)",
    ]


def _about_shared(needs: JobNeeds, shared: int) -> list[str]:
    if not shared:
        return []
    return [
        f"# /dev/shm: {text_of_bytes(needs.shared_memory_bytes)} measured, margin {SHM_MARGIN:.0%}, up to whole GiB",
    ]


def _about_cpus(needs: JobNeeds) -> str:
    workers = f"{needs.workers} worker{'' if needs.workers == 1 else 's'}"
    return f"# cores: 1 for the script and 1 for each of its {workers}; no margin"


def _slurm(needs: JobNeeds, cpus: int, memory: int | None, shared: int) -> list[str]:
    tasks = ["# (torchrun starts the ranks: --ntasks-per-node=1 then, with all their cores)"]
    return [
        *_about(needs),
        f"#SBATCH --nodes={needs.nodes}",
        f"#SBATCH --ntasks-per-node={needs.ranks}",
        *(tasks if needs.ranks > 1 else []),
        f"#SBATCH --gpus-per-node={needs.gpus}",
        "# or by type, as your site names it (sinfo -o %G):",
        f"##SBATCH --gres=gpu:{_type_of(needs.gpu)}:{needs.gpus}",
        _about_cpus(needs),
        f"#SBATCH --cpus-per-task={cpus}",
        *_about_memory(needs, memory),
        *([] if memory is None else [f"#SBATCH --mem={memory // GIB}G"]),
        *_about_shared(needs, shared),
        *(["# (a part of --mem; a node has half of its memory as /dev/shm by default)"] if shared else []),
    ]


def _type_of(gpu: str) -> str:
    """Return a card's name as sites often write it in gres.conf: "NVIDIA H100 80GB HBM3" is h100."""
    words = [word for word in gpu.lower().replace("-", " ").split() if word not in ("nvidia", "geforce", "tesla")]
    kept = [word for word in words if not word.endswith("gb") and word not in ("hbm3", "hbm2e", "pcie", "sxm4", "sxm5")]
    return "_".join(kept[:3]) or "gpu"


def _pod(needs: JobNeeds, cpus: int, memory: int | None, shared: int) -> list[str]:
    sizes = [] if memory is None else [f"memory: {memory // GIB}Gi"]
    sizes.append(f'cpu: "{cpus * needs.ranks}"')
    lines = [
        *_about(needs),
        *([f"# {needs.nodes} pods of this kind, one on each node"] if needs.nodes > 1 else []),
        "# which nodes have that card: kubectl get nodes -L nvidia.com/gpu.product",
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
            "# (it counts towards the container's memory; a pod without it has 64 MiB)",
            "volumes:",
            "  - name: shm",
            "    emptyDir:",
            "      medium: Memory",
            f"      sizeLimit: {shared // GIB}Gi",
        ]
    return lines
