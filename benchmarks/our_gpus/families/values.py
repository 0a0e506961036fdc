"""Programs in which values that only the GPU computes decide sizes: experts, boxes, words until the last, `unique`.

The programs are those of benchmarks/values. The real GPU runs each with its own random numbers, from two seeds; what
the host makes (weights, data) is the same in every run. The emulated GPU draws what it does not know, from three seeds,
and states an interval. Every run is a process of its own, forked from one that has imported the libraries; if that has
initialised the driver, a fork of it could not use the GPU, and each run imports them itself.
"""

import ctypes
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..figure import Figure, recorded
from ..process import ROOT, die_with_parent, last_error
from ..question import Answer, GpuUnderTest, Question
from . import pairs

EMULATES_ITSELF = True  # every run draws from its own seed
REAL_SEEDS, DRAWN_SEEDS = (0, 1), (0, 1, 2)
AT_ONCE = 2
NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED of cuda.h

Job = tuple[str, int]
"""A program and a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Programs that need the same libraries, which takes longer than running them."""

    about: str
    programs: tuple[str, ...]
    seconds: float
    imported: tuple[str, ...] = ()
    """Modules that are imported once, before the runs."""


GROUPS = {
    "experts": Group(
        about="mixtures of experts: torch.where, all as long as the fullest, rows dropped beyond a capacity",
        programs=("moe_where", "moe_padded", "moe_capacity"),
        seconds=7,
    ),
    "choices": Group(
        about="unique, packed lengths, masked_select, early exits, nonzero",
        programs=("distinct_words", "unpadded", "active_units", "early_exits", "near_pairs"),
        seconds=8,
    ),
    "detection": Group(
        about="torchvision's Mask R-CNN: boxes left by NMS",
        programs=("mask_rcnn",),
        seconds=6,
        imported=("torchvision.models.detection",),
    ),
    "pooling": Group(
        about="torch_geometric's TopKPooling",
        programs=("topk_pooling",),
        seconds=7,
        imported=("torch_geometric.nn",),
    ),
    "transformers": Group(
        about="transformers' Switch Transformer, and generate until every text has ended",
        programs=("switch_transformer", "generate_until_done"),
        seconds=15,
        imported=(
            "transformers.models.llama.modeling_llama",
            "transformers.models.switch_transformers.modeling_switch_transformers",
        ),
    ),
}


def questions() -> list[Question]:
    """Return a question for each group of programs."""
    return [
        Question(
            name=f"values/{name}",
            about=group.about,
            seconds=group.seconds,
            # Importing a library must not initialise CUDA, because processes are forked afterwards.
            environment={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        )
        for name, group in GROUPS.items()
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Run each program twice on a real GPU, or with three seeds on an emulated one."""
    group = GROUPS[question.parts[0]]
    if gpu.emulated:
        import ullage

        ullage.emulate(gpu.emulated, total_memory_bytes=gpu.total_memory_bytes, values="off")
    _import_libraries(group.imported)
    seeds = DRAWN_SEEDS if gpu.emulated else REAL_SEEDS
    found = _in_children(
        lambda program, seed: _run(program, seed, is_emulated=bool(gpu.emulated)),
        [(program, seed) for program in group.programs for seed in seeds],
        gpu,
    )
    return {"programs": {program: [found[program, seed] for seed in seeds] for program in group.programs}}


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Look whether every run of the real GPU lies in the interval of the emulated one's draws."""
    figures = []
    for program, runs, draws in pairs("programs", real["programs"], emulated["programs"]):
        if not runs:
            raise ValueError(f"{program} has no run")
        for run in runs:
            figures += _figures(f"{program}, seed {run['seed']}", run, draws)
    return figures


def _figures(name: str, run: dict[str, Any], draws: Sequence[dict[str, Any]]) -> list[Figure]:
    from ullage.predicting.prediction.verdict.draw_interval import interval_of_peaks

    peaks = interval_of_peaks([draw["peak_bytes"] for draw in draws])
    figures = [
        Figure(
            name=f"{name}, peak of allocated_bytes", kind="allocated, drawn", real=run["peak_bytes"], interval=peaks
        ),
        recorded(f"{name}, peak of reserved_bytes", "reserved", run["reserved_bytes"]),
    ]
    for what, size in run["sizes"].items():
        drawn = interval_of_peaks([draw["sizes"][what] for draw in draws if what in draw["sizes"]] or [0])
        figures.append(Figure(name=f"{name}, the most {what}", kind="values", real=size, interval=drawn))
    return figures


# ---- runs


def _import_libraries(modules: Sequence[str]) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "values"))
    import torch

    torch.set_num_threads(1)  # threads of the host would not be there after the fork
    with _without_shown_settings():
        for module in ("programs", "torch._dynamo", *modules):  # every optimizer's first step imports torch._dynamo
            importlib.import_module(module)


