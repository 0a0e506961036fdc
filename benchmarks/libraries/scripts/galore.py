"""GaLore: a step of AdamW in a low-rank projection of the gradients."""

import torch
from counted import Counted
from galore_torch import GaLoreAdamW

WIDTH, RANK = 2048, 128


def run(counted: Counted) -> None:
    parameter = torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    group = {"params": [parameter], "rank": RANK, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    optimizer = GaLoreAdamW([group], lr=1e-3)
    optimizer.step()
    state = optimizer.state[parameter]
    counted.equal(
        "two moments of the projection", state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes, 2 * 4 * WIDTH * RANK
    )
