"""cuda-python's bindings of the driver: memory allocated outside torch."""

import torch
from counted import Counted
from cuda.bindings import driver

BYTES = 64 << 20


def run(counted: Counted) -> None:
    torch.cuda.synchronize()
    status, address = driver.cuMemAlloc(BYTES)
    assert status == driver.CUresult.CUDA_SUCCESS, status
    counted.equal("cuMemAlloc", counted.look(), BYTES)
    assert driver.cuMemFree(address)[0] == driver.CUresult.CUDA_SUCCESS
