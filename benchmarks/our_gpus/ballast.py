"""Memory that fills the GPU: what is left is chosen, and the driver's out-of-memory error is a real one.

`tensor` is a tensor of PyTorch's allocator, `driver` is memory that the process has taken from the driver next to
PyTorch, as a library would. Nothing else may use the GPU meanwhile.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_PAGE_BYTES = 2 << 20  # what the driver hands out memory in


@contextmanager
def ballast(left_bytes: int, *, kind: str) -> Iterator[int]:
    """Fill the GPU but for so many bytes while the block runs; yield the size of what fills it.

    Raises:
        RuntimeError: less than that is free, or the driver refuses.
    """
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    size = (free - left_bytes) // _PAGE_BYTES * _PAGE_BYTES
    if size <= 0:
        raise RuntimeError(f"{free:,} bytes of the GPU are free, and {left_bytes:,} have to be left: is it in use?")
    if kind == "tensor":
        kept = torch.empty(size, dtype=torch.uint8, device="cuda")
        try:
            yield size
        finally:
            del kept
            torch.cuda.empty_cache()
    else:
        yield from _from_driver(size)


def _from_driver(size: int) -> Iterator[int]:
    driver = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_ulonglong()
    code = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if code:
        raise RuntimeError(f"the driver refuses {size:,} bytes that it counts as free (cuMemAlloc: error {code})")
    try:
        yield size
    finally:
        driver.cuMemFree_v2(address)
