"""Ways to run out of memory on a GPU whose cause is known by construction: each function ends with PyTorch's error."""

from collections.abc import Callable
from typing import Any

MIB = 1 << 20
WORKLOAD = "gpt2s_b4_t1024_bf16"


def warm_up() -> None:
    """Run what the situations run, so that the driver has loaded its kernels before memory is counted."""
    import torch

    model, batch = _layers(), torch.zeros(8192, 1024, device="cuda")
    model(batch).sum().backward()
    weight = torch.zeros(1 << 20, device="cuda", requires_grad=True)
    weight.sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    torch.cuda.synchronize()


def _layers() -> Any:
    import torch

    return torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()


def ways() -> dict[str, Callable[[], Any]]:
    """Return the functions by the name of the situation."""
    import torch

    def block(mib: float) -> Any:
        return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")

    def full() -> Any:
        return [block(100) for _ in range(60)]

    def training() -> None:
        from tests.truth.workloads import build

        trainer = build(WORKLOAD, "cuda")
        for number in range(3):
            trainer.step(number)

    def fragmented() -> Any:
        kept, passing = [], []
        for _ in range(30):
            whole = block(120)
            del whole  # the next two share its segment
            kept.append(block(12))
            passing.append(block(108))
        passing.clear()
        return kept, block(1500)

    def leak() -> None:
        weight = torch.zeros(1 << 20, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        kept = []
        while True:
            kept.append(block(150))
            temporary = block(300)
            del temporary
            weight.sum().backward()
            optimizer.step()

    def accumulation() -> None:
        model, outputs, batch = _layers(), [], torch.zeros(8192, 1024, device="cuda")
        while True:
            outputs.append(model(batch))

    return {
        "limit": full, "full": full, "training": training, "fragmented": fragmented, "leak": leak,
        "accumulation": accumulation,
    }  # fmt: skip
