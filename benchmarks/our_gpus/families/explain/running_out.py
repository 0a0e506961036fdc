"""Ways to run out of memory on a GPU whose cause is known by construction: each function ends with PyTorch's error."""

from collections.abc import Callable
from typing import Any, Final

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


def _block(mib: float) -> Any:
    import torch

    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def _full() -> Any:
    return [_block(100) for _ in range(60)]


def _training() -> None:
    from tests.truth.workloads import build

    trainer = build(WORKLOAD, "cuda")
    for number in range(3):
        trainer.step(number)


def _fragmented() -> Any:
    kept, passing = [], []
    for _ in range(30):
        whole = _block(120)
        del whole  # the next two share its segment
        kept.append(_block(12))
        passing.append(_block(108))
    passing.clear()
    return kept, _block(1500)


def _leak() -> None:
    import torch

    weight = torch.zeros(1 << 20, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    kept = []
    while True:
        kept.append(_block(150))
        temporary = _block(300)
        del temporary
        weight.sum().backward()
        optimizer.step()


def _accumulation() -> None:
    import torch

    model, outputs, batch = _layers(), [], torch.zeros(8192, 1024, device="cuda")
    while True:
        outputs.append(model(batch))


WAYS: Final[dict[str, Callable[[], Any]]] = {
    "limit": _full, "full": _full, "training": _training, "fragmented": _fragmented, "leak": _leak,
    "accumulation": _accumulation,
}  # fmt: skip
"""The functions by the name of the situation."""
