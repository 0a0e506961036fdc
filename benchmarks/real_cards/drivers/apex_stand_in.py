"""What Megatron-LM asks of NVIDIA's Apex, in PyTorch's terms: the same tensors are made, kept and freed.

Apex comes with NVIDIA's container and has to be compiled for a card. Its kernels compute nothing on an emulated one;
what counts is what its functions allocate: a layer norm keeps its input and two numbers a row and makes partial sums in
its backward pass, a softmax writes its gradient over the one it is given, a norm of many tensors has 320 partial sums,
and its Adam makes both moments when it first steps.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import torch

_PARTIAL_SUMS: Final = 320  # of a norm of many tensors
_PARTS: Final = 16  # that a layer norm sums the gradients of its weights in
_WARP: Final = 32
_SMALL_ROW: Final = 128
_WARPS: Final = 4  # of a block of threads


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """A layer norm with weights, which keeps its input."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        normalized_shape: Sequence[int],
        eps: float,
        memory_efficient: bool = False,  # noqa: FBT001, FBT002 (as Apex is called)
    ) -> torch.Tensor:
        """Make the output and the mean and deviation of every row."""
        rows = inputs.numel() // math.prod(normalized_shape)
        output = torch.empty_like(inputs)
        mean = torch.empty(rows, dtype=torch.float32, device=inputs.device)
        deviation = torch.empty_like(mean)
        ctx.save_for_backward(output if memory_efficient else inputs, weight, bias, mean, deviation)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Make the three gradients, and the sums that two of them are made of."""
        kept, weight, bias, *_ = ctx.saved_tensors
        gradients = torch.empty_like(kept), torch.empty_like(weight), torch.empty_like(bias)
        sums = [torch.empty(_PARTS, weight.numel(), dtype=torch.float32, device=kept.device) for _ in range(2)]
        del sums
        return (*gradients, None, None, None)


class FusedAdam(torch.optim.Optimizer):
    """Adam, which makes its moments in its first step and nothing else."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **_: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._overflow = torch.tensor([0], dtype=torch.int, device="cuda")

    def step(self, closure: Callable[[], float] | None = None, **_: Any) -> None:  # type: ignore[override]  # as Apex has it
        """Make the moments where there are none."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if parameter.grad is not None and not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)


def _apply(operation: Callable[..., Any], overflow: torch.Tensor, lists: Sequence[Any], *arguments: Any) -> Any:
    return operation(_CHUNK, overflow, lists, *arguments)


_CHUNK: Final = 2048 * 32


def _l2norm(_: int, overflow: torch.Tensor, *__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.zeros(_PARTIAL_SUMS, dtype=torch.float32, device=overflow.device)
    norm = torch.empty(1, dtype=torch.float32, device=overflow.device)
    del sums
    return norm, torch.empty(0, dtype=torch.float32, device=overflow.device)


def _in_place(*_: Any) -> None:
    """Write into tensors that are there."""


def _softmax(scores: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(scores)


def _softmax_backward(gradient: torch.Tensor, *_: Any) -> torch.Tensor:
    return gradient.contiguous()


def _rows_of_a_block(queries: int, keys: int, batch: int, heads: int) -> int:
    row = 1 << (keys - 1).bit_length()
    return _WARPS * _WARP // min(row, _WARP) * (2 if row <= _SMALL_ROW else 1)


def _module(name: str, **contents: Any) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    vars(made).update(contents)
    sys.modules[name] = made
    return made


def install(names: Iterable[str] = ("scaled_upper_triang_masked_", "scaled_masked_", "scaled_")) -> None:
    """Let Apex and its compiled parts be imported."""
    _module("apex")
    _module("apex.normalization")
    _module("apex.normalization.fused_layer_norm", FusedLayerNormAffineFunction=FusedLayerNormAffineFunction)
    _module("apex.optimizers", FusedAdam=FusedAdam, FusedSGD=torch.optim.SGD)
    _module("apex.multi_tensor_apply", multi_tensor_applier=_apply)
    _module("amp_C", multi_tensor_l2norm=_l2norm, multi_tensor_scale=_in_place)
    for name in names:
        _module(
            f"{name}softmax_cuda",
            forward=_softmax,
            backward=_softmax_backward,
            get_batch_per_block=_rows_of_a_block,
        )
