"""The process in which each function of the values engine fails in turn: `python -m tests.gpu.values.injected 0 1`.

The two numbers select every n-th function, beginning with a remainder: 0 1 is all of them. A line of JSON for each
function: its name, and what was wrong while it failed.
"""

import functools
import gc
import hashlib
import importlib
import inspect
import json
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, Final

import ullage

ullage.emulate("A100", values="off")

from ullage.gpu.tracing.journal import Journal  # noqa: E402

journal = Journal()
journal.open()

import torch  # noqa: E402

from ullage.gpu import values as engine  # noqa: E402
from ullage.gpu.emulator import library  # noqa: E402
from ullage.gpu.values.choice import ValuesChoice  # noqa: E402
from ullage.gpu.values.interception import Interception  # noqa: E402
from ullage.gpu.values.start import Values, current  # noqa: E402

BOUNDARY: Final = {
    "dispatch": (
        *("Watch._is_own", "Watch._go_on", "Watch._told", "Watch._kernel_of", "Watch._fallback_of"),
        *("overload_of", "_run_on"),
    ),
    "faults": (),
}
"""What keeps errors away from the script, and so must not fail itself. No names: the whole module."""
INVOCATION: Final = ("__init__", "has_failed", "run", "run_plainly", "_done")
"""The methods of `Invocation` that run the script's own operator."""
BEFORE_THE_SCRIPT: Final = ("choice", "likely_reads")
"""Modules that ullage uses before it starts a script."""


class InjectedError(Exception):
    """An error that nothing in the engine expects."""


ERRORS: Final = (InjectedError, MemoryError, RecursionError)


def modules() -> list[ModuleType]:
    """Return the modules of the engine."""
    names = [each.name for each in pkgutil.iter_modules(engine.__path__)]
    return [importlib.import_module(f"{engine.__name__}.{name}") for name in names]


def functions() -> Iterator[tuple[str, Any, str]]:
    """Yield each function of the engine that may fail: its name, its owner, and the name in the owner."""
    for module in modules():
        short = module.__name__.rpartition(".")[2]
        if short in BEFORE_THE_SCRIPT or BOUNDARY.get(short) == ():
            continue
        for name, each in vars(module).items():
            if getattr(each, "__module__", None) != module.__name__:
                continue
            if isinstance(each, FunctionType | functools._lru_cache_wrapper):
                found = [(name, module, name)]
            elif inspect.isclass(each):
                found = [(f"{name}.{own}", each, own) for own, value in vars(each).items() if _is_code(value)]
            else:
                continue
            for full, owner, own in found:
                is_invocation = name == "Invocation" and own in INVOCATION
                if full not in BOUNDARY.get(short, ()) and not is_invocation:
                    yield f"{short}.{full}", owner, own


def _is_code(value: object) -> bool:
    return isinstance(value, FunctionType | staticmethod | classmethod | property)


