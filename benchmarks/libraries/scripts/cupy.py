"""CuPy: arrays in its own memory pool, a custom kernel by NVRTC, and an array shared with torch."""

import cupy
import torch
from counted import Counted

VALUES = 1 << 22


def run(counted: Counted) -> None:
    array = cupy.zeros(VALUES, dtype=cupy.float32)
    counted.equal("one array in CuPy's pool", counted.look(), 4 * VALUES)
    kernel = cupy.RawKernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
    kernel((VALUES // 256,), (256,), (array,))
    assert torch.from_dlpack(array).shape == (VALUES,)
