"""`ullage.Guard`: trainings with out-of-memory errors, whose gradients are compared with those of the same training
without one.

In 20 cases the error is raised at a chosen operation, in 5 PyTorch's allocator raises it itself. `cases` says
what has to come of each. Kernels run in their deterministic forms; each training also runs twice without errors and
without a guard, which shows the GPU's own noise, and once with a guard and without errors.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...ballast import ballast
from ...figure import Figure, recorded
from ...instruments import peaks, reset_peaks
from ...question import Answer, GpuUnderTest, Question
from .. import pairs
from .cases import EQUAL, GROUPS, REAL, Case, RealCase

if TYPE_CHECKING:
    from .runs import Run

SLACK_BYTES = 256 << 20
ROOM_UNIT_BYTES = 2 << 20
"""What the driver hands out memory in."""
GUARDED = "with a guard"
EXPECTED: dict[str, Case | RealCase] = {
    **{case.key: case for cases in GROUPS.values() for case in cases},
    **{case.key: case for cases in REAL.values() for case in cases},
}


def questions() -> list[Question]:
    """Injected errors in groups, then real ones under a limit and on a full GPU."""
    injected = {f"injected/{group}": f"{len(cases)} injected" for group, cases in GROUPS.items()}
    real = {f"real/{group}": f"{len(cases)} real" for group, cases in REAL.items()}
    return [
        Question(
            name=f"guard/{name}",
            about=f"trainings with {number} out-of-memory errors, whose gradients are compared with those without",
            seconds=15,
            alone=name == "real/full",
            needs=("ullage",),
            environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        )
        for name, number in (injected | real).items()
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Train without errors, then once for each case."""
    import torch

    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.allow_tf32 = False
    kind, group = question.parts
    _freeze()
    if kind == "real":
        return measure_real(group, computes=not gpu.emulated)
    return measure_injected(group, "cuda", computes=not gpu.emulated)


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare what came of each case with what has to, and what the guard did with what it did on the emulated GPU."""
    figures = []
    for name, words, ours in pairs("trainings", real["trainings"], emulated["trainings"]):
        if missing := ours.keys() - words.keys():  # a GPU that computes trains once more
            raise ValueError(f"{name} was not trained {', '.join(sorted(missing))}")
        figures += [
            Figure(name=f"{name}, {what}", kind="gradients", real=word, emulated=EQUAL) for what, word in words.items()
        ]
    for name, there, here in pairs("cases", real["cases"], emulated["cases"]):
        figures += _figures(name, there, here, computes=real["computes"])
    return figures


def _figures(name: str, real: dict[str, Any], emulated: dict[str, Any], *, computes: bool) -> list[Figure]:
    case = EXPECTED[name]
    made = [recorded(f"{name}, largest relative distances", "gradients", real["distances"])]
    outcome = Figure(name=f"{name}, gradients", kind="gradients", real=real["outcome"], emulated=case.expected)
    if case.needs_values:  # an emulated GPU takes the batch in parts
        return [*made, outcome if computes else recorded(outcome.name, outcome.kind, outcome.real)]
    log = Figure(name=f"{name}, what was done", kind="guard log", real=real["actions"], emulated=emulated["actions"])
    return [*made, outcome, log, *(_sizes(name, case, real, emulated) if isinstance(case, RealCase) else ())]


def _sizes(name: str, case: RealCase, real: dict[str, Any], emulated: dict[str, Any]) -> Iterator[Figure]:
    for which, there, here in pairs("trainings", real["peaks"], emulated["peaks"]):
        for counter, size, other in pairs("counters", there, here):
            is_near_end = case.fills_all and which == GUARDED and counter == "reserved_bytes"
            yield Figure(
                name=f"{name}, {which}, peak of {counter}",
                kind=counter.removesuffix("_bytes"),
                real=size,
                emulated=other,
                recorded_only=is_near_end,
            )


def _freeze() -> None:
    """Import what the first step would import, and keep all of that out of Python's garbage collection.

    A guard collects garbage after each error, which takes a second with torch's objects.
    """
    import importlib

    importlib.import_module("torch._dynamo")
    importlib.import_module("benchmarks.our_gpus.families.guard.runs")
    gc.collect()
    gc.freeze()


def measure_injected(group: str, device: str, *, computes: bool) -> Answer:
    """Train with an error at each of a group's places; also on the CPU."""
    from .runs import free, train_guarded
    from .trainings import FULL_TEXT, PIECES_TEXT, TRAININGS, PlacedFaults

    undisturbed: dict[str, Undisturbed] = {}
    found = {}
    for case in GROUPS[group]:
        build = TRAININGS[case.training]
        if case.training not in undisturbed:
            undisturbed[case.training] = _undisturbed(build, device, computes=computes, counts=True)
        known = undisturbed[case.training]
        place = (case.step - 1, case.phase)
        text = PIECES_TEXT if case.in_pieces else FULL_TEXT
        faults = PlacedFaults(*place, _number(case, known.operations[place]), times=case.times, text=text)
        run = train_guarded(build, device, faults, computes=computes)
        if faults.raised != case.times or case.operation not in faults.operation:
            raise RuntimeError(
                f"{case.key}: the error was raised {faults.raised} times, at {faults.operation or 'no operation'}; "
                f"expected {case.times} times, at {case.operation}"
            )
        found[case.key] = _what_came(run, case, known.left) | {"operation": faults.operation}
        free(run)
    return {"computes": computes, "trainings": {name: one.words for name, one in undisturbed.items()}, "cases": found}


