"""What a training loop leaves behind."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.training.ownership.scenarios.made import inputs, loss_of, net, tensor
from tests.training.ownership.scenarios.scenario import End, scenario


@scenario("parameters of a model", holder="'model'", kind="parameter", mib=8)
def parameters(end: End) -> None:
    model = net()
    end(model)


@scenario("gradients", holder="model", kind="gradient", mib=8)
def gradients(end: End) -> None:
    model = net()
    loss_of(model).backward()
    end(model)


@scenario("Adam's state", holder="optimizer", kind="optimizer state", mib=16)
def adam(end: End) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model).backward()
    optimizer.step()
    end(model, named=(optimizer,))


@scenario("a scheduler, which holds the optimizer", holder="scheduler", kind="optimizer state", mib=8)
def scheduler(end: End) -> None:
    def configured(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loss_of(model).backward()
        optimizer.step()
        return torch.optim.lr_scheduler.StepLR(optimizer, 10)

    model = net()
    scheduler = configured(model)
    end(model, named=(scheduler,))


@scenario("optimizers created again for every phase, and kept", holder="optimizers", kind="optimizer state", mib=16)
def optimizers(end: End) -> None:
    model = net()
    optimizers = []
    for _ in range(2):
        optimizer = torch.optim.Adam(model.parameters())
        loss_of(model).backward()
        optimizer.step()
        optimizers.append(optimizer)
    end(model, optimizer, named=(optimizers,))


class _Holder:
    """An object with attributes, as GaLore keeps its projector and bitsandbytes the scales of a weight."""


@scenario("an object in an optimizer's state", holder="optimizer", kind="optimizer state", mib=16)
def state_object(end: End) -> None:
    def keep(optimizer: Any, parameter: Any) -> None:
        optimizer.state[parameter]["projector"] = holder = _Holder()
        holder.parts = {"ortho": [tensor(8)[:16]]}

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        keep(optimizer, parameter)
    end(model, optimizer)


@scenario(
    "a list that an optimizer keeps next to its state", holder="optimizer", kind="optimizer state", mib=8, stays=True
)
def state_attribute(end: End) -> None:
    model = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.momenta = [torch.zeros_like(parameter) for parameter in model.parameters()]
    end(model, optimizer)


@scenario("scales of quantized weights", holder="model", kind="parameter", mib=8, stays=True)
def scales(end: End) -> None:
    model: Any = net()[0]
    model.weight = nn.Parameter(tensor(1).to(torch.uint8), requires_grad=False)
    model.meta = {"scales": tensor(8)}
    end(model)


@scenario("a list of losses with their graphs", holder="losses", kind="graph", mib=12)
def losses(end: End) -> None:
    model = net()
    losses = []
    for _ in range(3):
        losses.append(loss_of(model))
    end(model, named=(losses,))


@scenario("a running sum of losses", holder="total_loss", kind="graph", mib=12)
def total_loss(end: End) -> None:
    model = net()
    total_loss: Any = 0.0
    for _ in range(3):
        total_loss += loss_of(model)
    end(model, named=(total_loss,))


@scenario("a list of predictions", holder="predictions", mib=6)
def predictions(end: End) -> None:
    model = net()
    predictions = []
    for _ in range(3):
        predictions.append(model(inputs()).detach())
    end(model, named=(predictions,))


@scenario("a dictionary of metrics whose outputs have graphs", holder="metrics", kind="graph", mib=4)
def metrics(end: End) -> None:
    model = net()
    metrics = {"epoch": 1, "best": {"output": model(inputs())}}
    end(model, named=(metrics,))


@scenario("a state carried on without detach", holder="hidden", kind="graph", mib=8)
def hidden_state(end: End) -> None:
    model = net()
    hidden = torch.zeros(512, 1024, device="cuda")
    for _ in range(4):
        hidden = model(inputs() + hidden)
    end(model, named=(hidden,))


@scenario("a GradScaler", holder="scaler", mib=0)
def grad_scaler(end: End) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    scaler.update()
    end(model, optimizer, named=(scaler,))


@scenario("a moving average of the model", holder="ema", kind="parameter", mib=8)
def ema(end: End) -> None:
    model = net()
    ema = copy.deepcopy(model).requires_grad_(False)  # noqa: FBT003  # torch's own signature
    end(model, named=(ema,))


@scenario("AveragedModel, another name's copy", holder="averaged", kind="parameter", mib=8)
def averaged(end: End) -> None:
    model = net()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    end(model, named=(averaged,))


class Wrapper(nn.Module):
    """As DataParallel and its like hold a model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@scenario("a wrapper around the model", holder="model", kind="parameter", mib=8)
