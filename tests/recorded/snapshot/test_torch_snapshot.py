"""What the installed PyTorch writes is read, by whichever half of it, in whichever way it was recorded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recorded.snapshot.writer import write_snapshot
from tests.shared import fresh
from ullage.recorded.history import Action
from ullage.recorded.snapshot.snapshot import load_snapshot

MIB = 1 << 20

# Beside tensors: a second stream, a pool of the user's own, a request that fails, and a range with a name.
WORK = """
import ctypes, json, pickle, ullage
ullage.emulate("RTX 4090")
import torch
def work():
    kept = [torch.empty(n << 20, dtype=torch.uint8, device="cuda") for n in (1, 3, 30)]
    del kept[1]
    with torch.profiler.record_function("## step ##"):
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            kept.append(torch.empty(100, device="cuda"))
    kept[0].record_stream(other)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept.append(torch.empty(5 << 20, dtype=torch.uint8, device="cuda"))
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    return kept, pool
def pickled_by_cpp():
    library = next(line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("libtorch_cuda.so"))
    write = ctypes.CDLL(library)["_ZN5torch4cuda24_memory_snapshot_pickledB5cxx11Ev"]
    text = (ctypes.c_uint64 * 4)()  # a std::string: where, how long, and room for a short one
    write.argtypes, write.restype = [ctypes.c_void_p], ctypes.c_void_p
    write(ctypes.byref(text))
    return ctypes.string_at(text[0], text[1])
def short():
    found = torch.cuda.memory._snapshot()
    return [[entry["action"], entry.get("addr", entry.get("device_free")), entry["size"], entry["stream"],
             entry.get("time_us", -1), len(entry.get("frames", ()))] for entry in found["device_traces"][0]]
"""


WAYS = {  # how it is recorded, and how it is written
    "python": ("_record_memory_history()", "pickle.dumps(torch.cuda.memory._snapshot())"),
    "cpp": ("_record_memory_history(stacks='python')", "pickled_by_cpp()"),
    "cpp_expandable": ("_record_memory_history(context=None)", "pickled_by_cpp()"),
    "ring": ("_record_memory_history(stacks='python', max_entries=5)", "pickle.dumps(torch.cuda.memory._snapshot())"),
    "legacy": (  # until 2023
        "_record_memory_history(True, trace_alloc_max_entries=1000, trace_alloc_record_context=True)",
        "pickle.dumps(torch.cuda.memory._snapshot())",
    ),
    "state": ("_record_memory_history('state')", "pickle.dumps(torch.cuda.memory._snapshot())"),
}
_CLOCK_US = 1000
EVERY = """
torch.cuda.init()
answers = {}
for name, (record, dump) in ways.items():
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{'expandable' in name}")
    eval("torch.cuda.memory." + record)
    kept = work()
    answers[name] = short()
    with open(f"{folder}/{name}.pickle", "wb") as file:
        file.write(eval(dump))
    torch.cuda.memory._record_memory_history(None)
    del kept
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(clear_history=True)
    torch.cuda.memory._record_memory_history(None)

import inspect
options = {"stacks": "python"}
if "record_pinned_host_memory" in inspect.signature(torch.cuda.memory._record_memory_history_impl).parameters:
    options["record_pinned_host_memory"] = True
torch.cuda.memory._record_memory_history(**options)
torch.cuda.memory._set_memory_metadata("first")
kept = [torch.empty(1 << 20, device="cuda"), torch.empty(1 << 20, pin_memory=True)]
torch.cuda.memory._set_memory_metadata("")
kept.append(torch.empty(1 << 20, device="cuda"))
if hasattr(torch.cuda.memory, "_annotate_tensor"):
    torch.cuda.memory._annotate_tensor(kept[-1], "packed")
torch.cuda.memory._dump_snapshot(f"{folder}/labelled.pickle")
host = torch.cuda.memory._snapshot().get("host_traces", ())
answers["pinned"] = ["record_pinned_host_memory" in options, len(host)]
tell(answers)
"""


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The work in every way, and what PyTorch says of it itself, in one process: to import torch takes long."""
    folder = tmp_path_factory.mktemp("dumped")
    return folder, fresh.answer(f"{WORK}\nfolder, ways = {str(folder)!r}, {WAYS!r}\n{EVERY}")


@pytest.mark.parametrize("name", WAYS)
def test_what_pytorch_writes_is_read(dumped: tuple[Path, dict[str, Any]], tmp_path: Path, name: str) -> None:
    """Every entry, with its stack, and every block; the state at the end adds up."""
    folder, answers = dumped
    history, told = load_snapshot(folder / f"{name}.pickle").devices[0], answers[name]
    names = [Action(action).name.lower() for action in history.action.tolist()]
    depths = [len(history.stacks.frames_of(stack)) for stack in history.stack.tolist()]
    columns = (history.address, history.size, history.stream, history.time_us)
    found = list(map(list, zip(names, *(column.tolist() for column in columns), depths, strict=True)))
    if name in ("ring", "state"):  # the first look is an entry too, which pushed another one out
        assert len(found) == len(told) == (5 if name == "ring" else 1)
        assert found[-1][0] == "snapshot"
    else:
        # Each snapshot converts the clock's ticks anew, and may round a time otherwise.
        assert all(abs(one[4] - other[4]) <= _CLOCK_US for one, other in zip(found, told, strict=False))
        assert [row[:4] + row[5:] for row in found[: len(told)]] == [row[:4] + row[5:] for row in told]
        assert {"alloc", "free_requested", "free_completed", "oom"} <= set(names)
        assert {"segment_map" if "expandable" in name else "segment_alloc"} <= set(names)
        assert history.size[history.action == Action.OOM].tolist() == [1 << 40]
        assert any(depths) == (name != "cpp_expandable")
    for segment in history.segments:
        assert sum(block.size for block in segment.blocks) == segment.size
        assert segment.is_expandable == ("expandable" in name)
    live = sum(block.requested for s in history.segments for block in s.blocks if block.state == "active_allocated")
    assert live == (1 + 30 + 5) * MIB + 400
    assert sum(segment.pool != 0 for segment in history.segments) == 1
    write_snapshot([history], tmp_path / "again.pickle")
    again = load_snapshot(tmp_path / "again.pickle").devices[0]
    assert np.array_equal(again.address, history.address)


def test_metadata_and_pinned_memory(dumped: tuple[Path, dict[str, Any]]) -> None:
    """What the user put on entries is there; pinned host memory is not taken for the card's (torch 2.14)."""
    folder, answers = dumped
    history = load_snapshot(folder / "labelled.pickle").devices[0]
    allocations = np.flatnonzero(history.action == Action.ALLOC)[-2:]
    labels = history.labels
    assert [labels.texts[number] if number >= 0 else "" for number in labels.metadata[allocations].tolist()] == [
        *("first", "")
    ]
    asked, host = answers["pinned"]
    assert bool(host) == asked
