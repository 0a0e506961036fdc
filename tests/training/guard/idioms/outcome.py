"""What comes of an idiom: what it leaves undisturbed, and what with errors of memory."""

import importlib
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

import ullage
from tests.training.guard.faults import Faults
from tests.training.guard.idioms.expected import Expected
from tests.training.guard.world import Build, Left, World, differences, guarded, left_of

TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.56 GiB of which 3.25 MiB is "
    "free. Including non-PyTorch memory, this process has 14.55 GiB memory in use. Of the allocated memory 14.40 GiB "
    "is allocated by PyTorch, and 5.11 MiB is reserved by PyTorch but unallocated."
)
"""Memory that is truly full: the second error of a step is followed by a split."""
FAMILIES = ("self_supervised", "batches", "carried", "losses", "loops", "elsewhere")
NEW_FAMILIES = ("language_models", "vision", "state", "learning")
"""The families that were written without reading the guard's source."""
WITHIN = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.03, "float16": 0.01}
"""By precision: how far the gradient of a split batch may be from that of the whole batch, relative to its size.

Rounding causes up to about a third of it. What couples the items of an idiom changes its gradient by 5 % or more.
"""
LATE = 1
"""The step, counted from 0, in which the batch is made to be cut."""


def idioms(families: Sequence[str] = FAMILIES) -> dict[str, Build]:
    """Every idiom of these families by its name."""
    found: dict[str, Build] = {}
    for family in families:
        module = importlib.import_module(f"tests.training.guard.idioms.{family}")
        own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
        for one in own:
            if getattr(one, "__annotations__", {}).get("return") is World and not one.__name__.startswith("_"):
                found[one.__name__] = one
    return found


def expected_of(families: Sequence[str] = NEW_FAMILIES) -> dict[str, Expected]:
    """What is true of each idiom of these families, whatever the guard does."""
    found: dict[str, Expected] = {}
    for family in families:
        found |= importlib.import_module(f"tests.training.guard.idioms.{family}").EXPECTED
    return found


def made(build: Build) -> World:
    """The training of an idiom, the same each time."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    return build()


def in_precision(build: Build, precision: str) -> Build:
    """The idiom in another precision: float32, or autocast to bfloat16, or to float16 with a gradient scaler."""
    if precision == "float64":
        return build

    def built() -> World:
        torch.set_default_dtype(torch.float32)
        world = build()
        if precision != "float32":
            inner, dtype = world.loss_of, getattr(torch, precision)

            def loss_of(batch: Any) -> Any:
                with torch.autocast("cpu", dtype=dtype):
                    return inner(batch)

            world.loss_of = loss_of
            if precision == "float16" and world.scaler is None:
                world.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        return world

    return built


def undisturbed(build: Build) -> tuple[str, Left, int]:
    """What a guarded training leaves without errors, or why it is refused; and how many operations it has."""
    counting = Faults()
    outcome, left = _taken(build, counting)
    return outcome, left, counting.count


def disturbed(build: Build, expected: Left, at: set[int], *, precision: str = "float64") -> str:
    """What comes of it with errors at these operations."""
    return _compared(*_taken(build, Faults(at, text=TEXT)), expected, precision)


def in_parts(build: Build, expected: Left, *, precision: str = "float64") -> str:
    """What comes of it if the second step runs out twice, each time when forward has ended."""
    faults = [2]

    def change(world: World) -> None:
        inner, begin = world.loss_of, world.begin
        step = [0]

        def begun(number: int) -> None:
            step[0] = number
            begin(number)

        def loss_of(batch: Any) -> Any:
            result = inner(batch)
            if step[0] == LATE and faults[0] and torch.is_grad_enabled():
                faults[0] -= 1
                raise torch.OutOfMemoryError(TEXT)
            return result

        world.loss_of, world.begin = loss_of, begun

    return _compared(*_taken(build, Faults(), change), expected, precision)


def _taken(build: Build, faults: Faults, change: Callable[[World], None] = lambda world: None) -> tuple[str, Left]:
    """Train; return what was refused, warned of and logged, and what is left."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        world = made(build)
        change(world)
        try:
            guarded(lambda: world, faults)
        except ullage.UsageError as error:
            return f"refused: {error}", {}
        except (torch.OutOfMemoryError, RuntimeError) as error:
            notes = [
                note for note in getattr(error, "__notes__", []) if "were allocated when a request for" not in note
            ]
            notes.sort(key=lambda note: note.startswith("Some gradients"))  # the reason comes first
            text = "" if isinstance(error, torch.OutOfMemoryError) else str(error)
            return f"refused: {' '.join([text, *notes]).strip()}", {}
    of_norms = [f"warned: {one.message}" for one in warned if "statistics" in str(one.message)]
    return "; ".join([*of_norms, *world.said]), left_of(world)


def _compared(outcome: str, left: Left, expected: Left, precision: str) -> str:
    """Say in a word how what is left compares with what is left undisturbed."""
    if outcome.startswith("refused"):
        return outcome
    if not differences(expected, left):
        return "equal"
    if "warned: " in outcome:
        return "warned"
    values = [{name: one for name, one in some.items() if not name.startswith("random")} for some in (expected, left)]
    if "split into" in outcome:
        is_equal = not differences(*values, within=_rounding(left)) if precision == "float64" else False
        if is_equal or (precision != "float64" and _distance(*values) <= WITHIN[precision]):
            return "equal in parts"
    if "each part draws its own random numbers" in outcome:
        return "own random numbers"
    return (
        "told" if "which the guard does not restore" in outcome.replace("faults, which", "") else f"OTHER ({outcome})"
    )


def _distance(expected: Left, left: Left) -> float:
    """How far the last gradients are apart, all parameters together, relative to their size."""
    apart = size = 0.0
    for name, gradient in expected.items():
        if name.startswith("gradient"):
            other = left[name]
            if isinstance(gradient, torch.Tensor) != isinstance(other, torch.Tensor):
                return float("inf")
            if isinstance(gradient, torch.Tensor):
                apart += float((gradient.double() - other.double()).pow(2).sum())
                size += float(gradient.double().pow(2).sum())
    return (apart / max(size, 1e-30)) ** 0.5


def _rounding(left: Left) -> float:
    types = {one.dtype for one in left.values() if isinstance(one, torch.Tensor)}
    return 2e-2 if torch.float32 in types else 1e-9
