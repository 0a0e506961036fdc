"""QLoRA: how much a GPU differs from itself when threads load NF4 weights, and from the emulated GPU.

transformers 5.17 loads weights that it quantizes itself in one thread, because threads filled the GPU with weights that
waited for that (pull request 44576 of March 2026); 5.0 used threads. Weights that are stored as NF4 are loaded in
threads. So a recipe whose checkpoint is not quantized is measured as 5.17 loads it ("default") and as 5.0 did
("threads"); one whose checkpoint is quantized as 5.17 loads it ("default") and with HF_DEACTIVATE_ASYNC_LOAD
("one thread").

One process imports everything, and forks a child for each run. On the emulated GPU, the threads keep given orders
instead of those that the machine gives them, so that its answer is the same each time; and one thread loads once.
"""

import contextlib
import importlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ...figure import Figure, recorded
from ...instruments import COUNTERS
from ...process import die_with_parent, last_error, run_python
from ...question import Answer, GpuUnderTest, Question
from .. import pairs
from .model import train
from .recipes import RECIPES, Recipe, make_checkpoint

RUNS: Final = 4
ORDERS: Final = ("kept", "queued")
"""In which threads load on the emulated GPU, one for each run: copies go on at once, or wait for one another."""
LIMIT_SECONDS: Final = 120  # of a run
_IMPORTED: Final = (
    "bitsandbytes", "torch._dynamo", "accelerate", "peft", "peft.tuners.lora.bnb", "transformers",
    "transformers.integrations.bitsandbytes", "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
)  # fmt: skip


def questions() -> list[Question]:
    """Every recipe, with all its runs."""
    return [
        Question(
            name=f"nf4/{name}",
            about=f"peaks of QLoRA, loaded {RUNS} times by threads and {RUNS} times by one",
            seconds=35,
            needs=("bitsandbytes", "transformers", "peft", "accelerate"),
            environment={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},  # asking whether there is a GPU must not initialise it
        )
        for name in RECIPES
    ]


def groups(recipe: Recipe) -> dict[str, bool]:
    """Return how a recipe's checkpoint is loaded, and whether that is in threads."""
    return {"default": True, "one thread": False} if recipe.quantized else {"default": False, "threads": True}


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Make the checkpoint, and train with it in one child after the other."""
    (name,) = question.parts
    recipe = RECIPES[name]
    with _no_gpu_asked():
        for module in _IMPORTED:
            importlib.import_module(module)
    import torch

    torch.set_num_threads(1)  # threads of the host would not be there after the fork
    with tempfile.TemporaryDirectory(prefix="ullage-nf4-") as folder:
        runner = _Runner(name, Path(folder), gpu)
        found = {
            how: {
                "in_threads": in_threads,
                "runs": [runner.run(how, order) for order in _orders(gpu, in_threads=in_threads)],
            }
            for how, in_threads in groups(recipe).items()
        }
    return {"groups": found, "forked": runner.forks}


def _orders(gpu: GpuUnderTest, *, in_threads: bool) -> tuple[str, ...]:
    if not gpu.emulated:
        return ("any",) * RUNS
    return ORDERS if in_threads else ("any",)


@contextlib.contextmanager
def _no_gpu_asked() -> Iterator[None]:
    """Answer for the GPU while bitsandbytes is imported: it asks for the compute capability and needs none.

    The question would initialise CUDA, after which this process cannot fork children that use the GPU.
    """
    import torch

    asked = torch.cuda.get_device_capability
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    try:
        yield
    finally:
        torch.cuda.get_device_capability = asked


class _Runner:
    """Runs each training in a forked child, or in a process of its own where a fork fails."""

    def __init__(self, name: str, folder: Path, gpu: GpuUnderTest) -> None:
        self._name, self._folder, self._gpu = name, folder, gpu
        self._sizes = make_checkpoint(RECIPES[name], folder)
        self.forks = True

    def run(self, how: str, order: str) -> Answer:
        """Train once.

        Raises:
            RuntimeError: the training failed, also in a process of its own.
        """
        from tests.truth.runner import in_child

        if self.forks:
            found = in_child(lambda: self._in_fork(how, order))
            if "error" not in found:
                return found
            print(found["error"], flush=True)
            self.forks = False
        return self._in_process(how, order)

    def _in_fork(self, how: str, order: str) -> Answer:
        die_with_parent()
        return train(RECIPES[self._name], self._folder, how, self._sizes, order)

    def _in_process(self, how: str, order: str) -> Answer:
        done = run_python(
            ["-m", train.__module__, self._name, str(self._folder), how, order, json.dumps(self._sizes)],
            environment=self._gpu.environment(),
            limit_seconds=LIMIT_SECONDS,
        )
        if done.returncode:
            why = last_error(done.stderr) or "no error text"
            raise RuntimeError(f"the training with loading by {how} ended with code {done.returncode}: {why}")
        found: Answer = json.loads(done.stdout.rsplit("@", 1)[1])
        return found


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """One thread has to give the same bytes each time, and those of the emulated GPU; threads have to lie within."""
    figures = [recorded("trainings are forked from one process", "loading", real["forked"])]
    for how, there, here in pairs("ways to load", real["groups"], emulated["groups"]):
        figures.append(_loaders(how, there, here))
        make = _threads if here["in_threads"] else _one_thread
        for moment, _, _ in pairs("moments", there["runs"][0]["moments"], here["runs"][0]["moments"]):
            figures += make(f"{how}, {moment}", _values(there, moment), _values(here, moment))
    return figures


def _loaders(how: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> Figure:
    def used(group: Mapping[str, Any]) -> bool:
        return any(run["loading_threads"] for run in group["runs"])

    return Figure(name=f"{how}, threads load", kind="loading", real=used(there), emulated=used(here))


def _values(group: Mapping[str, Any], moment: str) -> dict[str, list[int]]:
    """Return each counter at a moment, by run."""
    runs = [run["moments"][moment] for run in group["runs"]]
    return {counter: [run[counter] for run in runs] for counter in runs[0]}


def _label(counter: str) -> tuple[str, str]:
    """Return how a counter is called in a figure's name, and its kind."""
    return (f"peak of {counter}" if counter in COUNTERS else counter), counter.removesuffix("_bytes")


def _one_thread(name: str, there: dict[str, list[int]], here: dict[str, list[int]]) -> Iterator[Figure]:
    for counter, values, ours in pairs("counters", there, here):
        label, kind = _label(counter)
        yield Figure(name=f"{name}, {label}", kind=kind, real=values[0], emulated=ours[0])
        different = len(set(values))
        yield Figure(name=f"{name}, different values of {label}", kind="different runs", real=different, emulated=1)


def _threads(name: str, there: dict[str, list[int]], here: dict[str, list[int]]) -> Iterator[Figure]:
    for counter, values, ours in pairs("counters", there, here):
        label, kind = _label(counter)
        low, high = min(ours), max(ours)
        for which, real in (("least", min(values)), ("largest", max(values))):
            figure = f"{name}, {which} {label}"
            yield Figure(name=figure, kind=f"{kind}, threads", real=real, interval=(low, high))
        overlap = min(values) <= high and max(values) >= low
        yield Figure(name=f"{name}, intervals of {label} overlap", kind="overlap", real=overlap, emulated=True)
        yield recorded(f"{name}, spread of {label}", "spread", max(values) - min(values))
