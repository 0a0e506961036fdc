"""PyTorch's allocators besides the usual path: cudaMallocAsync, CUDA graphs, pinned memory, settings, the driver.

Each question runs a small program (`programs.py`, `host.py`) that reads figures at its moments.
All of them are compared: what PyTorch counts and what the driver counts. Only how many batches a DataLoader's thread
has pinned at once depends on the time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...figure import Figure, recorded
from ...question import Answer, GpuUnderTest, Question
from .. import pairs
from . import host, programs

ASYNC, EXPANDABLE = "backend:cudaMallocAsync", "expandable_segments:True"
COUNTERS: Final = ("allocated_bytes", "requested_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program under one setting of PyTorch's allocator."""

    about: str
    run: Callable[[], programs.Moments]
    setting: str = ""
    alone: bool = False
    compared: bool = True


def _sized(setting: str) -> Program:
    return Program(about=f"allocations of many sizes, {setting or 'no setting'}", run=host.many_sizes, setting=setting)


PROGRAMS: Final = {
    "driver/default": Program(about="driver's free memory around allocations", run=programs.driver, alone=True),
    "driver/expandable": Program(
        about="the same with expandable segments", run=programs.driver, setting=EXPANDABLE, alone=True
    ),
    "driver/async": Program(about="the same with cudaMallocAsync", run=programs.driver, setting=ASYNC, alone=True),
    "async/gpt": Program(about="a small GPT with cudaMallocAsync", run=programs.gpt, setting=ASYNC, alone=True),
    "granularity": Program(about="granularity of cuMemMap", run=programs.granularity),
    "graph/training": Program(about="a CUDA graph of a training step", run=programs.graph_of_training),
    "graph/inference": Program(about="CUDA graphs in one pool", run=programs.graphs_of_inference),
    "graph/callables": Program(about="make_graphed_callables", run=programs.graphed_callables),
    "graph/expandable": Program(
        about="a CUDA graph with expandable segments", run=programs.graph_of_training, setting=EXPANDABLE
    ),
    "pool": Program(about="torch.cuda.MemPool", run=programs.memory_pool),
    "pinned/sizes": Program(about="sizes of pinned memory", run=host.pinned),
    "pinned/register": Program(
        about="the same with cudaHostRegister", run=host.pinned, setting="pinned_use_cuda_host_register:True"
    ),
    "pinned/loader": Program(about="a DataLoader that pins", run=host.loader),
    "pinned/loader_workers": Program(
        about="a DataLoader that pins, with workers", run=host.loader_with_workers, compared=False
    ),
    "settings/none": _sized(""),
    "settings/max_split": _sized("max_split_size_mb:32"),
    "settings/roundup": _sized("roundup_power2_divisions:4"),
    "settings/collect": _sized("garbage_collection_threshold:0.5"),
    "settings/together": _sized("max_split_size_mb:64,roundup_power2_divisions:8,garbage_collection_threshold:0.5"),
    "settings/expandable": _sized(EXPANDABLE),
}


def questions() -> list[Question]:
    """Every program."""
    return [
        Question(
            name=f"allocators/{name}",
            about=program.about,
            seconds=7,
            alone=program.alone,
            environment={"PYTORCH_CUDA_ALLOC_CONF": program.setting} if program.setting else {},
        )
        for name, program in PROGRAMS.items()
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Run the program."""
    program = PROGRAMS["/".join(question.parts)]
    return {"moments": program.run(), "setting": program.setting, "compared": program.compared}


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare every figure of every moment."""
    return list(_figures(real["moments"], emulated))


def _figures(moments: Mapping[str, Any], emulated: Answer) -> Iterator[Figure]:
    for moment, values, others in pairs("moments", moments, emulated["moments"]):
        for name, there, here in pairs(f"figures of {moment}", values, others):
            text, kind = f"{moment}, {name}", _kind(name.removeprefix("peak_"), emulated["setting"])
            if emulated["compared"]:
                yield Figure(name=text, kind=kind, real=there, emulated=here)
            else:
                yield recorded(text, kind, there)


def _kind(name: str, setting: str) -> str:
    """Return what a figure counts as; under cudaMallocAsync the driver decides what PyTorch counts."""
    if name.startswith("driver_"):
        return "free memory"
    if name in COUNTERS:
        kind = name.removesuffix("_bytes")
        return f"{kind}, driver's pool" if setting == ASYNC else kind
    return "allocator"
