"""What a guard costs where nothing goes wrong: a guarded step beside a bare one, on the CPU and on the emulated card
(where a step is host work and nothing else). `make bench`. Exits 1 past a bound.

Both are steps of the same model and optimizer that take turns in one process, so that what else runs on the machine,
and where things lie in memory, weighs on both alike. Time is the process's own CPU time. What is told is the median of
what the guard adds to the step beside it, over the median step; and how far apart the medians of five shares of the
pairs are, which is what a figure may be off by. Further runs count calls to CUDA with the guard and without.
"""

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from counted import CALLS, build, counting

import ullage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from figure import Measured

PAIRS, SHARES, WARM = 1200, 5, 5
STEP_SECONDS = 0.010
COUNTED_STEPS, SIZE_TO_COUNT = 20, 4
KIB = 1 << 10
KEPT_KIB = 0.5
"""One block of the allocator: the norm of the gradients, which a guard that clips can be asked for."""
BOUND = 1.09
"""The guard adds about half a millisecond to a step, and these steps take 10 ms."""
BOUND_OF_COPIES = 1.12
"""For the conv net on the emulated GPU: the statistics of about 25 BatchNorm layers are copied at every step."""
BOUND_OF_A_MODEL = 1.03
MODELS = ("MLP, AdamW", "transformer, AdamW, clipping", "conv net with BatchNorm, SGD")
GPT2, GPT2_PAIRS = "GPT-2 small (Transformers), AdamW", 25
"""A real model, on the CPU, with a batch of one sequence of 64 tokens."""
DEVICES = ("cpu", "cuda")


