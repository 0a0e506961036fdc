"""Train nets for two steps on an emulated card; print their peaks and what the emulated cuDNN was answered.

    python benchmarks/cudnn/emulated.py A100 plans resnet50:fp32:channels_first unet:fp16:channels_last

prints a line of JSON for each. `nothing` in the place of `plans` is for workspaces of 0. Each net has a process of its
own, forked when torch is imported, before it uses the card. What was answered is read from cuDNN's cache, which is a
new folder here, emptied before each net.
"""

import json
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import ullage
from ullage.gpu.emulator import library
from ullage.gpu.emulator.cudnn.tree import convolution_of, parse

DIRECTIONS = {
    "convolution": "forward",
    "convolution, gradient of weights": "weights",
    "convolution, gradient of input": "input",
}


def answered(folder: Path) -> list[list[Any]]:
    """List [direction, x, w, y, channels last, workspace] of every plan that ran.

    Of several plans of one problem the last in cuDNN's order: PyTorch has left the others out after it has built them.
    """
    found: dict[str, tuple[int, list[Any]]] = {}
    for path in sorted(folder.glob("*/*/*")):
        question, _, answer = path.read_text().partition("\n\n")
        wanted, _, tree = question.partition("\n")
        if wanted.startswith("plan") and answer.startswith("workspace"):
            convolution = convolution_of(parse(tree))
            if convolution is None:
                continue
            shapes = [list(convolution.x), list(convolution.w), list(convolution.y)]
            direction = DIRECTIONS[convolution.operation]
            rank, row = (
                int(wanted.split()[1]),
                [direction, *shapes, convolution.is_channels_last, int(answer.split()[1])],
            )
            found[tree] = max(found.get(tree, (rank, row)), (rank, row), key=lambda one: one[0])
    return [row for _, row in found.values()]


def train(name: str, type_name: str, layout: str) -> dict[str, Any]:
    """Train a net; return its peaks in bytes, and where its workspaces come from."""
    import torch
    from nets import prepare, settle

    dtype = settle(type_name)
    model, x = prepare(name, layout)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = model(x).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    plans = library.cudnn_plans()
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "sources": {source: figures.problems for source, figures in plans.by_source.items()},
        "largest_workspace_bytes": max((f.largest_workspace_bytes for f in plans.by_source.values()), default=0),
        "reasons": plans.reasons,
    }


def main(gpu: str, mode: str, *words: str) -> None:
    """Run the nets one after the other, and print."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cudnn")
        os.environ["ULLAGE_CUDNN_CACHE"] = str(cache)
        ullage.emulate(gpu, cudnn_workspace_bytes=None if mode == "plans" else 0)
        import nets  # noqa: F401  # with torch, once for all forks

        with suppress(ImportError):
            import torchvision  # noqa: F401  # likewise; not every net needs it

        for word in words:
            shutil.rmtree(cache, ignore_errors=True)
            child = os.fork()
            if not child:
                result = train(*word.split(":"))
                print(json.dumps(result | {"answered": answered(cache)}), flush=True)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise SystemExit(f"{word} failed on {gpu}")


if __name__ == "__main__":
    main(*sys.argv[1:])
