"""NVIDIA Warp: an array and a custom kernel, compiled by its own NVRTC."""

import warp as wp
from counted import Counted

VALUES = 1 << 22


@wp.kernel
def double(x: wp.array(dtype=float)):
    at = wp.tid()
    x[at] = 2.0 * x[at]


def run(counted: Counted) -> None:
    array = wp.zeros(VALUES, dtype=float, device="cuda:0")
    counted.equal("one array", counted.look(), 4 * VALUES)
    wp.launch(double, dim=VALUES, inputs=[array], device="cuda:0")
    assert array.numpy().shape == (VALUES,)
