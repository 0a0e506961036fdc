"""Measure what the step of each optimizer of PyTorch takes, and what its states take, and print both.

    python -m benchmarks.common_advice.optimizer_lists

The figures are those of `torch.cuda.memory_stats` on an emulated GPU, after a first step that makes the states. Each
optimizer has 16 parameters of 1 MiB in float32. In a for loop, one parameter's temporary tensors are alive at a time.
"""

from collections.abc import Sequence
from typing import Any

import ullage

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD with weight decay": ("SGD", {"weight_decay": 0.1}),
    "SGD with momentum": ("SGD", {"momentum": 0.9}),
    "SGD with momentum and weight decay": ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    "SGD with Nesterov momentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "Adam": ("Adam", {}),
    "Adam with weight decay": ("Adam", {"weight_decay": 0.1}),
    "Adam with amsgrad": ("Adam", {"amsgrad": True}),
    "AdamW": ("AdamW", {}),
    "NAdam": ("NAdam", {}),
    "NAdam with weight decay": ("NAdam", {"weight_decay": 0.1}),
    "RAdam": ("RAdam", {}),
    "RAdam with weight decay": ("RAdam", {"weight_decay": 0.1}),
    "Adamax": ("Adamax", {}),
    "Adamax with weight decay": ("Adamax", {"weight_decay": 0.1}),
    "RMSprop": ("RMSprop", {}),
    "RMSprop with weight decay": ("RMSprop", {"weight_decay": 0.1}),
    "RMSprop with momentum": ("RMSprop", {"momentum": 0.9}),
    "Adagrad": ("Adagrad", {}),
    "Adagrad with weight decay": ("Adagrad", {"weight_decay": 0.1}),
    "Adadelta": ("Adadelta", {}),
    "Adadelta with weight decay": ("Adadelta", {"weight_decay": 0.1}),
    "Rprop": ("Rprop", {}),
    "ASGD": ("ASGD", {}),
    "ASGD with weight decay": ("ASGD", {"weight_decay": 0.1}),
}
"""Maps each name to an optimizer's class in torch.optim and the arguments of its constructor."""
SHAPES = {
    "a matrix, 1024 x 1024": (1024, 1024),
    "a 1 x 1 convolution, 512 x 512": (512, 512, 1, 1),
    "a 3 x 3 convolution, 512 x 512": (512, 512, 3, 3),
    "a vector, 1024": (1024,),
}
"""Maps each kind of parameter to a shape."""
COUNT, SIZE = 16, (512, 512)


def _measured(kind: str, shapes: Sequence[tuple[int, ...]], **arguments: Any) -> tuple[float, float]:
    """Return the copies of the parameters that a step holds at its peak, and the bytes of states per number."""
    import torch

    parameters = [torch.nn.Parameter(torch.zeros(shape, device="cuda")) for shape in shapes]
    numbers = sum(each.numel() for each in parameters)
    for each in parameters:
        each.grad = torch.zeros_like(each)
    optimizer = getattr(torch.optim, kind)(parameters, **arguments)
    optimizer.step()
    after = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    states = sum(each.numel() * each.element_size() for each in kept if each.is_cuda)
    return (torch.cuda.max_memory_allocated() - after) / (4 * numbers), states / numbers


def lists() -> list[str]:
    """The copies of the parameters that the step of each optimizer holds at once, and the bytes of its states."""
    rows = [
        f"{'':<36}{'copies of the parameters':>25}{'states, bytes':>16}",
        _line("optimizer", "foreach", "for loop", ""),
    ]
    for name, (kind, arguments) in OPTIMIZERS.items():
        copies, states = _measured(kind, [SIZE] * COUNT, foreach=True, **arguments)
        loop, _ = _measured(kind, [SIZE] * COUNT, foreach=False, **arguments)
        rows.append(_line(name, f"{copies:.1f}", f"{loop:.1f}", f"{states:.0f}"))
    return rows


def _line(name: str, foreach: str, loop: str, states: str) -> str:
    return f"{name:<36}{foreach:>13}{loop:>12}{states:>16}".rstrip()


def factored() -> list[str]:
    """The bytes of the states of Adafactor, and of Adam, for parameters of several shapes."""
    rows = [f"{'states, bytes per number':<36}{'Adafactor':>13}{'Adam':>12}"]
    for name, shape in SHAPES.items():
        own, adams = (_measured(kind, [shape])[1] for kind in ("Adafactor", "Adam"))
        rows.append(f"{name:<36}{own:>13.2f}{adams:>12.2f}")
    return rows


def main() -> None:
    ullage.emulate("T4")
    print("\n".join([*lists(), "", *factored()]))


if __name__ == "__main__":
    main()
