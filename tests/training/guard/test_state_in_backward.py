"""What a custom Function's backward changes, and what changes in a large container, is restored or refused."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, inside

if INSIDE:
    import torch
    from torch import nn
    from torch.nn import functional as F

    import ullage
    from tests.training.guard.faults import Faults

    class Normalized(torch.autograd.Function):
        """Divides the gradient by a running norm, which is an attribute of the class."""

        scale = torch.ones(())

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            Normalized.scale = 0.5 * Normalized.scale + gradient.norm()
            return gradient / Normalized.scale

    class Counted(torch.autograd.Function):
        """Multiplies the gradient by the number of calls, which is in a global dict."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            CALLS["number"] += 1
            return gradient * CALLS["number"]


CALLS = {"number": 0}
REFUSED = "refused"


def _trained(kind: str, at: int | None) -> tuple[Any, int]:
    """Train for three steps with an error at an operation of the second; return the parameters, and the operations."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    CALLS["number"] = 0
    Normalized.scale = torch.ones(())
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    memory = [torch.zeros(4) for _ in range(6000)]
    model.memory = memory if kind == "list" else dict(enumerate(memory))

    def loss_of(batch: Any) -> Any:
        hidden = model[:2](batch["x"])
        if kind in ("class", "global"):
            hidden = (Normalized if kind == "class" else Counted).apply(hidden)
            return F.cross_entropy(model[2](hidden), batch["y"])
        out = model[2](hidden)
        old = torch.stack([model.memory[int(i)].clone() for i in batch["i"]])
        for k, i in enumerate(batch["i"].tolist()):
            if kind == "list":
                model.memory[i].mul_(0.6).add_(out[k].detach() + 1, alpha=0.4)
            else:
                model.memory[i] = 0.6 * model.memory[i] + 0.4 * out[k].detach() + 1
        return (out - old).pow(2).mean()

    guard = ullage.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), log=lambda line: None)
    chance, operations = torch.Generator().manual_seed(2), 0
    for step in range(3):
        batch = {
            "x": torch.randn(8, 6, generator=chance),
            "y": torch.randint(0, 4, (8,), generator=chance),
            "i": torch.arange(8) + 2000 + step,
        }
        faults = Faults({at} if step == 1 and at is not None else ())
        try:
            with faults:
                guard.step(batch, loss_of)
        except RuntimeError as error:
            if "changed state that the guard cannot restore" not in str(error):
                raise
            return REFUSED, 0
        operations = faults.count if step == 1 else operations
    return torch.cat([one.detach().flatten() for one in model.parameters()]), operations


@pytest.mark.parametrize("kind", ["class", "global", "dict", "list"])
@inside
def test_one_error_at_each_operation_changes_nothing(kind: str) -> str:
    """The parameters after three steps are those of a run without an error, or the retry is refused."""
    expected, operations = _trained(kind, None)
    refused = 0
    for at in range(operations):
        found, _ = _trained(kind, at)
        if isinstance(found, str):
            refused += 1
        else:
            assert torch.equal(found, expected), at
    assert (refused > 0) == (kind in ("dict", "list"))
    return f"{operations} operations, {refused} refused"
