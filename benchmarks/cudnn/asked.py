"""What torch asks the allocator for within one convolution or attention alone, forward and backward; and a net's peaks.

The operations of a net are seen as PyTorch dispatches them, and each is called anew with tensors of the same shapes,
types and layouts. PyTorch's own memory history says which blocks came and went within the call: workspaces, and copies
into another layout. Needs torch only; the card may be a real or an emulated one.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from nets import TYPES, prepare
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATTENTION: Final = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
)
_ENTRIES: Final = 100_000
_TYPE_NAMES: Final = {dtype: name for name, dtype in TYPES.items()}


def ask(name: str, type_name: str, layout: str) -> dict[str, Any]:
    """Train a net, then call each of its operations alone; all in bytes."""
    model, x = prepare(name, layout)
    dtype = TYPES[type_name]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    seen = _Seen()
    for _ in range(2):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32), seen:
            loss = model(x).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found: dict[str, Any] = {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    del model, x, loss, optimizer
    torch.cuda.empty_cache()
    return found | {"operations": {text: _alone(call, given) for text, (call, given) in seen.calls.items()}}


class _Seen(TorchDispatchMode):
    """The convolutions and attentions that ran, each with how to make its tensors anew."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Callable[..., Tensor], list[_Given]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = func._schema.name
        if operation == "aten::convolution":
            x, weight, bias, *rest = args
            given = [_Given(tensor) for tensor in (x, weight, bias) if tensor is not None]
            text = " ".join(["convolution", *map(str, given), *map(_short, rest)])
            self.calls[text] = (_convolution(has_bias=bias is not None, rest=rest), given)
        elif operation in _ATTENTION:
            given = [_Given(tensor) for tensor in args[:3]]
            name = operation.removeprefix("aten::_scaled_dot_product_").replace("_", " ")
            self.calls[" ".join([name, *map(str, given)])] = (torch.nn.functional.scaled_dot_product_attention, given)
        return func(*args, **(kwargs or {}))


class _Given:
    """What decides about a tensor that an operation takes."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape, self._stride = tuple(tensor.shape), tuple(tensor.stride())
        self._dtype, self._wants_gradient = tensor.dtype, tensor.requires_grad

    def __str__(self) -> str:
        # Strides of places that are next to one another need no telling.
        plain = torch.empty(self._shape, device="meta").stride()
        stride = "" if self._stride == plain else f"@{_short(self._stride)}"
        constant = "" if self._wants_gradient else " constant"
        return f"{_TYPE_NAMES.get(self._dtype, self._dtype)}:{_short(self._shape)}{stride}{constant}"

    def make(self) -> Tensor:
        tensor = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device="cuda").zero_()
        return tensor.requires_grad_(self._wants_gradient)


def _short(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _convolution(*, has_bias: bool, rest: list[Any]) -> Callable[..., Tensor]:
    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return torch.convolution(x, weight, bias if has_bias else None, *rest)

    return call


def _alone(call: Callable[..., Tensor], given: list[_Given]) -> dict[str, list[int]]:
    """The blocks that came and went within a call and within its backward, in their order."""
    inputs = [one.make() for one in given]
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    kept: list[Any] = [call(*inputs)]
    gradient = torch.zeros_like(kept[0])
    torch.autograd.grad(kept.pop(), wanted, gradient)  # a first time, whose plans are remembered
    forward = _passing(lambda: kept.append(call(*inputs)))
    backward = _passing(lambda: kept.append(torch.autograd.grad(kept[0], wanted, gradient)))
    return {"forward": forward, "backward": backward}


def _passing(call: Callable[[], None]) -> list[int]:
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_ENTRIES)
    try:
        before = len(_history())
        call()
        entries = _history()[before:]
    finally:
        torch.cuda.memory._record_memory_history(None)
    alive: dict[int, tuple[int, int]] = {}
    passed = []
    for number, entry in enumerate(entries):
        if entry["action"] == "alloc":
            alive[entry["addr"]] = (number, entry["size"])
        elif entry["action"] == "free_requested" and entry["addr"] in alive:
            passed.append(alive.pop(entry["addr"]))
    return [size for _, size in sorted(passed)]


def _history() -> list[dict[str, Any]]:
    torch.cuda.synchronize()
    traces: list[list[dict[str, Any]]] = torch.cuda.memory._snapshot()["device_traces"]
    return traces[0]
