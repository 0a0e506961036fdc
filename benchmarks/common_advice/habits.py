"""What the habits of people whose loops run out of memory do: each is a step of the loop, and what is said of it.

What is said is said by hand, and `holds` is what must have been measured for it to be true. Memory and calls are
torch.cuda's own statistics, after the first steps. Time is that of the process next to the same loop without the habit
in the same process, in blocks that take turns; the emulated GPU takes none.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common_advice.loop import FULL, Loop, plain

WARM, STEPS, PERIOD, TURNS = 3, 16, 8, 4
Step = Callable[[Loop, Any, int], None]
"""Takes the tokens of a batch, and its number."""


def trained(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)


def deleted(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)
    loop.output = loop.loss = None


def garbage_collected(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)
    gc.collect()


def emptied(loop: Loop, tokens: Any, number: int) -> None:
    import torch

    plain(loop, tokens)
    torch.cuda.empty_cache()


def emptied_at_times(loop: Loop, tokens: Any, number: int) -> None:
    (trained if number % PERIOD else emptied)(loop, tokens, number)


def all_three(loop: Loop, tokens: Any, number: int) -> None:
    import torch

    deleted(loop, tokens, number)
    gc.collect()
    torch.cuda.empty_cache()


def zeroed(loop: Loop, tokens: Any, number: int) -> None:
    loop.forward(tokens)
    loop.loss.backward()
    loop.optimizer.step()
    loop.optimizer.zero_grad(set_to_none=False)


def losses_kept(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)
    loop.kept.append(loop.loss)


def losses_read(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)
    loop.kept.append(loop.loss.item())


def outputs_kept(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)
    loop.kept.append(loop.output.detach())


def outputs_to_host(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)
    loop.kept = [loop.output.detach().cpu()]  # one of them: the host of this measurement is small


def evaluated(loop: Loop, tokens: Any, number: int) -> None:
    import torch

    plain(loop, tokens)
    with torch.no_grad():
        loop.forward(tokens)


def evaluated_with_graph(loop: Loop, tokens: Any, number: int) -> None:
    plain(loop, tokens)
    loop.forward(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a habit's loop came to; bytes, and calls a step."""

    allocated: int
    reserved: int
    grown: int
    """By how much a step has more allocated at its end than the one before."""
    driver_calls: float
    reads: float
    seconds_ratio: float | None
    """None where memory ran out, or where there is no loop to compare with."""
    failed_at: int | None
    """The batch at which memory ran out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """One loop, and what is said of it where `holds` agrees."""

    name: str
    step: Step
    reading: str
    instead: str = ""
    holds: Callable[[Measured, Measured], bool] = lambda own, plain: True
    lengths: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Habits of one kind of loop; the first is the loop without any."""

    title: str
    habits: list[Habit] = field(default_factory=list)


def is_same_peak(own: Measured, none: Measured) -> bool:
    """Whether as much was allocated at most, but for the rest of a piece that is not cut off where it is small."""
    return abs(own.allocated / none.allocated - 1) < 1e-3


