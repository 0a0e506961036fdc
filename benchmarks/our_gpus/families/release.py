"""`ullage.owners`, `ullage.release` and `ullage.isolated`: who holds the memory, and whether all of it comes back.

`release/context` trains and releases twice in one process. What the driver counts more after the first time than with
the bare context belongs to the libraries that were loaded; the second time has to add nothing.
"""

import importlib
from collections import Counter
from typing import Any

from ..figure import Figure, recorded
from ..instruments import nvml_used_bytes, settled_used_bytes
from ..question import Answer, GpuUnderTest, Question
from . import pairs

STEPS = 3
TIMES = 2
LIMIT_SECONDS = 60
ABOUT = {
    "context": "train and release: what PyTorch and the driver still count, and who held the memory before",
    "isolated": "train in a process of its own: what the driver counts before and after",
}


def questions() -> list[Question]:
    """Release down to the context, and a process that takes its context with it."""
    return [
        Question(name=f"release/{what}", about=about, seconds=7, alone=True, needs=("ullage",))
        for what, about in ABOUT.items()
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Train, and give the memory back."""
    importlib.import_module("torch")  # meanwhile, the driver takes back the memory of processes that have ended
    if question.parts == ["isolated"]:
        return _isolated()
    # The driver counts other processes of a real GPU, too; an emulated one has none.
    before = 0 if gpu.emulated else settled_used_bytes()
    import torch

    torch.ones(1024, 1024, device="cuda").add_(1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    context = nvml_used_bytes() - before
    return {"context_bytes": context, "times": [_release(before) for _ in range(TIMES)]}


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare what is left with nothing, and who held the memory with the emulated GPU's answer."""
    if ("check" in real) != ("check" in emulated):
        raise ValueError("the two answers are to different questions")
    if "check" in real:
        return _figures_of_isolated(real)
    figures = []
    for number, (there, here) in enumerate(zip(real["times"], emulated["times"], strict=True), 1):
        figures += _figures_of_release(f"release {number}", there, here)
    first, second = (each["nvml_used_bytes"] for each in real["times"])
    return [
        *figures,
        recorded("more than the bare context after the first release, bytes", "context", first - real["context_bytes"]),
        Figure(name="more after the second release, bytes", kind="released", real=second - first, emulated=0),
    ]


def _figures_of_release(name: str, real: dict[str, Any], emulated: dict[str, Any]) -> list[Figure]:
    holders = Figure(
        name=f"{name}, sum of all holders, bytes",
        kind="owners",
        real=real["owners_bytes"],
        emulated=real["allocated_before_bytes"],
    )
    kinds = [
        Figure(
            name=f"{name}, held as {kind}, bytes",
            kind="owners",
            real=real["by_kind"].get(kind, 0),
            emulated=emulated["by_kind"].get(kind, 0),
        )
        for kind in sorted({*real["by_kind"], *emulated["by_kind"]})
    ]
    left = [
        Figure(name=f"{name}, {counter} afterwards", kind="released", real=size, emulated=0)
        for counter, size, _ in pairs("counters", real["left"], emulated["left"])
    ]
    return [holders, *kinds, *left]


def _figures_of_isolated(real: Answer) -> list[Figure]:
    check, taken = real["check"], real["within_bytes"] - real["before_bytes"]
    return [
        Figure(name="used afterwards, bytes", kind="released", real=real["after_bytes"], emulated=real["before_bytes"]),
        Figure(name="ullage says that all came back", kind="released", real=check["came_back"], emulated=True),
        Figure(
            name="used by the process at its end, bytes",
            kind="released",
            real=taken,
            interval=(real["reserved_bytes"], real["total_bytes"]),
        ),
        recorded("what ullage reports", "released", check["text"]),
    ]


# ---- measuring


def train() -> tuple[Any, ...]:
    """Train a small net with convolutions, BatchNorm and products, and return all that holds its memory."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 32 * 32, 1024),
        nn.GELU(),
        nn.Linear(1024, 1000),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(torch.randn(64, 3, 32, 32, device="cuda"))
        loss = output.float().logsumexp(1).mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        scheduler.step()
        losses.append(loss)
    torch.cuda.synchronize()
    return model, optimizer, scheduler, losses


def train_and_count() -> dict[str, int]:
    """Train, and return what PyTorch and the driver count at the end: the work of a process of its own."""
    import torch

    kept = train()
    counted = {
        "reserved_bytes": torch.cuda.memory_reserved(),
        "total_bytes": torch.cuda.mem_get_info()[1],
        "within_bytes": nvml_used_bytes(),
    }
    del kept
    return counted


def _release(before: int) -> dict[str, Any]:
    import torch

    import ullage

    kept = train()
    allocated = torch.cuda.memory_allocated()
    holdings = ullage.owners(min_bytes=0)
    by_kind: Counter[str] = Counter()
    for row in holdings:
        by_kind[str(row.kind)] += row.bytes
    certificate = ullage.release(*kept)
    torch.cuda.synchronize()
    return {
        "allocated_before_bytes": allocated,
        "owners_bytes": holdings.total_bytes,
        "by_kind": dict(by_kind),
        "left": {
            "allocated_bytes": torch.cuda.memory_allocated(),
            "reserved_bytes": torch.cuda.memory_reserved(),
            "allocated by the certificate_bytes": certificate.after_bytes,
            "reserved by the certificate_bytes": certificate.reserved_bytes,
        },
        "outside_bytes": certificate.outside_bytes,
        "nvml_used_bytes": nvml_used_bytes() - before,
    }


def _isolated() -> Answer:
    import ullage

    checks: list[Any] = []
    before = settled_used_bytes()
    counted = ullage.isolated(train_and_count, timeout_seconds=LIMIT_SECONDS, report=checks.append)
    after = settled_used_bytes()
    (check,) = checks
    if check.why_not:
        raise RuntimeError(f"ullage.isolated could not count: {check.why_not}")
    return {
        **counted,
        "before_bytes": before,
        "after_bytes": after,
        "check": {"came_back": check.came_back, "text": str(check)},
    }
