"""Tests of memory, of which two fail. Without a GPU: `python -m pytest examples/test_memory.py --gpu-memory-gpu T4`."""

import pytest
import torch
from torch import nn

KEPT = []


def train(model: nn.Module, *, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(256, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.gpu_memory(peak="200MiB", leak=0, gpu="T4")
def test_a_step_fits():
    train(nn.Linear(2048, 2048).cuda(), steps=3)


@pytest.mark.gpu_memory(peak="100MiB", gpu="T4")
def test_a_larger_model_fits():
    train(nn.Linear(2048, 4096).cuda(), steps=3)


@pytest.mark.gpu_memory(leak=0, gpu="T4")
def test_nothing_stays():
    KEPT.append(torch.zeros(1 << 20, device="cuda"))