@contextmanager
def failing(owner: Any, name: str, error: type[Exception]) -> Iterator[list[int]]:
    """Make one function of the engine raise an error whenever it is called. Yield a list with the number of calls."""
    calls = [0]

    def fails(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        raise error("injected")

    before = inspect.getattr_static(owner, name)
    original = getattr(before, "__func__", before)
    stand_in: Any = property(fails) if isinstance(before, property) else fails
    places = [(owner, name, before)]
    if not inspect.isclass(owner):
        stand_in = staticmethod(fails) if inspect.isclass(owner) else fails
        places += [
            (module, key, value)
            for module in modules()
            for key, value in list(vars(module).items())
            if value is before and module is not owner
        ]
    interception = current()._interception
    handlers: dict[str, Any] = interception._handlers if isinstance(interception, Interception) else {}
    bound = {key: each for key, each in handlers.items() if getattr(each, "__func__", None) is original}
    for place, key, _ in places:
        setattr(place, key, stand_in)
    handlers.update(dict.fromkeys(bound, fails))
    try:
        yield calls
    finally:
        for place, key, value in places:
            setattr(place, key, value)
        handlers.update(bound)


Log = list[tuple[str, Any, str]]


class Script:
    """What a script does, and what it reads from the GPU: names, values, and how well ullage knows them."""

    def __init__(self) -> None:
        self.log: Log = []
        self.events: list[Any] = []

    def read(self, name: str, read: Callable[[], Any]) -> None:
        """Read a value, and note the worst certainty of the read."""
        counts = current().reads.counts
        counts.clear()
        value = read()
        worst = max((each.certainty for each in counts), default=None)
        self.log.append((name, value, "not counted" if worst is None else worst.name))

    def run(self) -> str:
        """Train, write integers, and use what PyTorch calls the engine from; return a digest of the allocations."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.manual_seed(0)
        start = journal.length()
        self._train()
        self._write()
        self._call_back()
        events = journal.entries()[start:][["size", "kind", "allocated", "reserved"]]
        self.events = events.tolist()
        digest = hashlib.sha256(repr(self.events).encode()).hexdigest()
        self._count()
        return digest

    def _train(self) -> None:
        layers = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
        model = torch.nn.Sequential(*layers, torch.nn.Linear(144, 5)).cuda()
        # A scaler skips a step if a gradient is infinite. A step of this optimizer allocates nothing.
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        other = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            inputs, labels = torch.randn(2, 3, 8, 8).cuda(), torch.tensor([1, 3]).cuda()
            with torch.autocast("cuda"):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            other.step()
            optimizer.zero_grad()
        self.read("loss", lambda: loss.isnan().any().item())
        self.read("copy of a loss", lambda: bool(torch.isfinite(loss.detach().cpu())))

    def _write(self) -> None:
        table = torch.empty(20, dtype=torch.long, device="cuda")
        places = torch.arange(0, 20, 2).cuda()
        table[places] = torch.arange(10, device="cuda")
        table.put_(places[:3], places[:3] + 1)
        self.read("table", lambda: table[places].sum().item())
        torch.cumsum(places, 0, out=table[:10])
        self.read("out", lambda: table[9].item())
        counts = [torch.zeros(2, dtype=torch.int, device="cuda") for _ in range(2)]
        torch._foreach_add_(counts, 3)
        self.read("counts", lambda: counts[1].tolist())
        for _ in range(400):
            counts[0].add_(1)
        self.read("chain", lambda: counts[0][0].item())
        self.read("equal", lambda: torch.equal(counts[0], counts[0] + 0))
        grown = torch.arange(4, device="cuda")
        grown.resize_(6)
        self.read("grown", lambda: grown[3].item())
        routes = torch.rand(8, 4, device="cuda").topk(2).indices
        self.read("routes", lambda: routes.max().item() < 4)

    def _call_back(self) -> None:
        graph, numbers = torch.cuda.CUDAGraph(), torch.zeros(4, dtype=torch.int, device="cuda")
        with torch.cuda.graph(graph):
            numbers.add_(1)
        graph.replay()
        self.read("graph", lambda: int(numbers[0]) >= 0)
        other: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: other.append(torch.ones(3, dtype=torch.int).cuda() * 2))
        thread.start()
        thread.join()
        self.read("thread", lambda: other[0].sum().item())
        torch.cuda.memory._snapshot()
        for work in (lambda: numbers.view(3), lambda: numbers[torch.ones(2, 2, 2, device="cuda").bool()]):
            try:
                work()
            except (RuntimeError, IndexError) as error:
                self.log.append(("error", type(error).__name__, ""))
        try:
            torch.empty(1 << 50, device="cuda")
        except torch.OutOfMemoryError:
            self.log.append(("error", "out of memory", ""))

    def _count(self) -> None:
        mask = torch.tensor([True, False, True], device="cuda")
        self.read("mask", lambda: len(torch.arange(3, device="cuda")[mask]))
        self.read("unique", lambda: len(torch.unique(mask)))
        sparse = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [3.0, 4.0, 5.0], (2, 3), device="cuda")
        self.read("sparse", lambda: sparse.coalesce()._nnz())
        self.read("repeat", lambda: len(torch.repeat_interleave(torch.tensor([1, 2], device="cuda"))))


def reset() -> None:
    """Forget everything that an earlier run has recorded."""
    values = current()
    values._interception.has_ended = False
    values._interception.notes.clear()  # type: ignore[union-attr]
    values._interception.notes.is_recording_a_graph = False  # type: ignore[union-attr]
    values.faults.by_place.clear()
    values.evaluation.failures.clear()
    for name in ("answers", "within"):
        vars(values._interception._answers._here).pop(name, None)  # type: ignore[union-attr]


def wrong_with(script: Script, digest: str, whole: Script, whole_digest: str) -> list[str]:
    """Return how a run differs from the run without errors."""
    pairs = zip(script.events, whole.events, strict=False)
    where = next((number for number, (one, other) in enumerate(pairs) if one != other), "the end")
    found = [] if digest == whole_digest else [f"the allocations differ from event {where}"]
    if [name for name, *_ in script.log] != [name for name, *_ in whole.log]:
        return [*found, "the script took another way"]
    for (name, value, certainty), (_, expected, best) in zip(script.log, whole.log, strict=True):
        if certainty == "not counted" and best != certainty:
            found.append(f"the read {name} was not counted")
        if certainty in ("KNOWN", "ASSUMED", "") and value != expected:
            found.append(f"{name} is {value} and {certainty}; expected {expected}")
    return found


def main() -> None:
    """Write a line of JSON for each function that this part of the run covers."""
    remainder, parts = map(int, sys.argv[1:3])
    torch.ones(1, device="cuda").sum().item()
    Values(ValuesChoice(), library).start()
    for _ in range(2):
        whole = Script()
        whole_digest = whole.run()
    gc.collect()
    gc.freeze()
    print(json.dumps(["", whole.log]))
    every = list(functions())
    for number, (name, owner, own) in enumerate(every):
        if number % parts != remainder:
            continue
        error = ERRORS[number // parts % len(ERRORS)]
        reset()
        script, wrong = Script(), []
        with failing(owner, own, error) as calls:
            try:
                digest = script.run()
            except BaseException as raised:
                wrong = [f"the script got {type(raised).__name__}: {raised}"]
        if not wrong:
            wrong = wrong_with(script, digest, whole, whole_digest)
        values = current()
        is_reported = bool(values.faults.by_place or values.evaluation.failures)
        print(json.dumps([name, error.__name__, calls[0], is_reported, wrong]), flush=True)


if __name__ == "__main__":
    main()
