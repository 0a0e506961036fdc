"""Triton: a custom kernel with autotune, inside an autograd function."""

import torch
import triton
import triton.language as tl
from counted import Counted

VALUES = 1 << 22


@triton.autotune(configs=[triton.Config({"BLOCK": 512}), triton.Config({"BLOCK": 1024})], key=["count"])
@triton.jit
def scaled(x, y, factor, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, factor * tl.load(x + at, mask=at < count), mask=at < count)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(_, x: torch.Tensor) -> torch.Tensor:
        return launched(x)

    @staticmethod
    def backward(_, gradient: torch.Tensor) -> torch.Tensor:
        return launched(gradient.contiguous())


def launched(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    scaled[lambda config: (triton.cdiv(x.numel(), config["BLOCK"]),)](x, y, 2.0, x.numel())
    return y


def run(counted: Counted) -> None:
    x = torch.randn(VALUES, device="cuda", requires_grad=True)
    with counted.grows("result and gradient", 2 * 4 * VALUES):
        y = Scale.apply(x)
        y.sum().backward()