def wrapper(end: End) -> None:
    parallel = Wrapper(net())
    model = parallel.module
    end(model, named=(parallel,))


@scenario("the best weights so far, on the GPU", holder="best", mib=8)
def best_weights(end: End) -> None:
    model = net()
    best = {name: value.clone() for name, value in model.state_dict().items()}
    end(model, named=(best,))


@scenario("a state_dict, which shares the model's storages", holder="model", kind="parameter", mib=8)
def state_dict(end: End) -> None:
    model = net()
    checkpoint = {"epoch": 3, "model": model.state_dict()}
    end(model, named=(checkpoint,))


@scenario("a ParameterList outside any model", holder="prompts", kind="parameter", mib=6)
def parameter_list(end: End) -> None:
    prompts = nn.ParameterList([nn.Parameter(tensor()) for _ in range(3)])
    end(prompts)


@scenario("buffers, one of them not in the state_dict", holder="model", kind="buffer", mib=4)
def buffers(end: End) -> None:
    model = net()
    model.register_buffer("mask", tensor(4), persistent=False)
    model.register_buffer("mean", tensor(2))
    end(model)


@scenario("a tensor that is a plain attribute of a module", holder="cache", mib=4)
def plain_attribute(end: End) -> None:
    model = net()
    model[0].cache = tensor(4)
    end(model)


@scenario("a TorchScript module, whose parameters are C++'s", holder="scripted", kind="parameter", mib=8)
def scripted(end: End) -> None:
    import warnings

    with warnings.catch_warnings(action="ignore"):  # it is deprecated, and in use
        scripted = torch.jit.script(net())
    end(scripted)


@scenario("a gradient that Python has never seen", holder="'x'", kind="gradient", mib=4)
def untouched_gradient(end: End) -> None:
    x = tensor(4).requires_grad_()
    (x * 3).sum().backward()
    end(x)


def _record(model: nn.Module) -> None:
    """Append every layer's output to a list that only the hooks know."""
    seen: list[Tensor] = []
    for layer in model:  # type: ignore[attr-defined]  # a Sequential
        layer.register_forward_hook(lambda module, given, output: seen.append(output.detach()))


@scenario("a forward hook that appends", holder="seen", mib=6)
def forward_hook(end: End) -> None:
    model = net()
    _record(model)
    with torch.no_grad():
        model(inputs())
    end(model)


@scenario("a dictionary of activations that hooks fill", holder="activations", mib=4)
def activations_by_name(end: End) -> None:
    model = net()
    activations: dict[str, Tensor] = {}
    for name, layer in model.named_children():
        layer.register_forward_hook(lambda _, given, output, name=name: activations.__setitem__(name, output))
    with torch.no_grad():
        output = model(inputs())
    end(model, output, named=(activations,))


class Prefetcher:
    """Hold the next batch while the model works on this one."""

    def __init__(self, loader: Any) -> None:
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.following: Tensor | None = None
        self.load()

    def load(self) -> None:
        with torch.cuda.stream(self.stream):
            self.following = next(self.loader).to("cuda", non_blocking=True)

    def __next__(self) -> Tensor:
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.following
        assert batch is not None
        batch.record_stream(torch.cuda.current_stream())
        self.load()
        return batch


@scenario("a prefetcher that holds the next batch", holder="prefetcher", mib=2)
def prefetcher(end: End) -> None:
    model = net()
    prefetcher = Prefetcher([torch.zeros(512, 1024) for _ in range(3)])
    model(next(prefetcher)).sum().backward()
    end(model, named=(prefetcher,))


@scenario("the last batch and loss of a loop", holder="output", kind="graph", mib=4)
def loop_variables(end: End) -> None:
    model = net()
    for _ in range(2):
        batch = inputs()
        output = model(batch)
        loss = output.square().mean()
    end(model, named=(batch, output, loss))
