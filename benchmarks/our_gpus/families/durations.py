"""How long training steps and their kernels take: stored for later, and compared with nothing.

The workloads are those of `truth`, on a batch that is made beforehand. After three steps five are timed, and of one
more PyTorch's profiler records the kernels. An emulated GPU computes nothing: there, the seconds of one step are the
host's, the profiler sees no kernel, and no rate is stored.
"""

import gc
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from ..figure import Figure, recorded
from ..question import Answer, GpuUnderTest, Question
from . import pairs
from .truth import NAMES

WARM_UP, TIMED = 3, 5
EMULATED_WARM_UP, EMULATED_TIMED = 1, 1
MOST_KERNELS, LONGEST_NAME = 40, 120
LONG_GAP_MICROSECONDS = 10
COPIED_BYTES, SIDE, REPEATED = 1 << 30, 8192, 20

LANGUAGE = (
    "gpt2s_b4_t1024_bf16", "gpt2s_b4_t1024_fp32", "gpt2m_b8_ckpt_bf16_fused", "gpt2s_b8_ckpt_bf16",
    "gpt2s_b4_fp16_scaler",
)  # fmt: skip
VISION = ("resnet50_b32_sgd", "vit_b16_b32_fp32", "unet_b4_256", "mobilenet_v2_b32")
GROUPS = {
    "language": LANGUAGE,
    "vision": VISION,
    "others": tuple(name for name in NAMES if name not in (*LANGUAGE, *VISION)),
}


def questions() -> list[Question]:
    """Return three groups of workloads, the most valuable first."""
    return [
        Question(
            name=f"durations/{group}",
            about=f"seconds of steps and kernels of {len(names)} workloads",
            seconds=5 + 1.5 * len(names),
            alone=True,
        )
        for group, names in GROUPS.items()
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Measure how fast the GPU copies and multiplies, and each workload of the group."""
    import torch

    torch.manual_seed(0)
    torch.cuda.init()
    rates = _rates()
    found: Answer = {"is_emulated": bool(gpu.emulated), "rates": {} if gpu.emulated else rates, "workloads": {}}
    warm_up, timed = (EMULATED_WARM_UP, EMULATED_TIMED) if gpu.emulated else (WARM_UP, TIMED)
    for name in GROUPS[question.parts[0]]:
        found["workloads"][name] = _workload(name, warm_up, timed)
        gc.collect()
        torch.cuda.empty_cache()
    return found


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Store; nothing is compared."""
    whose = "the host's " if real["is_emulated"] else ""
    figures = [recorded(name, "rate", rate) for name, rate in dict(real["rates"]).items()]
    for name, workload, _ in pairs("workloads", real["workloads"], emulated["workloads"]):
        figures.append(recorded(f"{name}, {whose}seconds of a step", "duration", min(workload["step_seconds"])))
        kernels = workload["kernels"]
        total = kernels["total_seconds"] if kernels["number"] else "the profiler saw none"
        figures.append(recorded(f"{name}, seconds of its kernels", "duration", total))
    return figures


# ---- the GPU itself


def _rates() -> dict[str, float]:
    """Measure what durations on different GPUs can be divided by."""
    import torch

    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * COPIED_BYTES / _seconds_of(partial(target.copy_, source))  # read and written
    del source, target
    factor = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    multiplied = 2 * SIDE**3 / _seconds_of(partial(torch.matmul, factor, factor))
    del factor
    torch.cuda.empty_cache()
    return {"copied bytes per second": copied, "bf16 floating-point operations per second": multiplied}


def _seconds_of(work: Callable[[], Any]) -> float:
    """Return how long some work takes the GPU, on average, after it was done a few times."""
    import torch

    for _ in range(WARM_UP):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(REPEATED):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / REPEATED


# ---- workloads


def _workload(name: str, warm_up: int, timed: int) -> dict[str, Any]:
    import torch

    from tests.truth.workloads import build

    trainer = build(name, "cuda")
    _give_initial_values(trainer.model)
    batch = trainer._make_batch("cuda")
    trainer._make_batch = lambda device: batch  # the host would take longer to make one than the GPU for the step
    for number in range(warm_up):
        trainer.step(number)
    seconds = []
    for number in range(timed):
        torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.step(warm_up + number)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {"step_seconds": seconds, "kernels": _kernels(lambda: trainer.step(warm_up + timed))}


def _give_initial_values(model: Any) -> None:
    """Fill the parameters, which `build` leaves as they were in memory: a GPU computes faster with zeros."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)


def _kernels(step: Callable[[], Any]) -> dict[str, Any]:
    """Run a step under PyTorch's profiler, and return what the GPU did meanwhile: kernels, copies, fills."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    spans: list[tuple[float, float]] = []
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            spans.append((event.time_range.start, event.time_range.end))
            by_name[event.name].append(event.time_range.elapsed_us())
    longest = sorted(by_name.items(), key=lambda each: -sum(each[1]))[:MOST_KERNELS]
    return {
        "number": len(spans),
        "names": len(by_name),
        "total_seconds": sum(map(sum, by_name.values())) / 1e6,
        **_gaps(spans),
        "longest": [
            {"name": name[:LONGEST_NAME], "count": len(each), "total_microseconds": round(sum(each), 3)}
            for name, each in longest
        ],
    }


def _gaps(spans: list[tuple[float, float]]) -> dict[str, Any]:
    """Return from the first start to the last end how long the GPU did something, and how long it did nothing."""
    gaps, end = [], None
    for begin, stop in sorted(spans):
        if end is not None and begin > end:
            gaps.append(begin - end)
        end = stop if end is None else max(end, stop)
    whole = end - min(begin for begin, _ in spans) if end is not None else 0.0
    return {
        "span_seconds": whole / 1e6,
        "gap_seconds": sum(gaps) / 1e6,
        "largest_gap_seconds": max(gaps, default=0.0) / 1e6,
        "long_gaps": sum(gap >= LONG_GAP_MICROSECONDS for gap in gaps),
    }
