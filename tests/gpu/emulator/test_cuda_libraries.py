"""The emulated CUDA libraries through ctypes, as libraries beside PyTorch call them: runtime and driver."""

from typing import Any

import pytest

from tests.shared.fresh import answer

PROLOGUE = """
import ctypes as c, ullage
from ullage.gpu.emulator import library
ullage.emulate("RTX 3060", total_memory_bytes=1 << 30, context_bytes=1 << 28)
folder = sorted(library.FOLDER.iterdir())
from ullage.gpu.emulator.torch_build import find_torch
major = find_torch().cuda[0]
cuda = c.CDLL(f"libcuda.so.1")
cudart = c.CDLL(f"libcudart.so.{major}")
def free():
    left, total = c.c_size_t(), c.c_size_t()
    assert cudart.cudaMemGetInfo(c.byref(left), c.byref(total)) == 0
    return left.value
def pointer(): return c.c_void_p()
def size(n): return c.c_size_t(n)
def at(address): return c.c_void_p(address) if isinstance(address, int) else address
MIB = 1 << 20
def location(kind, number): return c.c_uint64(kind | number << 32)
"""


def told(code: str) -> Any:
    return answer(PROLOGUE + code)


def test_managed_memory_is_the_hosts_and_counts_where_it_is_prefetched_to() -> None:
    values = told("""
whole = free()
p = pointer()
assert cudart.cudaMallocManaged(c.byref(p), size(64 * MIB), 1) == 0
c.memset(p.value, 7, 16)                       # the host writes to it
read = c.string_at(p.value, 16) == b"\\7" * 16
apart = whole - free()
class Attributes(c.Structure):
    _fields_ = [("type", c.c_int), ("device", c.c_int), ("a", c.c_void_p), ("b", c.c_void_p), ("more", c.c_long * 8)]
seen = Attributes()
assert cudart.cudaPointerGetAttributes(c.byref(seen), at(p.value + 5)) == 0
prefetch = cuda.cuMemPrefetchAsync_v2
assert prefetch(p, size(32 * MIB), location(1, 0), 0, None) == 0
part = whole - free()
assert prefetch(p, size(32 * MIB), location(1, 0), 0, None) == 0    # again: it is there already
again = whole - free() - part
assert prefetch(p, size(64 * MIB), location(1, 0), 0, None) == 0
on_card = whole - free()
place = c.c_int()
assert cudart.cudaMemRangeGetAttribute(c.byref(place), size(4), 4, p, size(64 * MIB)) == 0
q = pointer()
assert cudart.cudaMalloc(c.byref(q), size(whole - 16 * MIB)) == 0    # the card's own memory drives it out
driven_out = whole - free()
assert cudart.cudaFree(q) == 0
assert prefetch(p, size(64 * MIB), location(2, 0), 0, None) == 0
back = whole - free()
assert cudart.cudaFree(p) == 0
levels = [apart // MIB, part // MIB, on_card // MIB]
tell([read, seen.type, *levels, place.value, (whole - driven_out) // MIB, back, cudart.cudaFree(p), again])
""")
    assert values == [True, 3, 0, 32, 64, 0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    "free", ["cudart.cudaFreeAsync(p, None)", "cuda.cuMemFreeAsync(p, None)", "cudart.cudaFree(p)"]
)
def test_to_free_a_block_of_a_pool_twice_is_an_error_and_frees_nothing(free: str) -> None:
    values = told(f"""
p, q = pointer(), pointer()
assert cudart.cudaMallocAsync(c.byref(p), size(MIB), None) == 0
assert cudart.cudaMallocAsync(c.byref(q), size(MIB), None) == 0
assert {free} == 0
held = free()
tell([{free}, held == free()])
""")
    assert values == [1, True]


def test_a_pool_keeps_what_is_freed_until_the_next_synchronisation_or_as_its_threshold_says() -> None:
    values = told("""
whole = free()
pool, p, q = pointer(), pointer(), pointer()
value = c.c_uint64()
def of(attribute):
    assert cudart.cudaMemPoolGetAttribute(pool, attribute, c.byref(value)) == 0
    return value.value // MIB
assert cudart.cudaDeviceGetDefaultMemPool(c.byref(pool), 0) == 0
assert cudart.cudaMallocAsync(c.byref(p), size(40 * MIB), None) == 0
assert cudart.cudaMallocAsync(c.byref(q), size(1 * MIB), None) == 0
used, reserved = of(7), of(5)
first = p.value
assert cudart.cudaFreeAsync(p, None) == 0
kept = (whole - free()) // MIB
assert cuda.cuMemAllocAsync(c.byref(p), size(40 * MIB), None) == 0
again = p.value == first
assert cuda.cuMemFreeAsync(p, None) == 0
assert cudart.cudaStreamSynchronize(None) == 0
left = (whole - free()) // MIB
threshold = c.c_uint64((1 << 64) - 1)
assert cudart.cudaMemPoolSetAttribute(pool, 4, c.byref(threshold)) == 0
assert cudart.cudaFree(q) == 0
assert cudart.cudaDeviceSynchronize() == 0
held = (whole - free()) // MIB
assert cudart.cudaMemPoolTrimTo(pool, size(0)) == 0
tell([used, reserved, kept, again, left, held, of(5), of(6), whole - free()])
""")
    assert values == [41, 72, 72, True, 32, 32, 0, 72, 0]


