"""The CUDA context: what the driver counts besides PyTorch's allocator as one library after another is loaded.

`context/stages` loads them one after the other in one process; the others load one library after the first kernel.
NVML and cudaMemGetInfo are read at the same moments. Other processes must not use the GPU meanwhile.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

from ..figure import Figure, recorded
from ..instruments import nvml_used_bytes, settled_used_bytes
from ..question import Answer, GpuUnderTest, Question
from . import pairs

SEQUENCE = ("init", "first kernel", "cublas", "cublaslt", "cudnn", "attention", "triton", "graph")
ALONE = ("training", "cublas", "cudnn", "attention", "triton", "nccl", "graph")
TRAINED = "training"
"""The stage whose context a profile's interval is about: the kernels and libraries of training steps are loaded."""
WORKLOAD = "gpt2s_b4_t1024_bf16"
SECONDS = {"stages": 25, "triton": 15, "eager": 20}
OTHER_SECONDS = 7
IN_ONE_PROCESS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""torch.compile would start processes that compile in parallel."""
ENVIRONMENTS = {
    "stages": IN_ONE_PROCESS,
    "triton": IN_ONE_PROCESS,
    "nccl": {"NCCL_SOCKET_IFNAME": "lo"},  # the machine may have no network
    "eager": {"CUDA_MODULE_LOADING": "EAGER"},
}


def questions() -> list[Question]:
    """All stages in one process, then single libraries, then all modules loaded at once."""
    about = {
        "stages": "the CUDA context, library after library",
        **{name: f"the CUDA context with {name} alone" for name in ALONE},
        "eager": "the CUDA context with CUDA_MODULE_LOADING=EAGER",
    }
    return [
        Question(
            name=f"context/{name}",
            about=text,
            seconds=SECONDS.get(name, OTHER_SECONDS),
            alone=True,
            environment=ENVIRONMENTS.get(name, {}),
        )
        for name, text in about.items()
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Load libraries, and read the driver after each."""
    (what,) = question.parts
    if what == "stages":
        names = SEQUENCE
    else:
        names = ("init", "first kernel") if what == "eager" else ("init", "first kernel", what)
    importlib.import_module("torch")  # meanwhile, the driver takes back the memory of processes that have ended
    # An emulated GPU counts the context from the start, and has no other processes.
    return _read(names, before=0 if gpu.emulated else settled_used_bytes())


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """The context after training has to lie in the profile's interval; the other stages are recorded."""
    figures = []
    for name, there, _ in pairs("stages", real["stages"], emulated["stages"]):
        make = _inside if name == TRAINED else _recorded
        figures.append(make(name, there["context_bytes"], emulated))
    return figures


def _inside(name: str, real: int, emulated: Answer) -> Figure:
    low, high = emulated["interval_bytes"]
    return Figure(name=f"after {name}, context_bytes", kind="context", real=real, interval=(low, high))


def _recorded(name: str, real: int, emulated: Answer) -> Figure:
    return recorded(f"after {name}, context_bytes", "context", real)


def _read(names: tuple[str, ...], before: int) -> Answer:
    import torch

    found: dict[str, dict[str, int]] = {}
    for name in names:
        STAGES[name]()
        torch.cuda.synchronize()
        reserved = torch.cuda.memory_reserved()
        used = nvml_used_bytes()
        free, total = torch.cuda.mem_get_info()
        found[name] = {
            "context_bytes": used - before - reserved,
            "nvml_used_bytes": used,
            "cuda_free_bytes": free,
            "cuda_total_bytes": total,
            "reserved_bytes": reserved,
        }
    result: Answer = {
        "stages": found,
        "nvml_used_before_bytes": before,
        "module_loading": os.environ.get("CUDA_MODULE_LOADING", "default"),
    }
    return result | _interval()


def _interval() -> dict[str, Any]:
    """On an emulated GPU, add the interval that ullage states for the context."""
    import sys

    if "ullage" not in sys.modules:
        return {}
    import torch

    from ullage.gpu.emulator.profile import profile_of
    from ullage.gpu.gpus import find_gpu

    profile = profile_of(find_gpu(torch.cuda.get_device_name()))
    return {"interval_bytes": [profile.context_low_bytes, profile.context_high_bytes], "source": profile.source}


def _init() -> None:
    import torch

    torch.cuda.init()
    torch.cuda.synchronize()


def _first_kernel() -> None:
    import torch

    torch.ones(1024, 1024, device="cuda").add_(1)


def _cublas() -> None:
    import torch

    x = torch.ones(1024, 1024, device="cuda")
    x @ x
    x.bfloat16() @ x.bfloat16()


def _cublaslt() -> None:
    import torch
    import torch.nn.functional as F

    x = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
    F.linear(x, x, torch.ones(1024, device="cuda", dtype=torch.bfloat16))  # a bias goes into cuBLASLt's epilogue


def _cudnn() -> None:
    import torch
    import torch.nn.functional as F

    F.conv2d(torch.ones(8, 16, 64, 64, device="cuda"), torch.ones(32, 16, 3, 3, device="cuda"))


def _attention() -> None:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.ones(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, q, q)


def _triton() -> None:
    import torch

    compiled = torch.compile(lambda x: (x * 2 + 1).relu().sum(-1))
    compiled(torch.ones(512, 512, device="cuda"))


def _training() -> None:
    from tests.truth.workloads import build

    trainer = build(WORKLOAD, "cuda")
    for number in range(2):
        trainer.step(number)


def _nccl() -> None:
    import tempfile

    import torch
    import torch.distributed as dist

    with tempfile.NamedTemporaryFile(prefix="ullage-store-") as store:
        dist.init_process_group("nccl", init_method=f"file://{store.name}", rank=0, world_size=1)
        dist.all_reduce(torch.ones(1024, 1024, device="cuda"))
        torch.cuda.synchronize()


def _graph() -> None:
    import torch

    x = torch.ones(1024, 1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    _first_kernel()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x + 1
        y.mul_(2)
    graph.replay()
    _KEPT.append((graph, x, y))


_KEPT: list[Any] = []
STAGES: dict[str, Callable[[], None]] = {
    "init": _init,
    "first kernel": _first_kernel,
    "cublas": _cublas,
    "cublaslt": _cublaslt,
    "cudnn": _cudnn,
    "attention": _attention,
    "triton": _triton,
    "training": _training,
    "nccl": _nccl,
    "graph": _graph,
}
