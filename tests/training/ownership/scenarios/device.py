"""What libraries, graphs and pools hold, and tensors of other layouts."""

import gc
import os
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.training.ownership.scenarios.made import inputs, net, tensor
from tests.training.ownership.scenarios.scenario import End, scenario


@scenario("cuBLAS's workspace after a product", holder="cuBLAS", kind="workspace", mib=1, until="2.15")
def workspace(end: End) -> None:
    model = net()
    with torch.no_grad():
        model(inputs())
    end(model)


@scenario("a CUDA graph with its private pool", holder="'z'", mib=2, stays=True)
def cuda_graph(end: End) -> None:
    x = tensor()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        z = y + 1
    del y
    end(x, named=(graph, z))


@scenario("a MemPool with a tensor in it", holder="scores", mib=4, stays=True)
def mem_pool(end: End) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        scores = tensor(4)
    end(named=(scores, pool))


@scenario("memory that was asked of the allocator directly", holder="", kind="unknown", mib=4, stays=True)
def raw(end: End) -> None:
    address = torch.cuda.caching_allocator_alloc(4 << 20)
    end()
    torch.cuda.caching_allocator_delete(address)


@scenario("a batch of a loader with pinned memory and workers", holder="'batch'", mib=2)
def loader(end: End) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(8, 1 << 19))
    loader = torch.utils.data.DataLoader(
        data, batch_size=1, pin_memory=True, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    (pinned,) = next(iter(loader))
    batch = pinned.cuda(non_blocking=True)
    end(loader, named=(batch,))


@scenario("a tensor that was used on another stream", holder="batch", mib=4)
def other_stream(end: End) -> None:
    stream = torch.cuda.Stream()
    batch = tensor(4)
    with torch.cuda.stream(stream):
        batch.mul_(2)
    batch.record_stream(stream)
    end(named=(batch,))


@scenario("a tensor in a torch.multiprocessing.Queue", holder="", kind="unknown", mib=4, stays=True)
def process_queue(end: End) -> None:
    context = torch.multiprocessing.get_context("spawn")
    waiting = context.Queue()
    waiting.put(tensor(4))
    while waiting.empty():
        time.sleep(0.001)
    end()
    waiting.close()
    waiting.join_thread()
    for counter in Path("/dev/shm").glob(f"torch_{os.getpid()}_*"):
        counter.unlink()  # torch's count of who has the tensor, which nobody has fetched
    del waiting, context
    gc.collect()  # with the queue go its semaphores


@scenario("a sparse tensor", holder="sparse", mib=4)
def sparse(end: End) -> None:
    torch.sparse.check_sparse_tensor_invariants.disable()
    indices = torch.zeros(2, 1 << 17, dtype=torch.int64, device="cuda")
    values = torch.zeros(1 << 19, device="cuda")[: 1 << 17]
    sparse = torch.sparse_coo_tensor(indices, values, (1024, 1024))
    del indices, values
    end(named=(sparse,))


@scenario("a sparse tensor of compressed rows", holder="rows", mib=3)
def compressed(end: End) -> None:
    torch.sparse.check_sparse_tensor_invariants.disable()
    starts = torch.zeros(1025, dtype=torch.int64, device="cuda")
    columns = torch.zeros(1 << 17, dtype=torch.int64, device="cuda")
    values = torch.zeros(1 << 19, device="cuda")[: 1 << 17]
    with warnings.catch_warnings(action="ignore"):  # "in beta state"
        rows = torch.sparse_compressed_tensor(starts, columns, values, (1024, 1024), layout=torch.sparse_csr)
    del starts, columns, values
    end(named=(rows,))


@scenario("a nested tensor", holder="nested", mib=4)
def nested_tensor(end: End) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(512, 1024), torch.zeros(512, 1024)], layout=torch.jagged).cuda()
    end(named=(nested,))


@scenario("half precision and views as other types", holder="halves", mib=2)
def halves(end: End) -> None:
    halves = [torch.zeros(1 << 20, dtype=torch.bfloat16, device="cuda"), torch.zeros(1 << 20, device="cuda").half()]
    again = halves[0].view(torch.int32)
    end(again, named=(halves,))


class Labelled(torch.Tensor):
    """A subclass of a user."""

    label = "none"


@scenario("a subclass of Tensor", holder="labelled", mib=4)
def subclass(end: End) -> None:
    labelled: Any = tensor(4).as_subclass(Labelled)
    end(named=(labelled,))


@scenario("a storage without its tensor", holder="storage", mib=4)
def storage(end: End) -> None:
    storage = tensor(4).untyped_storage()
    end(named=(storage,))


@scenario("a capsule for another library", holder="'capsule'", mib=4)
def capsule(end: End) -> None:
    capsule = torch.utils.dlpack.to_dlpack(tensor(4))
    end(named=(capsule,))


@scenario("a tensor of another library's memory, which cannot be resized", holder="'shared'", mib=4)
def imported(end: End) -> None:
    shared = torch.from_dlpack(tensor(4))
    part = shared[10:]
    end(part, named=(shared,))


@scenario(
    "a CUDA graph's pool with a workspace", holder="'graph'", kind="private pool", mib=8, stays=True, until="2.15"
)
def captured_model(end: End) -> None:
    model, x = net(), inputs()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    end(model, x, y, graph)


@scenario("a traced module and the example that it was traced with", holder="'traced'", kind="parameter", mib=8)
def traced(end: End) -> None:
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    traced = torch.jit.trace(net(), inputs(), check_trace=False)
    end(traced)


@scenario("a frozen TorchScript module, whose weights are constants", holder="'frozen'", mib=4)
def frozen(end: End) -> None:
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    frozen = torch.jit.freeze(torch.jit.trace(net().eval(), inputs(), check_trace=False))
    end(frozen)


@scenario("a traced function with a constant", holder="'look_up'", mib=4)
def traced_function(end: End) -> None:
    warnings.simplefilter("ignore")  # TorchScript is deprecated

    def looking_up() -> Any:
        table = tensor(4)
        return torch.jit.trace(lambda x: x + table, tensor(4), check_trace=False)

    look_up = looking_up()
    end(look_up)


@scenario("a compiled model", holder="model", kind="parameter", mib=8, slow=True)
def compiled(end: End) -> None:
    warnings.simplefilter("ignore")  # the compiler of torch imports what torch itself calls deprecated
    model = net()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(inputs())
    end(model, named=(compiled,))


@scenario("a tensor that a compiled function has as a constant", holder="table", mib=4, slow=True)
def compiled_closure(end: End) -> None:
    warnings.simplefilter("ignore")  # the compiler of torch imports what torch itself calls deprecated

    def looking_up() -> Any:
        table = tensor(4)
        return torch.compile(lambda x: x + table, backend="eager")

    look_up = looking_up()
    look_up(tensor(4))
    end(named=(look_up,))


@scenario("torch.compile with CUDA graphs", holder="model", kind="parameter", mib=8, needs="triton", slow=True)
def compiled_graphs(end: End) -> None:
    warnings.simplefilter("ignore")  # the compiler of torch imports what torch itself calls deprecated
    model = net()
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            output = compiled(inputs())
    end(model, output, named=(compiled,))
