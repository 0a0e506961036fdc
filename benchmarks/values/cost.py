"""What values cost: steps with values on, as a multiple of the same steps without, and the host's memory.

    python -m benchmarks.values.cost

Each process takes both figures in turn, so that what else runs on the machine weighs on both alike.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

_WARM = 2


def _gpt2() -> Any:
    """Return a training step of GPT-2 small, 4 x 512 tokens, in fp32 with AdamW."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 50257, (4, 512)).cuda()

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _experts() -> Any:
    """Return a training step of eight layers of eight experts, two to a token, 4 x 1024 tokens."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(512, 8)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)) for _ in range(8)
            )

        def forward(self, x: Any) -> Any:
            flat = x.reshape(-1, x.size(-1))
            weights, chosen = functional.softmax(self.router(flat), -1).topk(2, -1)
            result = torch.zeros_like(flat)
            for number, expert in enumerate(self.experts):
                tokens, place = torch.where(chosen == number)
                result.index_add_(0, tokens, expert(flat[tokens]) * weights[tokens, place, None])
            return x + result.reshape_as(x)

    model = nn.Sequential(*(Experts() for _ in range(8))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 1024, 512).cuda()

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


_CASES = {"gpt2": _gpt2, "experts": _experts}


def _measure(case: str, mode: str, steps: int) -> dict[str, float]:
    """Time steps in this process; seconds of the processor, so that waiting counts for nothing."""
    import ullage

    ullage.emulate("A100", values=mode)
    import torch

    from ullage.gpu.values.start import current

    torch.manual_seed(0)
    step = _CASES[case]()
    taken = []
    for _ in range(_WARM + steps):
        before = time.process_time()
        step()
        taken.append(time.process_time() - before)
    return {
        "first_s": taken[0],
        "median_s": statistics.median(taken[_WARM:]),
        "kept_bytes": current().evaluation.peak_bytes,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    """Print a table of the cases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", choices=_CASES)
    parser.add_argument("--mode", choices=("on", "off"))
    parser.add_argument("--steps", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.case and arguments.mode:
        print(json.dumps(_measure(arguments.case, arguments.mode, arguments.steps)))
        return
    print("case     off ms  on ms  ratio  first step on s  kept MiB  host MiB more")
    for case in _CASES:
        found = {}
        for mode in ("off", "on"):
            command = [sys.executable, "-m", "benchmarks.values.cost", "--case", case, "--mode", mode]
            done = subprocess.run(
                [*command, "--steps", str(arguments.steps)], capture_output=True, text=True, check=True
            )
            found[mode] = json.loads(done.stdout.splitlines()[-1])
        off, on = found["off"], found["on"]
        ratio = on["median_s"] / off["median_s"]
        more = (on["host_bytes"] - off["host_bytes"]) / 2**20
        print(
            f"{case:8} {off['median_s'] * 1e3:6.1f} {on['median_s'] * 1e3:6.1f} {ratio:6.2f} {on['first_s']:16.2f} "
            f"{on['kept_bytes'] / 2**20:9.1f} {more:14.1f}"
        )


if __name__ == "__main__":
    main()
