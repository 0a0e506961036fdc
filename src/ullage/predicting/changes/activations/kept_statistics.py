"""The source code of contexts for checkpointed blocks, which ullage copies into the user's script."""

# mypy: allow-untyped-defs, allow-untyped-calls

import contextlib

import torch


def kept_statistics(block):
    """Return contexts for the forward pass of a checkpointed block and for its recomputation.

    The recomputation leaves running statistics, such as those of BatchNorm, as the forward pass has set them.
    """

    @contextlib.contextmanager
    def recomputation():
        parts = [part for part in block.modules() if part.training and getattr(part, "track_running_stats", False)]
        kept = [(buffer, buffer.clone()) for part in parts for buffer in part.buffers(recurse=False)]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)

    return contextlib.nullcontext(), recomputation()
