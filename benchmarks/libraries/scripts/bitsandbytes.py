"""bitsandbytes: 4-bit and 8-bit linear layers under a LoRA-like adapter, and optimizers with 8-bit and paged states."""

import bitsandbytes as bnb
import torch
from counted import Counted, requested_bytes

WIDTH, ROWS, RANK = 4096, 256, 16
WEIGHTS = WIDTH * WIDTH
NF4_BLOCK = 64  # weights that share one absmax
NESTED_BLOCK = 256  # absmax values that share one of their own
STATE_BLOCK = 256  # values of an 8-bit state that share one absmax
CODES = 4 * 256  # a table of 256 floats


def run(counted: Counted) -> None:
    four_bits(counted)
    eight_bits(counted)
    for name, moments, codes in (("Adam8bit", 2, 2), ("Lion8bit", 1, 1), ("AdEMAMix8bit", 3, 2)):
        grown = step(getattr(bnb.optim, name))
        sizes = moments * (WEIGHTS + 4 * WEIGHTS // STATE_BLOCK) + codes * CODES
        counted.equal(f"states of {name}", grown, sizes)
    beside = 2 * (4 * WEIGHTS // STATE_BLOCK + CODES)
    counted.equal("PagedAdamW8bit in addition to its paged states", step(bnb.optim.PagedAdamW8bit), beside)
    counted.equal("PagedAdamW32bit in addition to its paged states", step(bnb.optim.PagedAdamW32bit), 0)
    # Managed memory, which bitsandbytes prefetches to the card and never frees.
    counted.equal("paged states of both, on the GPU", counted.look(), 2 * WEIGHTS + 2 * 4 * WEIGHTS)


def four_bits(counted: Counted) -> None:
    def made() -> torch.nn.Module:
        layer = bnb.nn.Linear4bit(WIDTH, WIDTH, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
        return layer.cuda()

    layer = made()
    scales = WEIGHTS // NF4_BLOCK
    # Packed weights, absmax in 8 bits with an absmax, an offset and a code of its own, the code of 16 floats.
    kept = WEIGHTS // 2 + scales + 4 * (scales // NESTED_BLOCK) + 4 + CODES + 4 * 16
    with counted.grows("a second NF4 layer with nested statistics", kept):
        second = made()
    del second
    adapter = torch.nn.Sequential(torch.nn.Linear(WIDTH, RANK, bias=False), torch.nn.Linear(RANK, WIDTH, bias=False))
    adapter.to("cuda", torch.bfloat16)
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    optimizer = torch.optim.AdamW(adapter.parameters())
    optimizer_step(layer, adapter, x, optimizer)  # the workspaces of cuBLAS, the optimizer's states
    # The weights in bfloat16, absmax in float32 (made anew from its 8 bits, and then moved by its offset), the result.
    with counted.peaks("a forward's peak: weights dequantised", 2 * WEIGHTS + 2 * 4 * scales + 2 * ROWS * WIDTH):
        layer(x.detach())


def optimizer_step(
    layer: torch.nn.Module, adapter: torch.nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer
) -> None:
    (layer(x) + adapter(x)).float().pow(2).mean().backward()
    optimizer.step()
    assert x.grad is not None
    assert x.grad.shape == x.shape


def eight_bits(counted: Counted) -> None:
    layer = bnb.nn.Linear8bitLt(WIDTH, WIDTH, bias=False, has_fp16_weights=False, threshold=6.0)
    with counted.grows("int8 weights with one scale a row", WEIGHTS + 4 * WIDTH):
        layer.cuda()
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.float16, requires_grad=True)
    layer(x).float().mean().backward()
    assert x.grad is not None


def step(kind: type) -> int:
    """By how many bytes one step grows requested memory."""
    parameter = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = kind([parameter], lr=1e-3)
    before = requested_bytes()
    optimizer.step()
    return requested_bytes() - before
