"""Explain an out-of-memory error where it is caught."""

import ullage

ullage.emulate("T4")  # leave this out on a machine with a GPU

import torch

try:
    torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    explanation = ullage.explain(error)
    print(explanation.sentence)
