"""Frees what no variable leads to: frames of errors, reference cycles, compiled code, workspaces, caches."""

import gc
import sys
import warnings
from collections.abc import Callable

import torch

from ullage.training.ownership.failure import clear_frames
from ullage.training.ownership.safe_inspection import is_of


def collect() -> None:
    """Free what no variable leads to: frames of exceptions, reference cycles, workspaces, PyTorch's caches."""
    for one in gc.get_objects():
        if is_of(one, (BaseException,)):
            clear_frames(one)
    one = None
    torch.clear_autocast_cache()
    if _has_compiled():
        with warnings.catch_warnings(action="ignore"):  # of modules that torch loads for it
            sys.modules["torch._dynamo"].reset()
    gc.collect()
    gc.collect()
    if not is_in_use():
        return
    torch._C._cuda_clearCublasWorkspaces()
    for device in devices():
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    empty_host: Callable[[], None] | None = getattr(torch._C, "_host_emptyCache", None)
    if empty_host is not None:
        empty_host()


def is_in_use() -> bool:
    """Tell whether the process uses a card."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def devices() -> range:
    """Return the numbers of the devices."""
    return range(torch.cuda.device_count() if is_in_use() else 0)


def _has_compiled() -> bool:
    """Tell whether torch.compile has compiled a function; compiled code holds graphs, weights and pools."""
    converter = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(getattr(converter, "input_codes", None), "seen", None))