def test_a_pool_of_ones_own_fails_alone_and_goes_with_its_memory() -> None:
    values = told("""
whole = free()
class Properties(c.Structure):
    _fields_ = [("kind", c.c_int), ("handles", c.c_int), ("place", c.c_int * 2), ("rest", c.c_char * 72)]
pool, p = pointer(), pointer()
assert cudart.cudaMemPoolCreate(c.byref(pool), c.byref(Properties(1, 0, (1, 0)))) == 0
assert cudart.cudaMallocFromPoolAsync(c.byref(p), size(100 * MIB), pool, None) == 0
q = pointer()
too_much = cudart.cudaMallocFromPoolAsync(c.byref(q), size(whole), pool, None)
cudart.cudaGetLastError()
assert cudart.cudaFreeAsync(p, None) == 0
assert cudart.cudaMemPoolDestroy(pool) == 0
tell([too_much, q.value, whole - free()])
""")
    assert values == [2, None, 0]


def test_memory_of_another_process_costs_this_one_nothing() -> None:
    values = told("""
whole = free()
p, q, r = pointer(), pointer(), pointer()
class Handle(c.Structure):
    _fields_ = [("bytes", c.c_char * 64)]
handle = Handle()
assert cudart.cudaMalloc(c.byref(p), size(8 * MIB)) == 0
assert cudart.cudaIpcGetMemHandle(c.byref(handle), p) == 0
assert cudart.cudaIpcOpenMemHandle(c.byref(q), handle, 1) == 0
assert cuda.cuIpcOpenMemHandle_v2(c.byref(r), handle, 1) == 0
closed = [cudart.cudaIpcCloseMemHandle(q) for _ in range(3)]
tell([(whole - free()) // MIB, q.value == r.value, q.value != p.value, closed])
""")
    assert values == [8, True, True, [0, 0, 1]]


def test_what_is_asked_for_beside_pytorch_is_told_by_who_asked() -> None:
    values = told("""
import torch
torch.empty(5 * MIB, device="cuda")
p, q = pointer(), pointer()
assert cudart.cudaMalloc(c.byref(p), size(3 * MIB)) == 0
assert cuda.cuMemAlloc_v2(c.byref(q), size(4 * MIB)) == 0
assert cuda.cuMemFree_v2(q) == 0
assert cudart.cudaMallocManaged(c.byref(q), size(6 * MIB), 1) == 0
figures = list(library.outside().values())
tell([[f.calls, f.bytes, f.peak_bytes, f.managed_peak_bytes] for f in figures])
""")
    assert values == [
        [3, 3 << 20, 7 << 20, 6 << 20]
    ]  # ctypes calls through one library; PyTorch's allocator is not in it


def test_arrays_rows_and_boxes_are_counted_and_copied() -> None:
    values = told("""
whole = free()
p, pitch = pointer(), c.c_size_t()
assert cudart.cudaMallocPitch(c.byref(p), c.byref(pitch), size(100), size(3)) == 0
rows, back = c.create_string_buffer(b"abcdefghi", 9), c.create_string_buffer(9)
assert cudart.cudaMemcpy2D(p, pitch, rows, size(3), size(3), size(3), 1) == 0
assert cudart.cudaMemcpy2D(back, size(3), p, pitch, size(3), size(3), 2) == 0
class Channels(c.Structure):
    _fields_ = [("bits", c.c_int * 4), ("kind", c.c_int)]
array = pointer()
before = free()
assert cudart.cudaMallocArray(c.byref(array), c.byref(Channels((32, 0, 0, 0), 2)), size(1024), size(1024), 0) == 0
taken = before - free()
assert cudart.cudaFreeArray(array) == 0
tell([pitch.value, back.raw.decode(), taken // MIB, before - free()])
""")
    assert values == [512, "\0" * 9, 4, 0]  # a card computes nothing, and nothing tells what a library has sent


