"""Train a small model in the way that the argument names. Each layer has 1 MiB of weights.

Usage: python owners.py CASE
"""

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

LAYERS, WIDTH = 4, 512
MIB = 1 << 20


class Holder:
    """An object with attributes, as optimizers and quantized weights have them."""


class SlotHolder:
    """An object with a slot in place of a dictionary."""

    __slots__ = ("pair",)


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype) for _ in range(LAYERS)]).cuda()


def loss_of(net: nn.Module, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return net(torch.randn(4, WIDTH, device="cuda", dtype=dtype)).sum()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        loss_of(net).backward()
        optimizer.step()
        optimizer.zero_grad()


class OptimizerOfCase(torch.optim.Optimizer):
    """SGD that keeps a matrix of 1 MiB for each parameter, where `keep` puts it."""

    def __init__(self, parameters: Iterable[nn.Parameter], keep: "Callable[[OptimizerOfCase, Any, Any], None]") -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.kept: dict[str, Any] = {"matrices": []}
        self.gradients: list[Any] = []
        self.flat: list[Any] = []
        self.keep = keep

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    self.keep(self, parameter, torch.empty_like(parameter))
                self.state[parameter]["step"] = 1
                parameter.add_(parameter.grad, alpha=-group["lr"])


def state_object() -> None:
    def keep(optimizer: Any, parameter: Any, matrix: Any) -> None:
        optimizer.state[parameter]["projector"] = holder = Holder()
        holder.ortho = matrix[:16]  # a view: the whole matrix stays allocated

    net = model()
    train(net, OptimizerOfCase(net.parameters(), keep))


def state_nested() -> None:
    def keep(optimizer: Any, parameter: Any, matrix: Any) -> None:
        holder, inner = Holder(), SlotHolder()
        inner.pair = (matrix, None)
        holder.parts = [inner]
        optimizer.state[parameter]["blocks"] = {"block_0": {"shampoo": holder}}

    net = model()
    train(net, OptimizerOfCase(net.parameters(), keep))


def state_attribute() -> None:
    def keep(optimizer: Any, parameter: Any, matrix: Any) -> None:
        optimizer.kept["matrices"].append(matrix)
        optimizer.gradients.append(parameter.grad)
        optimizer.flat.append(parameter.detach().view(-1))

    net = model()
    train(net, OptimizerOfCase(net.parameters(), keep))


def assigned() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, optimizer, 1)
    for _ in range(2):
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()


def copied() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(3):
        gradients = torch.autograd.grad(loss_of(net), list(net.parameters()))
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            parameter.grad.copy_(gradient)
        del gradients, gradient
        optimizer.step()


