"""Run a function in a separate process, which returns all of its GPU memory when it ends."""

import ullage

ullage.emulate("T4")  # leave this out on a machine with a GPU

import torch


def evaluate(batch: torch.Tensor) -> torch.Tensor:
    """Return the model's outputs, computed on the GPU."""
    model = torch.nn.Linear(1024, 16).cuda()
    return model(batch.cuda())


if __name__ == "__main__":
    outputs = ullage.isolated(evaluate, torch.randn(256, 1024))
    print(tuple(outputs.shape), outputs.device, torch.cuda.memory_allocated())
