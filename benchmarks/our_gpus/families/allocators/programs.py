"""The small programs of `allocators.py`. Each returns figures by the moment at which they were read."""

import gc
from collections.abc import Callable
from typing import Any, Final

from ...instruments import peaks, reset_peaks

Moments = dict[str, dict[str, Any]]
MIB: Final = 1 << 20
SIZES: Final = (1000, MIB, 3 * MIB + 1, 9 * MIB, 21 * MIB, 50 * MIB + 12345, 130 * MIB)
STEPS: Final = 3


def counters() -> dict[str, Any]:
    """Return what PyTorch's allocator counts now."""
    import torch

    stats = torch.cuda.memory_stats()
    return {f"{name}_bytes": stats[f"{name}_bytes.all.current"] for name in ("allocated", "requested", "reserved")}


def settle() -> None:
    """Wait for the GPU, and give unused memory back to the driver."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


# ---- what the driver counts


def driver() -> Moments:
    """Allocate, free and give back, and read after each how much less is free in the driver."""
    import torch

    first = torch.empty(1, device="cuda", dtype=torch.uint8)
    torch.cuda.synchronize()
    free_at_first, _ = torch.cuda.mem_get_info()

    def moment() -> dict[str, Any]:
        torch.cuda.synchronize()
        return counters() | {"driver_used_bytes": free_at_first - torch.cuda.mem_get_info()[0]}

    found: Moments = {"the first byte": moment()}
    held = []
    for size in SIZES:
        held.append(torch.empty(size, device="cuda", dtype=torch.uint8))
        found[f"{size} bytes more"] = moment()
    del held[::2]
    found["every second one freed"] = moment()
    torch.cuda.empty_cache()
    found["after empty_cache"] = moment()
    held.clear()
    torch.cuda.empty_cache()
    found["all freed, after empty_cache"] = moment()
    del first
    return found


def gpt() -> Moments:
    """Train a small GPT; read PyTorch's peaks, and the driver around empty_cache."""
    import torch

    model, ids = _gpt(), torch.randint(0, 8192, (8, 256), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    found: Moments = {}
    for number in range(STEPS):
        reset_peaks()
        _step(model, ids, optimizer)
        torch.cuda.synchronize()
        found[f"step {number + 1}"] = {f"peak_{name}": value for name, value in peaks().items()}
    found["trained"] = counters()
    free, _ = torch.cuda.mem_get_info()
    settle()
    found["after empty_cache"] = counters() | {"driver_given_back_bytes": torch.cuda.mem_get_info()[0] - free}
    del model, optimizer
    settle()
    found["all freed, after empty_cache"] = counters() | {
        "driver_given_back_bytes": torch.cuda.mem_get_info()[0] - free
    }
    return found


def _gpt() -> Any:
    import torch

    torch.backends.mha.set_fastpath_enabled(False)  # else inference takes another way than training
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, 0.0, "gelu", batch_first=True, norm_first=True)
    layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Embedding(8192, 512), layers, torch.nn.Linear(512, 8192)).cuda()


def _step(model: Any, ids: Any, optimizer: Any) -> Any:
    import torch

    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def granularity() -> Moments:
    """Ask the driver for the granularity of memory that is mapped piece by piece."""
    import ctypes

    import torch

    torch.empty(1, device="cuda")

    class Properties(ctypes.Structure):
        """CUmemAllocationProp of cuda.h, for pinned memory on the first device."""

        _fields_ = [
            ("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location_type", ctypes.c_int),
            ("location", ctypes.c_int), ("meta", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8),
        ]  # fmt: skip

    asked, size = Properties(type=1, location_type=1), ctypes.c_size_t()
    found = {}
    for number, name in enumerate(("minimum", "recommended")):
        ask = ctypes.CDLL("libcuda.so.1").cuMemGetAllocationGranularity
        status = ask(ctypes.byref(size), ctypes.byref(asked), number)
        if status:
            raise RuntimeError(f"cuMemGetAllocationGranularity answers with error {status}")
        found[f"{name}_granularity_bytes"] = size.value
    return {"granularity": found}


# ---- CUDA graphs


def pools() -> dict[str, Any]:
    """Return the allocator's counters, and the bytes of the private pools in the snapshot."""
    import torch

    private = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) != (0, 0)]
    return counters() | {
        "private_pools": len({tuple(each["segment_pool_id"]) for each in private}),
        "private_segments_bytes": sorted(each["total_size"] for each in private),
        "private_allocated_bytes": sum(each["allocated_size"] for each in private),
    }


def graph_of_training() -> Moments:
    """Capture a whole training step, replay it, delete it."""
    import torch

    model, ids = _gpt(), torch.randint(0, 8192, (4, 128), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    _on_side_stream(lambda: _step(model, ids, optimizer))
    found = {"warmed up": pools()}
    graph = torch.cuda.CUDAGraph()
    reset_peaks()
    with torch.cuda.graph(graph):
        loss = _step(model, ids, optimizer)
    found["captured"] = pools() | {f"peak_{name}": value for name, value in peaks().items()}
    graph.replay()
    torch.cuda.synchronize()
    found["replayed"] = pools()
    del graph, loss
    return found | _given_back()


def graphs_of_inference() -> Moments:
    """Capture three batch sizes in one pool, as servers of language models do."""
    import torch

    model = _gpt().eval()
    inputs = {batch: torch.randint(0, 8192, (batch, 128), device="cuda") for batch in (16, 4, 1)}
    found: Moments = {}
    graphs: list[Any] = []
    with torch.no_grad():
        _on_side_stream(lambda: model(inputs[16]))
        for batch, ids in inputs.items():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=graphs[0][0].pool() if graphs else None):
                graphs.append((graph, model(ids)))
            found[f"captured {batch}"] = pools()
        for graph, _ in graphs:
            graph.replay()
    torch.cuda.synchronize()
    found["replayed"] = pools()
    del graphs[1:], graph
    found["one graph left"] = pools()
    graphs.clear()
    return found | _given_back()


def graphed_callables() -> Moments:
    """Graph forward and backward of a model, and train with it."""
    import torch

    model, ids = _gpt(), torch.randint(0, 8192, (4, 128), device="cuda")
    hidden = torch.randn(4, 128, 512, device="cuda", requires_grad=True)
    model[1] = torch.cuda.make_graphed_callables(model[1], (hidden,))
    gc.collect()
    torch.cuda.empty_cache()  # how much of the warm-up is in the cache depends on when autograd's thread lets go of it
    found = {"captured": pools()}
    optimizer = torch.optim.SGD(model.parameters())
    for number in range(2):
        reset_peaks()
        _step(model, ids, optimizer)
        found[f"step {number + 1}"] = pools() | {f"peak_{name}": value for name, value in peaks().items()}
    del model, optimizer
    return found | _given_back()


def memory_pool() -> Moments:
    """Allocate in a pool of the program's own."""
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = [torch.empty(size, device="cuda", dtype=torch.uint8) for size in SIZES]
    found = {"allocated": pools()}
    held += [torch.empty(size, device="cuda", dtype=torch.uint8) for size in SIZES]
    found["as much outside"] = pools()
    held.clear()
    torch.cuda.empty_cache()
    found["freed, after empty_cache"] = pools()
    del pool
    return found | _given_back()


def _on_side_stream(work: Callable[[], Any]) -> None:
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _given_back() -> Moments:
    gc.collect()
    deleted = pools()
    settle()
    return {"deleted": deleted, "deleted, after empty_cache": pools()}