def made(name: str, device: str, size: int) -> tuple[Any, Any, Any, Callable[[Any], Any], float | None]:
    """Return a model, its optimizer, a batch, the loss of a batch, and the norm to clip to.

    On the CPU the size is that of the batch; on the card, where only the host's work takes time, the model's depth.
    """
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.manual_seed(0)
    on_cpu = device == "cpu"
    if name == GPT2:
        from transformers import GPT2Config, GPT2LMHeadModel

        gpt2 = GPT2LMHeadModel(GPT2Config())
        tokens = torch.randint(0, gpt2.config.vocab_size, (1, 64))
        batch = {"input_ids": tokens, "labels": tokens}
        return gpt2, torch.optim.AdamW(gpt2.parameters(), lr=1e-4), batch, lambda b: gpt2(**b).loss, None
    if name == MODELS[0]:
        depth, items = (4, size) if on_cpu else (size, 64)
        layers = [layer for _ in range(depth) for layer in (nn.Linear(512, 512), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(512, 10)).to(device)
        batch = torch.randn(items, 512, device=device), torch.randint(0, 10, (items,), device=device)
    elif name == MODELS[1]:
        width, depth, items, length = (64, 2, size, 16) if on_cpu else (256, size, 8, 128)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        model = nn.Sequential(
            nn.Embedding(500, width),
            nn.TransformerEncoder(layer, depth, enable_nested_tensor=False),
            nn.Linear(width, 500),
        ).to(device)
        tokens = torch.randint(0, 500, (2, items, length), device=device)
        batch = tokens[0], tokens[1]
    else:
        width, depth, items = (16, 3, size) if on_cpu else (64, size, 8)
        blocks = [
            layer
            for _ in range(depth)
            for layer in (nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        ]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
        model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, *head).to(device)
        batch = torch.randn(items, 3, 32, 32, device=device), torch.randint(0, 10, (items,), device=device)
    if name == MODELS[2]:
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss_of(batch: Any) -> Any:
        items, targets = batch
        return F.cross_entropy(model(items).flatten(0, -2), targets.flatten())

    return model, optimizer, batch, loss_of, 1.0 if name == MODELS[1] else None


def steps_of(name: str, device: str, size: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a bare step and a guarded one, of the same model and optimizer."""
    import torch

    model, optimizer, batch, loss_of, clip = made(name, device, size)
    guard = ullage.Guard(model, optimizer, clip_grad_norm=clip)
    parameters = list(model.parameters())

    def bare() -> Any:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        return loss.detach()

    return bare, lambda: guard.step(batch, loss_of)


def seconds_of(way: Callable[[], Any]) -> float:
    """The time that the process itself works on a step: others use the machine too."""
    began = time.process_time()
    way()
    return time.process_time() - began


def size_for(name: str, device: str) -> int:
    """Find the least size at which a bare step takes 10 ms."""
    size = 1
    while True:
        bare, _ = steps_of(name, device, size)
        for _ in range(WARM):
            bare()
        seconds = statistics.median(seconds_of(bare) for _ in range(4 * WARM))
        if seconds >= STEP_SECONDS:
            return size
        size = max(size + 1, min(2 * size, round(0.9 * size * STEP_SECONDS / seconds)))


def timed(name: str, device: str) -> dict[str, float]:
    """Time both: milliseconds of a bare step, and what the guard adds as a ratio."""
    import torch

    torch.set_num_threads(1)
    ways = steps_of(name, device, 1 if name == GPT2 else size_for(name, device))
    for way in ways * WARM:
        way()
    gc.collect()
    gc.freeze()
    times: tuple[list[float], list[float]] = [], []
    for turn in range(GPT2_PAIRS if name == GPT2 else PAIRS):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(seconds_of(ways[which]))
    bare, guarded = times
    added = [after - before for before, after in zip(bare, guarded, strict=True)]
    shares = [statistics.median(added[share::SHARES]) for share in range(SHARES)]
    step = statistics.median(bare)
    return {
        "ms": 1000 * step,
        "added": 1e6 * statistics.median(added),
        "ratio": 1 + statistics.median(added) / step,
        "spread": (max(shares) - min(shares)) / step,
    }


def counts(name: str, way: str, calls: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Count what many steps on the card ask of CUDA, and the most bytes that were allocated at once."""
    import torch

    step = steps_of(name, "cuda", SIZE_TO_COUNT)[way == "guarded"]
    for _ in range(WARM):
        step()
    torch.cuda.reset_peak_memory_stats()
    before = calls()
    for _ in range(COUNTED_STEPS):
        step()
    after = calls()
    return {call: after[call] - before[call] for call in CALLS} | {"peak": torch.cuda.max_memory_allocated()}


def run_alone(task: str, name: str, how: str, library: str) -> None:
    """What a process of its own does: one model."""
    calls = counting(Path(library)) if task == "--count" else None
    # On the CPU too: torch's CUDA build asks for CUDA when it is imported. Without values, because looking after them
    # takes time, and a hook of theirs on all optimizers keeps the guard from its short way.
    ullage.emulate("T4", values="off")
    print(json.dumps(timed(name, how) if calls is None else counts(name, how, calls)))


def alone(task: str, name: str, how: str, library: Path) -> Any:
    command = [sys.executable, __file__, task, name, how, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{task} {name} {how} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def measurements(library: Path) -> Iterator[Measured]:
    found = alone("--time", GPT2, "cpu", library)
    what = f"{GPT2}, on the CPU ({found['ms']:.0f} ms + {found['added']:.0f} us): guarded / bare"
    yield Measured(what, found["ratio"], "x", BOUND_OF_A_MODEL, digits=3)
    for device in DEVICES:
        where = "the CPU" if device == "cpu" else "the emulated card"
        for name in MODELS:
            found = alone("--time", name, device, library)
            bound = BOUND_OF_COPIES if name == MODELS[2] and device == "cuda" else BOUND
            what = f"{name}, on {where} ({found['ms']:.1f} ms + {found['added']:.0f} us): guarded / bare"
            yield Measured(what, found["ratio"], "x", bound, digits=3)
            what = f"{name}, on {where}: between the medians of fifths of the pairs"
            yield Measured(what, found["spread"], "x", digits=3)
    for name in MODELS:
        bare, guarded = (alone("--count", name, way, library) for way in ("bare", "guarded"))
        for call in CALLS[:-1]:
            what = f"{name}: {call} added in {COUNTED_STEPS} steps (bare: {bare[call]})"
            yield Measured(what, guarded[call] - bare[call], "", 0)
        added = (guarded["kernels"] - bare["kernels"]) / COUNTED_STEPS
        yield Measured(f"{name}: kernels added a step (bare: {bare['kernels'] / COUNTED_STEPS:g})", added, "")
        has_buffers = name == MODELS[2]
        of_what = " (copies of buffers)" if has_buffers else ""
        what = f"{name}: added to the peak of {bare['peak'] / KIB:,.0f} KiB{of_what}"
        yield Measured(what, (guarded["peak"] - bare["peak"]) / KIB, "KiB", None if has_buffers else KEPT_KIB)


def main() -> None:
    if sys.argv[1:2] in (["--time"], ["--count"]):
        return run_alone(*sys.argv[1:])
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        for measured in measurements(build(Path(folder))):
            print(measured, flush=True)
            kept &= measured.kept
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