def accumulated() -> None:
    """Gradients of two passes are added up in lists, which become the gradients."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        sums = [torch.zeros_like(parameter) for parameter in net.parameters()]
        for _ in range(2):
            loss_of(net).backward()
            torch._foreach_add_(sums, [parameter.grad for parameter in net.parameters()])
            net.zero_grad()
        for parameter, total in zip(net.parameters(), sums, strict=True):
            parameter.grad = total
        del sums, total
        optimizer.step()
        optimizer.zero_grad()


def main_gradients() -> None:
    net = model(torch.bfloat16)
    for parameter in net.parameters():
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)

        def add(parameter: Any) -> None:
            parameter.main_grad.add_(parameter.grad)
            parameter.grad = None

        parameter.register_post_accumulate_grad_hook(add)
    for _ in range(3):
        loss_of(net, torch.bfloat16).backward()


def in_backward() -> None:
    net = model()
    for parameter in net.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def step(_: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        loss_of(net).backward()


def by_hand() -> None:
    net = model()
    for _ in range(3):
        gradients = torch.autograd.grad(loss_of(net), list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(gradient)
        del gradients, gradient


def penalty() -> None:
    """The derivative by the input is a part of the loss, so it is not a gradient."""
    net = nn.Sequential(*[layer for linear in model() for layer in (linear, nn.Tanh())])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        batch = torch.randn(512, WIDTH, device="cuda", requires_grad=True)
        (slope,) = torch.autograd.grad(net(batch).sum(), batch, create_graph=True)
        slope.pow(2).sum().backward()
        batch.grad = None
        del slope
        optimizer.step()
        optimizer.zero_grad()


def functional(how: str) -> None:
    net = model()
    weights = {name: weight.detach() for name, weight in net.named_parameters()}

    def loss(weights: Any, batch: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, weights, (batch,)).pow(2).mean()

    for _ in range(3):
        batch = torch.randn(4, WIDTH, device="cuda")
        if how == "grad":
            gradients = torch.func.grad(loss)(weights, batch)
        else:
            value, pull = torch.func.vjp(loss, weights, batch)
            gradients = pull(torch.ones_like(value))[0]
            del pull
        for name, weight in weights.items():
            weight.sub_(gradients[name])
        del gradients


def second_model() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    train(net, optimizer, 1)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    del net, optimizer
    buffer.seek(0)
    net = model()
    net.load_state_dict(torch.load(buffer))
    train(net, torch.optim.AdamW(net.parameters()))


def created_state() -> None:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    saved = get_optimizer_state_dict(net, optimizer)
    del optimizer
    optimizer = torch.optim.AdamW(net.parameters())
    set_optimizer_state_dict(net, optimizer, saved)
    del saved
    train(net, optimizer)


class QuantizedLinear(nn.Module):
    """A linear layer whose weight has 8 bits, with scales and zero points of 1 MiB."""

    def __init__(self, where: str) -> None:
        super().__init__()
        kind = torch.uint8 if where != "state" else torch.float16
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=kind, device="cuda"), requires_grad=False)
        scales = torch.zeros(MIB // 4, device="cuda")
        if where == "dictionary":
            self.meta = {"group": 64, "scales": [scales]}
        elif where == "state":
            self.weight.quant_state = holder = Holder()
            holder.nested = {"scales": scales}
        else:
            self.weight.scales = scales

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch @ self.weight.float()


def quantized(where: str) -> None:
    net = nn.Sequential(QuantizedLinear(where), nn.Linear(WIDTH, WIDTH, bias=False, device="cuda"))
    train(net, torch.optim.SGD([net[1].weight], lr=0.1))


class Caching(nn.Linear):
    """A layer with ordinary weights that keeps a table of 1 MiB in a dictionary."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, bias=False, device="cuda")
        self.tables = {"positions": torch.zeros(MIB // 4, device="cuda")}


def ordinary() -> None:
    net = nn.Sequential(Caching())
    train(net, torch.optim.SGD(net.parameters(), lr=0.1))


class Batch:
    """The class of a batch, as DETR has one: 512 KiB of pictures and a mask."""

    def __init__(self) -> None:
        self.pictures = torch.randn(256, WIDTH, device="cuda")
        self.mask = torch.zeros(256, dtype=torch.bool, device="cuda")


class TakesBatches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = model()

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.layers(batch.pictures)


def batch_of_a_class() -> None:
    net = TakesBatches()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(Batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


CASES: dict[str, Callable[[], None]] = {
    "an object in the state": state_object,
    "nested objects in the state": state_nested,
    "an attribute of the optimizer": state_attribute,
    "assigned gradients": assigned,
    "copied gradients": copied,
    "sums that become gradients": accumulated,
    "main_grad": main_gradients,
    "steps in the backward pass": in_backward,
    "autograd.grad": by_hand,
    "a gradient penalty": penalty,
    "func.grad": lambda: functional("grad"),
    "func.vjp": lambda: functional("vjp"),
    "a second model": second_model,
    "a created state": created_state,
    "scales in a dictionary": lambda: quantized("dictionary"),
    "scales in a quantization state": lambda: quantized("state"),
    "scales as an attribute of the weight": lambda: quantized("attribute"),
    "a table of an ordinary layer": ordinary,
    "a batch of a class": batch_of_a_class,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