def test_the_driver_and_the_runtime_share_streams_events_graphs_and_callbacks() -> None:
    values = told("""
stream, event, graph, runnable = pointer(), pointer(), pointer(), pointer()
called = []
host = c.CFUNCTYPE(None, c.c_void_p)(called.append)
assert cuda.cuStreamCreate(c.byref(stream), 1) == 0
assert cuda.cuEventCreate(c.byref(event), 0) == 0
assert cudart.cudaEventRecord(event, stream) == 0
assert cuda.cuLaunchHostFunc(stream, host, at(11)) == 0
assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
state = c.c_int()
assert cudart.cudaStreamIsCapturing(stream, c.byref(state)) == 0
assert cuda.cuLaunchKernel(None) == 0
assert cuda.cuStreamEndCapture(stream, c.byref(graph)) == 0
nodes = c.c_size_t()
assert cuda.cuGraphGetNodes(graph, None, c.byref(nodes)) == 0
assert cuda.cuGraphInstantiateWithFlags(c.byref(runnable), graph, c.c_ulonglong(0)) == 0
assert cuda.cuGraphLaunch_ptsz(runnable, stream) == 0
assert cuda.cuStreamDestroy_v2(stream) == 0
tell([called, state.value, nodes.value, library.unwritten_functions()])
""")
    assert values == [[11], 1, 1, {}]


def test_a_function_is_found_in_the_form_that_its_caller_knows() -> None:
    values = told("""
def asked(name, version):
    found, status = pointer(), c.c_int()
    cuda.cuGetProcAddress_v2(name, c.byref(found), version, c.c_uint64(0), c.byref(status))
    names = [name.decode() + suffix for suffix in ("", "_v2", "_v3", "_v4")]
    address = {n: c.cast(getattr(cuda, n), c.c_void_p).value for n in names if hasattr(cuda, n)}
    return next((n for n in address if address[n] == found.value), None)
tell([asked(b"cuMemAdvise", 12000), asked(b"cuMemAdvise", 12020), asked(b"cuCtxCreate", 11000),
      asked(b"cuMemAlloc", 12000), asked(b"cuNothing", 12000)])
""")
    assert values == ["cuMemAdvise", "cuMemAdvise_v2", "cuCtxCreate_v2", "cuMemAlloc_v2", None]


def test_a_module_gives_functions_by_name_and_variables_by_the_cubins_symbols() -> None:
    values = told("""
import struct
name = b"\\0table\\0kernel\\0"
symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x11, 0, 3, 0, 3 * MIB) + struct.pack("<IBBHQQ", 7, 0x12, 0, 3, 0, 64)
def section(kind, offset=0, length=0, link=0):
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, length, link, 0, 0, 0)
start = 64 + 4 * 64
header = b"\\x7fELF\\2\\1\\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, 0, 64, 0, 0, 64, 4, 0)
table = section(0) + section(2, start, len(symbols), 2) + section(3, start + len(symbols), len(name)) + section(8)
cubin = header + table + symbols + name
module, function, address, length = pointer(), pointer(), c.c_uint64(), c.c_size_t()
before = free()
assert cuda.cuModuleLoadData(c.byref(module), cubin) == 0
assert cuda.cuModuleGetFunction(c.byref(function), module, b"kernel") == 0
text = c.c_char_p()
assert cuda.cuFuncGetName(c.byref(text), function) == 0
assert cuda.cuModuleGetGlobal_v2(c.byref(address), c.byref(length), module, b"table") == 0
none = cuda.cuModuleGetGlobal_v2(c.byref(address), c.byref(length), module, b"other")
taken = before - free()
assert cuda.cuModuleUnload(module) == 0
tell([text.value.decode(), length.value, none, taken // MIB, before - free()])
""")
    assert values == ["kernel", 3 << 20, 500, 4, 0]


@pytest.mark.parametrize("major", [12, 13])
def test_every_function_of_the_lists_is_there_under_its_version(major: int) -> None:
    missing = answer(f"""
import ctypes, pathlib
from ullage.gpu.emulator import library
card = library._card()
folder = library.FOLDER / "{major}"
lists = pathlib.Path({str(__file__)!r}).parents[3] / "src/ullage/gpu/emulator/cuda/symbols"
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
missing, count = [], 0
loaded = {{path: ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in sorted(folder.iterdir())}}
for file in sorted(lists.glob("*.txt")):
    version, found = None, None
    for line in file.read_text().splitlines():
        words = line.split()
        if words[:2] == ["soname", "{major}"]:
            version = words[3]
            name = words[2] if file.stem == "cuda" else f"libullage_{{file.stem}}.so"
            found = loaded[folder / name]
        elif found and words[0] not in ("soname", "#") and "{major}" in words[1:]:
            count += 1
            name, mark = words[0].encode(), version.encode()
            if not (hasattr(found, words[0]) and (mark == b"-" or libc.dlvsym(found._handle, name, mark))):
                missing.append(words[0])
tell([missing, count > 5000])
""")
    assert missing == [[], True]
