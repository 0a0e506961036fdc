"""Time a GPT-2 small step (batch 4 x 1024): `gpt2_step.py cpu|fake|emulated STEPS` prints ms, the fastest tenth."""

import contextlib
import sys
import time
from pathlib import Path

import ullage

mode, steps = sys.argv[1], int(sys.argv[2])
ullage.emulate("RTX 4090")  # for all modes: torch's CUDA build cannot be imported without CUDA libraries

import torch  # noqa: E402  the card has to be there first
import torch.nn.functional as F  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from train_gpt2 import GPT2  # noqa: E402


def main() -> None:
    device = "cpu" if mode == "cpu" else "cuda"
    context = contextlib.nullcontext()
    if mode == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        context = FakeTensorMode()
    with context:
        with torch.device(device):
            model = GPT2(vocabulary=50257, length=1024, width=768, layers=12, heads=12, checkpointing=False)
        optimizer = torch.optim.AdamW(model.parameters())
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            tokens = torch.randint(0, 50257, (4, 1025), device=device)
            # CPUs without bf16 units would measure their emulation of it.
            with torch.autocast(device, dtype=torch.bfloat16, enabled=mode != "cpu"):
                loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - began)
    print(sorted(times)[len(times) // 10] * 1000)


if __name__ == "__main__":
    main()
