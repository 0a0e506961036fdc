"""torchao: weights in int8, optimizers with 8-bit, 4-bit and float8 states, a training step in float8."""

import torch
from counted import Counted
from torchao.float8 import convert_to_float8_training
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
from torchao.quantization import Int8WeightOnlyConfig, quantize_

WIDTH = 4096
WEIGHTS = WIDTH * WIDTH


def run(counted: Counted) -> None:
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
    # A scale in bfloat16 and a zero point in int8 a row.
    with counted.grows("int8 weights in place of bfloat16", WEIGHTS + 3 * WIDTH - 2 * WEIGHTS):
        quantize_(layer, Int8WeightOnlyConfig(version=2))
    layer(torch.randn(16, WIDTH, device="cuda", dtype=torch.bfloat16))
    # Two moments: values, one float a block of them, the table of codes.
    for kind, bits, block, codes in ((AdamW8bit, 8, 256, 256), (AdamW4bit, 4, 128, 16), (AdamWFp8, 8, 256, 0)):
        moment = WEIGHTS * bits // 8 + 4 * WEIGHTS // block + 4 * codes
        counted.equal(f"states of {kind.__name__}", states(kind), 2 * moment)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    model = convert_to_float8_training(model.to("cuda", torch.bfloat16))
    x = torch.randn(1024, WIDTH, device="cuda", dtype=torch.bfloat16)
    model(x).float().pow(2).mean().backward()
    torch.optim.AdamW(model.parameters()).step()


def states(kind: type) -> int:
    parameter = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = kind([parameter], lr=1e-3)
    optimizer.step()  # compiled: what that leaves behind is not the optimizer's
    return sum(
        part.untyped_storage().nbytes()
        for state in optimizer.state[parameter].values()
        for part in (getattr(state, name) for name in getattr(state, "__tensor_flatten__", lambda: ((), None))()[0])
    )
