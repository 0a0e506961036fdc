"""What autograd holds."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tests.training.ownership.scenarios.made import inputs, loss_of, net, tensor
from tests.training.ownership.scenarios.scenario import End, scenario


@scenario("a loss on which backward was never called", holder="loss", kind="graph", mib=4)
def loss(end: End) -> None:
    model = net()
    loss = loss_of(model)
    end(model, named=(loss,))


@scenario("a graph that retain_graph keeps", holder="loss", kind="graph", mib=4)
def retain_graph(end: End) -> None:
    model = net()
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    end(model, named=(loss,))


@scenario("a node of the graph, without a tensor", holder="node", kind="graph", mib=4)
def node(end: End) -> None:
    model = net()
    node = loss_of(model).grad_fn
    end(model, named=(node,))


@scenario("checkpointed blocks, which keep their inputs", holder="output", kind="graph", mib=2)
def checkpointed(end: End) -> None:
    model = net()
    x = inputs().requires_grad_()
    output = checkpoint(model, x * 2, use_reentrant=False)
    end(model, x, named=(output,))


@scenario("gradients that have their own graphs", holder="penalty", kind="graph", mib=2)
def double_backward(end: End) -> None:
    model = net()
    x = inputs().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    penalty = gradient.norm()
    del gradient
    end(model, x, named=(penalty,))


@scenario("backward with create_graph: a cycle of gradients and parameters", holder="grad", kind="gradient", mib=8)
def create_graph(end: End) -> None:
    model = net()
    with warnings.catch_warnings(action="ignore"):  # torch itself says that this leaks
        loss_of(model).backward(create_graph=True)
    end(model)


class Twice(torch.autograd.Function):
    """An operation that saves a tensor as it should, and another as an attribute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x * 2)
        ctx.kept = x * 3
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


@scenario("a Function's ctx: saved tensors", holder="output", kind="graph", mib=2)
def function_saved(end: End) -> None:
    x = inputs().requires_grad_()
    output = Twice.apply(x)
    end(x, named=(output,))


@scenario("a Function's ctx: attributes", holder="kept", mib=2)
def function_attribute(end: End) -> None:
    x = inputs().requires_grad_()
    output = Twice.apply(x)
    end(x, named=(output,))


@scenario("memory that a saved-tensors hook packs on the GPU", holder="output", mib=2)
def saved_hook(end: End) -> None:
    x = inputs().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: (saved.clone(),), lambda packed: packed[0]):
        output = x.exp()
    end(x, named=(output,))


@scenario("a hook on a tensor, which holds another", holder="other", mib=2)
def tensor_hook(end: End) -> None:
    def watch(x: Tensor) -> None:
        other = tensor()
        x.register_hook(lambda gradient: gradient + other.sum())

    x = inputs().requires_grad_()
    watch(x)
    end(x)


@scenario("a tensor's own attribute", holder="note", mib=4)
def tensor_attribute(end: End) -> None:
    x = torch.zeros(3)
    x.note = tensor(4)  # type: ignore[attr-defined]  # a name of ours
    end(named=(x,))


@scenario("a gradient that retain_grad keeps", holder="hidden", kind="gradient", mib=2)
def retain_grad(end: End) -> None:
    x = inputs().requires_grad_()
    hidden = x * 2
    hidden.retain_grad()
    hidden.sum().backward()
    end(x, named=(hidden,))


@scenario("a graph of ten thousand nodes", holder="value", kind="graph", mib=2)
def long_chain(end: End) -> None:
    value = inputs().requires_grad_()
    value = value.exp()
    small = value[:1, :1]
    for _ in range(10_000):
        small = small + 1
    value = small
    del small
    end(named=(value,))


@scenario("what torch.func.vjp keeps for backward", holder="'pull_back'", kind="graph", mib=4)
def vjp(end: End) -> None:
    weight = tensor(4).view(1024, 1024)
    _, pull_back = torch.func.vjp(lambda one: (inputs() @ one).sin().sum(), weight)
    end(weight, pull_back)


@scenario("a tangent of forward-mode differentiation", holder="'dual', its tangent", mib=4)
def tangent(end: End) -> None:
    warnings.simplefilter("ignore")  # torch itself uses TorchScript for it
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor(4), tensor(4))
        end(dual)


@scenario("weights that autocast has cast and keeps", holder="autocast", kind="library", mib=2)
def autocast(end: End) -> None:
    model = net()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_of(model)
        end(model, loss)


@scenario("a Function's ctx that outlives its graph", holder="contexts", mib=2)
def late_context(end: End) -> None:
    x = inputs().requires_grad_()
    contexts = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.note = tensor()
            contexts.append(ctx)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0]

    Keep.apply(x)
    end(contexts, x)


@scenario("an activation, with the module that has saved it", holder="of 'block.1.up'", kind="graph", mib=8)
def saved_by_module(end: End) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(1024, 1024, bias=False, device="cuda")

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.up(x.relu().view(-1, 1024))
            return y

    model = nn.Module()
    model.block = nn.ModuleList([Block(), Block()])
    hidden = model.block[1](torch.zeros(2048, 1024, device="cuda"))
    hidden = hidden.mean()
    end(model, named=(hidden,))
