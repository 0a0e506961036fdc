"""Programs of `allocators.py`: pinned memory of the host, and allocations of many sizes for PyTorch's settings."""

import random
from typing import Any, Final

from ...instruments import peaks, reset_peaks
from .programs import MIB, Moments

PINNED: Final = (1, 1000, 4096, 5000, MIB - 1, MIB, MIB + 1, 3 * MIB, 10 * MIB, 33 * MIB, 100 * MIB)
COUNTED: Final = ("allocated_bytes", "active_bytes", "allocations", "active_requests")
LIMIT_BYTES: Final = 5 << 28
"""How much of the GPU the program of many sizes may use; `garbage_collection_threshold` is a share of it."""
ROUNDS: Final = 6


def host_counters() -> dict[str, Any]:
    """Return what PyTorch's allocator of pinned memory counts; it has times, too, which differ."""
    import torch

    stats = torch.cuda.host_memory_stats()
    found: dict[str, Any] = {
        f"{name}.{when}": stats[f"{name}.{when}"] for name in COUNTED for when in ("current", "peak")
    }
    return found | {name: stats[name] for name in ("num_host_alloc", "num_host_free")}


def pinned() -> Moments:
    """Pin sizes one by one, free some, pin them again, and give all back."""
    import torch

    torch.cuda.init()  # before, there are no statistics
    held, found = [], {}
    for size in PINNED:
        held.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
        found[f"{size} bytes more"] = host_counters()
    del held[::2]
    found["every second one freed"] = host_counters()
    held += [torch.empty(size // 2 + 1, dtype=torch.uint8, pin_memory=True) for size in PINNED]
    found["halves pinned"] = host_counters()
    copied = held[-1].to("cuda", non_blocking=True)
    del held[:]
    torch.cuda.synchronize()
    found["all freed"] = host_counters()
    torch._C._host_emptyCache()
    found["given back"] = host_counters()
    del copied
    return found


def loader() -> Moments:
    """Load batches that a DataLoader pins, without workers, and send them to the GPU."""
    return _loaded(workers=0)


def loader_with_workers() -> Moments:
    """Load batches that a DataLoader's thread pins: how many are pinned at once depends on the time."""
    return _loaded(workers=2)


def _loaded(*, workers: int) -> Moments:
    import torch

    data = torch.utils.data.TensorDataset(torch.zeros(64, 3, 128, 128), torch.zeros(64, dtype=torch.long))
    batches = torch.utils.data.DataLoader(data, batch_size=10, num_workers=workers, pin_memory=True)
    found = {}
    for number, (pictures, labels) in enumerate(batches):
        on_gpu = pictures.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        found[f"batch {number + 1}"] = host_counters()
        del on_gpu
    return found


def many_sizes() -> Moments:
    """Allocate and free sizes that are drawn from a seed; some live long, a few grow."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / total)
    drawn = random.Random(0)
    held: list[Any] = []
    kept: list[Any] = []
    found = {}
    for number in range(ROUNDS):
        reset_peaks()
        growing = _empty(MIB)
        for _ in range(60):
            held.append(_empty(int(drawn.lognormvariate(14, 2.5)) % (96 * MIB) + 1))
            if len(held) > 25:
                held.pop(drawn.randrange(len(held)))
            if drawn.random() < 0.05:
                kept.append(held.pop())
            growing = _empty(growing.numel() + drawn.randrange(2 * MIB))  # the old one lives until the new one is there
        found[f"round {number + 1}"] = _state()
        held.clear()
        del growing
    kept.clear()
    torch.cuda.empty_cache()
    return found | {"freed, after empty_cache": _state()}


def _empty(size: int) -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device="cuda")


def _state() -> dict[str, Any]:
    import torch

    stats = torch.cuda.memory_stats()
    return {
        **{f"peak_{name}": value for name, value in peaks().items()},
        "segments_bytes": sorted(segment["total_size"] for segment in torch.cuda.memory_snapshot()),
        "inactive_split_bytes": stats["inactive_split_bytes.all.peak"],
        **{name: stats[name] for name in ("num_alloc_retries", "num_device_alloc", "num_device_free")},
        "oversize_segments": stats["oversize_segments.peak"],
    }
