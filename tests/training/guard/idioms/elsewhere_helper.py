"""A module of the user's whose functions keep state in its global names."""

import torch

calls = 0
seen: list[torch.Tensor] = []
mean = torch.zeros(())


def counted() -> int:
    """Count calls in a list of tensors."""
    global calls
    calls += 1
    seen.append(torch.ones(()))
    return len(seen)


def moved() -> torch.Tensor:
    """Move a mean."""
    global mean
    mean = mean + 1
    return mean.clone()
