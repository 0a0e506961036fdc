"""Have torch ask cuDNN about attention on an emulated card, forward and backward; cuDNN compiles each kernel.

    ULLAGE_CUDNN_CACHE=FOLDER python benchmarks/cudnn/attention.py A100

leaves the questions and cuDNN's answers in the folder, which `measure.py attention` reads.
"""

import sys
from itertools import product

import ullage

BATCHES = (1, 16)
HEADS = 8
LENGTHS = (256, 2048)
SIZES = (64, 128)  # of a head


def main(gpu: str) -> None:
    """Run every shape; each is a question forward and one backward."""
    ullage.emulate(gpu)
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for batch, length, size, causal in product(BATCHES, LENGTHS, SIZES, (False, True)):
        form = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
        q, k, v = (torch.empty(batch, HEADS, length, size, **form) for _ in range(3))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()


if __name__ == "__main__":
    main(*sys.argv[1:])
