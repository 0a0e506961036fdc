"""The source code of a chunked cross entropy, which ullage copies into the user's script."""

import torch
import torch.nn.functional
import torch.utils.checkpoint


def chunked_cross_entropy(logits, target, rows=1024, ignore_index=-100, label_smoothing=0.0):  # type: ignore[no-untyped-def]
    """Return the mean cross entropy of logits of shape (rows, classes), with little memory.

    Each chunk of rows is computed twice: once for the loss and once for the gradient.
    """

    def summed(logits, target):  # type: ignore[no-untyped-def]
        return torch.nn.functional.cross_entropy(
            logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="sum"
        )

    count = (target != ignore_index).sum()
    total = 0.0
    for chunk, wanted in zip(logits.split(rows), target.split(rows)):  # noqa: B905  both have as many rows
        total = total + torch.utils.checkpoint.checkpoint(summed, chunk, wanted, use_reentrant=False)
    return total / count
