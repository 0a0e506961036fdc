"""Train a net for two steps on an emulated card; print its peaks and what the emulated cuDNN was answered.

    python benchmarks/cudnn/emulated.py resnet50 fp32 channels_first A100 plans     (or: nothing, for workspaces of 0)

The answers are read from the folder `ULLAGE_CUDNN_CACHE`, which should be empty before.
"""

import json
import sys
from pathlib import Path
from typing import Any

import ullage
from ullage.emulator import library
from ullage.emulator.cudnn.cache import default_folder
from ullage.emulator.cudnn.tree import convolution_of, parse

DIRECTIONS = {
    "convolution": "forward",
    "convolution, gradient of weights": "weights",
    "convolution, gradient of input": "input",
}


def answered(folder: Path) -> list[list[Any]]:
    """List [direction, x, w, y, channels last, workspace] of every plan that was built."""
    found = []
    for path in sorted(folder.glob("*/*/*")):
        question, _, answer = path.read_text().partition("\n\n")
        wanted, _, tree = question.partition("\n")
        if wanted.startswith("plan") and answer.startswith("workspace"):
            convolution = convolution_of(parse(tree))
            if convolution is None:
                continue
            shapes = [list(convolution.x), list(convolution.w), list(convolution.y)]
            direction = DIRECTIONS[convolution.operation]
            found.append([direction, *shapes, convolution.is_channels_last, int(answer.split()[1])])
    return found


def main(name: str, type_name: str, format_name: str, gpu: str, mode: str) -> None:
    """Run and print."""
    ullage.emulate(gpu, cudnn_workspace_bytes=None if mode == "plans" else 0)
    import torch
    from nets import NETS

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[type_name]
    layout = {"channels_first": torch.contiguous_format, "channels_last": torch.channels_last}[format_name]
    net = NETS[name]
    model = net.make().cuda()
    x = torch.randn(net.shape, device="cuda")
    if x.dim() == 4:
        model, x = model.to(memory_format=layout), x.to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = model(x).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    plans = library.cudnn_plans()
    json.dump(
        {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "sources": {source: figures.problems for source, figures in plans.by_source.items()},
            "largest_workspace_bytes": max((f.largest_workspace_bytes for f in plans.by_source.values()), default=0),
            "reasons": plans.reasons,
            "answered": answered(default_folder()) if mode == "plans" else [],
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