GROUPS = (
    Group(
        title="Batches of one shape",
        habits=[
            Habit(name="none", step=trained, reading="The loop as most people write it."),
            Habit(
                name="`del loss, output` after each batch",
                step=deleted,
                reading=("Changes nothing: without it, the variables are reassigned before the peak of the next step."),
                instead="Nothing. If the peak is in the forward pass itself, use `del output` after backward.",
                holds=lambda own, none: own.allocated == none.allocated and own.reserved == none.reserved,
            ),
            Habit(
                name="`gc.collect()` after each batch",
                step=garbage_collected,
                reading="Frees nothing: no tensor of the loop is in a reference cycle.",
                instead=(
                    "If there is a reference cycle, remove it. Call `gc.collect()` only after an error, "
                    "outside the `except` block."
                ),
                holds=lambda own, none: own.allocated == none.allocated and (own.seconds_ratio or 0) > 2,
            ),
            Habit(
                name="`empty_cache()` after each batch",
                step=emptied,
                reading="Allocates as much, and requests every segment from the driver again in every step.",
                instead=(
                    "Call it once after the first steps, whose segments later steps do not need; never in the loop."
                ),
                holds=lambda own, none: is_same_peak(own, none) and own.driver_calls > 100,
            ),
            Habit(
                name=f"`empty_cache()` after every {PERIOD}th batch",
                step=emptied_at_times,
                reading=("The same, less often. Only the first call releases segments that later steps do not need."),
                instead="Call it once, as above.",
                holds=lambda own, none: is_same_peak(own, none) and 0 < own.driver_calls < 100,
            ),
            Habit(
                name="all three of the above after each batch",
                step=all_three,
                reading="The peak is the same as without them.",
                instead="Gradient accumulation over smaller parts; `ullage.Guard` does that when memory runs out.",
                holds=is_same_peak,
            ),
            Habit(
                name="`zero_grad(set_to_none=False)`",
                step=zeroed,
                reading="Gradients also stay allocated during the forward pass, in addition to saved tensors.",
                instead="`zero_grad()`, which sets gradients to None.",
                holds=lambda own, none: own.allocated > none.allocated,
            ),
            Habit(
                name="`losses.append(loss)`",
                step=losses_kept,
                reading=(
                    "Keeps a block of the smallest size, 512 bytes, for each batch. Backward has already "
                    "freed the saved tensors."
                ),
                instead=(
                    "`losses.append(loss.detach())`. Without a backward pass before, a loss would keep all "
                    "saved tensors alive."
                ),
                holds=lambda own, none: own.grown == 512,
            ),
            Habit(
                name="`losses.append(loss.item())`",
                step=losses_read,
                reading="Keeps nothing, but waits for the GPU in every step.",
                instead="As above, or `.item()` in every hundredth step.",
                holds=lambda own, none: own.grown == 0 and own.reads == 1,
            ),
            Habit(
                name="`outputs.append(output.detach())`",
                step=outputs_kept,
                reading="Every output stays in GPU memory, until memory runs out.",
                instead="Keep a reduced result, such as `output.argmax(-1)`, or see the next row.",
                holds=lambda own, none: own.failed_at is not None,
            ),
            Habit(
                name="`output.detach().cpu()` of each batch",
                step=outputs_to_host,
                reading=(
                    "Keeps nothing in GPU memory. The host waits for the GPU, and copies 1.15 GiB more per batch."
                ),
                instead="Reduce the output on the GPU first, then call `.cpu()`.",
                holds=lambda own, none: own.allocated == none.allocated and own.grown == 0 and own.reads == 1,
            ),
        ],
    ),
    Group(
        title="Batches of one shape, with an evaluation after each batch",
        habits=[
            Habit(name="under `torch.no_grad()`", step=evaluated, reading="The peak is never in the evaluation."),
            Habit(
                name="without `torch.no_grad()`",
                step=evaluated_with_graph,
                reading=(
                    "Saves all tensors for a backward pass; variables keep them alive during the next batch's "
                    "forward pass."
                ),
                instead="`torch.no_grad()` or `torch.inference_mode()`; `model.eval()` alone is not enough.",
                holds=lambda own, none: own.failed_at is not None,
            ),
        ],
    ),
    Group(
        title=f"Batches of 64 to {FULL['length']:,} tokens per item, all of different lengths",
        habits=[
            Habit(
                name="none",
                step=trained,
                lengths="random",
                reading=(
                    "Each new length requests blocks of new sizes, and free blocks of earlier lengths do not fit them."
                ),
                holds=lambda own, none: own.failed_at is not None,
            ),
            Habit(
                name="the longest first",
                step=trained,
                lengths="longest first",
                reading=(
                    "Blocks of the longest batch serve all others: less memory is reserved, and it does not run out."
                ),
                instead=(
                    "Run the longest batch once at the beginning, as `Guard.rehearse` does, and pad lengths "
                    "to few sizes."
                ),
                holds=lambda own, none: own.failed_at is None and own.reserved <= none.reserved,
            ),
            Habit(
                name="`empty_cache()` after each batch",
                step=emptied,
                lengths="random",
                reading="Does not run out, but requests every segment from the driver again in every step.",
                instead="The row above, or `expandable_segments:True` (below).",
                holds=lambda own, none: own.driver_calls > 100,
            ),
            Habit(
                name="`del loss, output` after each batch",
                step=deleted,
                lengths="random",
                reading="Blocks are freed in a different order, but do not fit the next length any better.",
                instead="The longest batch first, or `expandable_segments:True` (below).",
                holds=lambda own, none: own.failed_at is not None,
            ),
        ],
    ),
)
HABITS = [(group, habit) for group in GROUPS for habit in group.habits]


def lengths_of(lengths: str, count: int) -> list[int]:
    """Return the tokens of an item, batch by batch: "random", "longest first", or all of one length ("")."""
    if not lengths:
        return [FULL["length"]] * count
    found = random.Random(1).sample(range(64, FULL["length"]), count - 1)
    found.insert(count // 2, FULL["length"])
    return sorted(found, reverse=True) if lengths == "longest first" else found


def measure(step: Step, lengths: str, reads: Callable[[], int], without: Step | None = None) -> Measured:
    """Run a habit's loop and read torch's statistics; `reads` counts what came back from the card so far.

    Time is compared with that of a loop without the habit.
    """
    import torch

    loop = Loop(sizes=FULL, step=plain, kept=[])
    loop.build()
    count = 4 * STEPS if lengths else STEPS
    # A shape of its own each: what counts is how they come. One shape: what counts is the steady loop.
    warm = 0 if lengths else WARM
    before: dict[str, int] = {}
    read = held = holds = 0
    failed_at = None
    for number, length in enumerate(lengths_of(lengths, warm + count), 1 - warm):
        if number == 1:
            torch.cuda.reset_peak_memory_stats()
            before, read, held = torch.cuda.memory_stats(), reads(), torch.cuda.memory_allocated()
        try:
            step(loop, loop.batch(length), number)
        except torch.OutOfMemoryError:
            failed_at = number + warm
            break
        holds = torch.cuda.memory_allocated()
    stats = torch.cuda.memory_stats()
    is_timed = without is not None and failed_at is None
    took = max(number if failed_at is None else number - 1, 1)
    asked = sum(stats[name] - before.get(name, 0) for name in ("num_device_alloc", "num_device_free"))
    return Measured(
        allocated=stats["allocated_bytes.all.peak"],
        reserved=stats["reserved_bytes.all.peak"],
        grown=0 if lengths else (holds - held) // took,
        driver_calls=asked / took,
        reads=(reads() - read) / took,
        seconds_ratio=ratio_of_seconds(loop, lengths, step, without) if is_timed else None,
        failed_at=failed_at,
    )


def ratio_of_seconds(loop: Loop, lengths: str, step: Step, without: Step) -> float | None:
    """Time both loops in blocks that take turns; the first step of each pays for what the other has left."""
    import torch

    batches = lengths_of(lengths, PERIOD)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TURNS):
        for is_plain in (True, False) if turn % 2 else (False, True):
            each = without if is_plain else step
            loop.kept = []
            try:
                each(loop, loop.batch(batches[0]), 1)
                began = time.process_time()
                for number, length in enumerate(batches, 1):
                    each(loop, loop.batch(length), number)
            except torch.OutOfMemoryError:
                return None
            seconds[is_plain].append(time.process_time() - began)
    return statistics.median(seconds[False]) / statistics.median(seconds[True])