def measure_real(group: str, *, computes: bool) -> Answer:
    """Train with less memory than it takes, after training with enough of it."""
    from .runs import free, train_guarded
    from .trainings import TRAININGS

    words, found = {}, {}
    for case in REAL[group]:
        build = TRAININGS[case.training]
        known = _undisturbed(build, "cuda", computes=computes, counts=False)
        words[case.training] = known.words
        room = -(-int(case.share * known.peaks["allocated_bytes"]) // ROOM_UNIT_BYTES) * ROOM_UNIT_BYTES
        if case.garbage_bytes:
            room = known.peaks["reserved_bytes"] + SLACK_BYTES
        with _room(case, room) as filling, _garbage(case.garbage_bytes):
            reset_peaks()
            run = train_guarded(build, "cuda", computes=computes, **case.options)
            guarded = {name: size - filling for name, size in peaks().items()}
        if not run.events:
            raise RuntimeError(f"{case.key}: memory did not run out, with {room:,} bytes of {known.peaks}")
        found[case.key] = _what_came(run, case, known.left) | {
            "room_bytes": room,
            "peaks": {"with enough memory": known.peaks, GUARDED: guarded},
        }
        free(run)
    return {"computes": computes, "trainings": words, "cases": found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """What trainings without errors have shown."""

    left: dict[str, Any]
    peaks: dict[str, int]
    operations: dict[tuple[int, str], list[str]]
    words: dict[str, str]
    """How the second and third compare with the first."""


def _undisturbed(build: Any, device: str, *, computes: bool, counts: bool) -> Undisturbed:
    """Train without errors: twice without a guard and once with it, where that can show or count something."""
    from .runs import free, outcome, train_bare, train_guarded
    from .trainings import PlacedFaults

    if device == "cuda":
        reset_peaks()
    run = train_bare(build, device, computes=computes)
    highest = peaks() if device == "cuda" else {}
    left = run.left()
    free(run)
    counting = PlacedFaults()
    others = {}
    if computes or counts:
        others["with a guard and without errors"] = lambda: train_guarded(build, device, counting, computes=computes)
    if computes:
        others["a second time"] = lambda: train_bare(build, device, computes=computes)
    words = {}
    for name, train in others.items():
        run = train()
        words[name], _ = outcome(run, left, tolerance=0.0, gradients_only=False)
        free(run)
    return Undisturbed(left=left, peaks=highest, operations=counting.counted, words=words)


def _number(case: Case, operations: list[str]) -> int:
    """Return the place in its phase of the operation at which the error is raised."""
    places = [number for number, name in enumerate(operations) if case.operation in name]
    if not places:
        raise RuntimeError(f"{case.key}: {case.phase} has no operation {case.operation}, but {sorted(set(operations))}")
    return places[int(case.share * len(places))]


def _what_came(run: "Run", case: Case | RealCase, reference: Any) -> dict[str, Any]:
    from .runs import outcome

    word, distances = outcome(run, reference, tolerance=case.tolerance, gradients_only=case.gradients_only)
    return {
        "outcome": word,
        "distances": distances,
        "actions": [[event.step, event.stage, event.action, event.items, event.parts] for event in run.events],
        "lines": [str(event) for event in run.events],
        "refusal": run.refusal,
    }


@contextmanager
def _limited(size: int) -> Iterator[int]:
    import torch

    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(size / total)
    try:
        yield 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def _room(case: RealCase, size: int) -> AbstractContextManager[int]:
    """Leave so many bytes; the context's value is what fills the GPU, as PyTorch counts it."""
    return ballast(size, kind="tensor") if case.is_full else _limited(size)


@contextmanager
def _garbage(size: int) -> Iterator[None]:
    """Begin with a tensor that only a cycle of references holds; Python collects no garbage unless it is called."""
    import torch

    gc.collect()
    try:
        if size:
            gc.disable()
            cycle: list[Any] = [torch.empty(size, dtype=torch.uint8, device="cuda")]
            cycle.append(cycle)
            del cycle
        yield
    finally:
        gc.enable()
        gc.collect()