@contextmanager
def _without_shown_settings() -> Iterator[None]:
    """Have PyTorch not show its settings: torch_geometric asks for them, and then PyTorch initialises the driver."""
    import torch

    shown = torch.__config__.show
    torch.__config__.show = lambda: ""
    try:
        yield
    finally:
        torch.__config__.show = shown


def _run(program: str, seed: int, *, is_emulated: bool) -> dict[str, Any]:
    """Run a program in this process, and return the largest of each size and the peaks."""
    import torch
    from programs import PROGRAMS  # type: ignore[import-not-found]

    if is_emulated:
        _draw_from(seed)
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(seed)
    sizes: dict[str, list[float]] = {}
    PROGRAMS[program]("cuda", lambda what, size: sizes.setdefault(what, []).append(size))
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "seed": seed,
        "sizes": {what: max(each) for what, each in sizes.items()},
        "peak_bytes": stats["allocated_bytes.all.peak"],
        "reserved_bytes": stats["reserved_bytes.all.peak"],
        "failures": _failures() if is_emulated else {},
    }


def _draw_from(seed: int) -> None:
    """Have the emulated GPU draw what it does not know from a seed; the process it was forked from draws nothing."""
    from dataclasses import replace

    import torch

    from ullage.gpu.values.choice import ValuesChoice

    home: Any = sys.modules["ullage.gpu.emulator.emulate"]  # the package has a function of this name
    choice = ValuesChoice(mode="on", seed=seed, routing="drawn")
    home._give_values(replace(home._current, values=choice), torch)


def _failures() -> dict[str, str]:
    """Return what the host could not compute."""
    from ullage.gpu.values.start import current

    return dict(current().evaluation.failures)


# ---- processes


def _in_children(
    work: Callable[[str, int], dict[str, Any]], jobs: Sequence[Job], gpu: GpuUnderTest
) -> dict[Job, dict[str, Any]]:
    """Do the work for each job in a process of its own, two at a time.

    Raises:
        RuntimeError: one of them failed.
    """
    waiting, running, found = list(jobs), dict[int, Job](), dict[Job, dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            if waiting and len(running) < AT_ONCE:
                job = waiting.pop(0)
                running[_fork(work, job, _file(folder, job), can_share=_can_share(gpu))] = job
                continue
            child, status = os.wait()
            job = running.pop(child)
            text = _file(folder, job).read_text(encoding="utf-8") if _file(folder, job).is_file() else ""
            if status:
                why = last_error(text) or f"it ended with {os.waitstatus_to_exitcode(status)}"
                raise RuntimeError(f"{job[0]} with seed {job[1]} failed: {why}")
            found[job] = json.loads(text)
    return found


def _file(folder: str, job: Job) -> Path:
    return Path(folder) / f"{job[0]}-{job[1]}"


def _can_share(gpu: GpuUnderTest) -> bool:
    """Return whether a fork of this process can use the GPU: not if this process has initialised a real driver."""
    if gpu.emulated:
        return True
    count = ctypes.c_int()
    return ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count)) == NOT_INITIALIZED


def _fork(work: Callable[[str, int], dict[str, Any]], job: Job, file: Path, *, can_share: bool) -> int:
    """Fork a process that writes its answer, or its traceback, into a file; return its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        die_with_parent()
        if not can_share:
            os.chdir(ROOT)
            os.execv(sys.executable, [sys.executable, "-m", __name__, job[0], str(job[1]), str(file)])
        code = _write(work, job, file)
    finally:
        os._exit(code)  # without Python's exit, which belongs to the parent


def _write(work: Callable[[str, int], dict[str, Any]], job: Job, file: Path) -> int:
    """Write the answer, or the traceback, into a file; return the exit code."""
    try:
        text, code = json.dumps(work(*job)), 0
    except BaseException:
        text, code = traceback.format_exc(), 1
    file.write_text(text, encoding="utf-8")
    return code


def _run_alone(program: str, seed: int) -> dict[str, Any]:
    """Import what a program needs, and run it on a real GPU."""
    _import_libraries(next(group.imported for group in GROUPS.values() if program in group.programs))
    return _run(program, seed, is_emulated=False)


if __name__ == "__main__":
    sys.exit(_write(_run_alone, (sys.argv[1], int(sys.argv[2])), Path(sys.argv[3])))
