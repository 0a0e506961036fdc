"""numba-cuda: a custom kernel on its own array and on a tensor."""

import numpy as np
import torch
from counted import Counted
from numba import cuda

VALUES = 1 << 22


@cuda.jit
def plus_one(x):
    at = cuda.grid(1)
    if at < x.size:
        x[at] += 1.0


def run(counted: Counted) -> None:
    array = cuda.to_device(np.zeros(VALUES, dtype=np.float32))
    counted.equal("one array by cuMemAlloc", counted.look(), 4 * VALUES)
    plus_one[VALUES // 256, 256](array)
    plus_one[VALUES // 256, 256](torch.zeros(VALUES, device="cuda"))
    cuda.synchronize()
    assert array.copy_to_host().shape == (VALUES,)
