"""What counts as the backward pass of a training loop."""

from pathlib import Path

import pytest

from tests.predicting.changes.runs import line_of, peaks
from ullage.predicting.prediction.data.avoidable_memory import AvoidableKind

SCRIPT = """
import torch
from torch import nn

net = nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def loss(weights, batch):
    return torch.func.functional_call(net, weights, (batch,)).pow(2).mean()


for _ in range(3):
    weights, batch = dict(net.named_parameters()), torch.randn(8, 256, device="cuda")
    {derive}
    for name, weight in net.named_parameters():
        weight.grad = gradients[name].sum(0) if gradients[name].ndim > weight.ndim else gradients[name]
    optimizer.step()
    optimizer.zero_grad()
"""
DERIVE = {
    "grad": "gradients = torch.func.grad(loss)(weights, batch)",
    "vjp": "value, pull = torch.func.vjp(loss, weights, batch); gradients = pull(torch.ones_like(value))[0]",
    "grad of each item": "gradients = torch.vmap(torch.func.grad(loss), (None, 0))(weights, batch[:, None])",
    "grad of a gradient penalty": (
        "gradients = torch.func.grad(lambda w, b: torch.func.grad(loss, argnums=1)(w, b).pow(2).sum())(weights, batch)"
    ),
}


@pytest.mark.parametrize("how", DERIVE)
def test_the_outermost_transform_of_torch_func_is_the_backward_pass(tmp_path: Path, how: str) -> None:
    script = tmp_path / "derives.py"
    script.write_text(SCRIPT.format(derive=DERIVE[how]))
    found = peaks(script, diagnose=True)
    assert found.ended == "steps", found.reason
    assert found.training is not None
    loop = found.training.loop
    assert loop.backward is not None
    assert loop.backward.line == line_of(script, "gradients = ")
    assert loop.passes_per_step == 1
    assert AvoidableKind.SECOND_COPY_OF_WEIGHTS not in [row.kind for row in found.avoidable]


def test_the_sizes_of_a_batch_end_at_the_first_ragged_one(tmp_path: Path) -> None:
    script = tmp_path / "ragged.py"
    script.write_text("""
import torch
from torch import nn

net = nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    rows = [torch.randn(length, 64, device="cuda") for length in (3, 5)]
    batch = torch.nested.nested_tensor(rows, layout=torch.jagged)
    strided = torch.nested.nested_tensor(rows)
    net(batch).values().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
    found = peaks(script, diagnose=True)
    assert found.training is not None
    shapes = {each.name: each.shape for each in found.training.batch}
    assert shapes["batch"] == [2]
    assert found.training.items == 2
