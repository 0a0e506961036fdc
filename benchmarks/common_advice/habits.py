"""What the habits of people whose loops run out of memory do, measured on an emulated T4 that GPT-2 small nearly fills.

    python benchmarks/common_advice/habits.py [--only TEXT] [--write docs/habits.md]

Memory and calls are torch.cuda's own statistics, after the first steps. Time is that of the process, beside the same
loop without the habit in the same process, in blocks that take turns; the card itself takes none. Each habit has a
process of its own. Exits 1 where what the table says beside a habit is not what was measured.
"""

import argparse
import gc
import importlib.metadata
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "guard"), str(ROOT / "examples")]

from counted import build, counting  # noqa: E402  # the path has to be there first

import ullage  # noqa: E402  # the path has to be there first

CARD, VOCABULARY, LENGTH = "T4", 50257, 1024
ITEMS = 12
WARM, STEPS, PERIOD, TURNS = 3, 16, 8, 4
GIB = 1 << 30
TITLES = (
    "| habit | allocated, GiB | reserved, GiB | calls | reads | grows, bytes | host time | what it does | instead |"
)


class Loop:
    """A training loop as people write it: what a step made lives until the next one makes it anew."""

    def __init__(self) -> None:
        import torch
        from train_gpt2 import GPT2

        torch.manual_seed(0)
        with torch.device("cuda"):
            self.model = GPT2(vocabulary=VOCABULARY, length=LENGTH, width=768, layers=12, heads=12, checkpointing=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.output: Any = None
        self.loss: Any = None
        self.kept: list[Any] = []

    def batch(self, length: int = LENGTH) -> Any:
        import torch

        return torch.randint(0, VOCABULARY, (ITEMS, length + 1)).cuda()

    def forward(self, tokens: Any) -> None:
        import torch
        import torch.nn.functional as F

        with torch.autocast("cuda", dtype=torch.float16):
            self.output = self.model(tokens[:, :-1])
            self.loss = F.cross_entropy(self.output.flatten(0, 1), tokens[:, 1:].flatten())

    def train(self, tokens: Any, number: int, *, parts: int = 1, set_to_none: bool = True) -> None:
        for part in tokens.chunk(parts):
            self.forward(part)
            (self.loss / parts).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def drop(self) -> None:
        self.output = self.loss = None


Step = Callable[[Loop, Any, int], None]


def deleted(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number)
    loop.drop()


def collected(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number)
    gc.collect()


def emptied(loop: Loop, tokens: Any, number: int) -> None:
    import torch

    loop.train(tokens, number)
    torch.cuda.empty_cache()


def emptied_at_times(loop: Loop, tokens: Any, number: int) -> None:
    import torch

    loop.train(tokens, number)
    if number % PERIOD == 0:
        torch.cuda.empty_cache()


def all_three(loop: Loop, tokens: Any, number: int) -> None:
    deleted(loop, tokens, number)
    gc.collect()
    import torch

    torch.cuda.empty_cache()


def in_two(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number, parts=2)


def in_four(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number, parts=4)


def zeroed(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number, set_to_none=False)


def losses_kept(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number)
    loop.kept.append(loop.loss)


def losses_read(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number)
    loop.kept.append(loop.loss.item())


def outputs_kept(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number)
    loop.kept.append(loop.output.detach())


def outputs_to_host(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number)
    loop.kept = [loop.output.detach().cpu()]  # one of them: the host of this measurement is small


def evaluated(loop: Loop, tokens: Any, number: int) -> None:
    import torch

    loop.train(tokens, number)
    with torch.no_grad():
        loop.forward(tokens)


def evaluated_with_graph(loop: Loop, tokens: Any, number: int) -> None:
    loop.train(tokens, number)
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
    """None where memory ran out, or where the loop beside it would need another process."""
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
    conf: str = ""


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
            Habit(name="none", step=Loop.train, reading="The loop as most people write it."),
            Habit(
                name="`del loss, output` after each batch",
                step=deleted,
                reading="Changes no figure: the names are bound anew before the step is at its fullest.",
                instead="Nothing; where forward itself is the fullest moment, `del output` after backward.",
                holds=lambda own, none: own.allocated == none.allocated and own.reserved == none.reserved,
            ),
            Habit(
                name="`gc.collect()` after each batch",
                step=collected,
                reading="Frees nothing: no tensor of the loop hangs in a cycle of references.",
                instead="Look for the cycle, if there is one; collect after an error, outside the `except`.",
                holds=lambda own, none: own.allocated == none.allocated and (own.seconds_ratio or 0) > 2,
            ),
            Habit(
                name="`empty_cache()` after each batch",
                step=emptied,
                reading="Allocates as much, and asks the driver for every segment again in every step.",
                instead="Once after the first steps, whose segments the later ones do not need; never in the loop.",
                holds=lambda own, none: is_same_peak(own, none) and own.driver_calls > 100,
            ),
            Habit(
                name=f"`empty_cache()` after every {PERIOD}th batch",
                step=emptied_at_times,
                reading="The same, less often: what the first steps left is gone after the first time.",
                instead="The same: once.",
                holds=lambda own, none: is_same_peak(own, none) and 0 < own.driver_calls < 100,
            ),
            Habit(
                name="all three after each batch",
                step=all_three,
                reading="The peak is that of the loop without them.",
                instead="A smaller batch, in parts; `ullage.Guard` does it when memory runs out.",
                holds=is_same_peak,
            ),
            Habit(
                name="accumulation over 2 micro-batches",
                step=in_two,
                reading="Saves nearly half of what is not parameters, gradients and optimizer state.",
                instead="This is what works; mind the weights where micro-batches have unequal numbers of tokens.",
                holds=lambda own, none: own.allocated < 0.7 * none.allocated,
            ),
            Habit(
                name="accumulation over 4 micro-batches",
                step=in_four,
                reading="Saves half of the rest again, for as many more calls of forward and backward.",
                instead="As few parts as fit.",
                holds=lambda own, none: own.allocated < 0.45 * none.allocated,
            ),
            Habit(
                name="`zero_grad(set_to_none=False)`",
                step=zeroed,
                reading="Gradients are there in forward too, beside what it keeps.",
                instead="`zero_grad()`, which sets them to None.",
                holds=lambda own, none: own.allocated > none.allocated,
            ),
            Habit(
                name="`losses.append(loss)`",
                step=losses_kept,
                reading="Keeps the smallest block there is for each batch: what backward has used is given up with it.",
                instead="`loss.detach()`; without a backward before, a loss would keep all that forward saved.",
                holds=lambda own, none: own.grown == 512,
            ),
            Habit(
                name="`losses.append(loss.item())`",
                step=losses_read,
                reading="Keeps nothing, and waits for the card in every step.",
                instead="The same as above, or `.item()` at every hundredth step.",
                holds=lambda own, none: own.grown == 0 and own.reads == 1,
            ),
            Habit(
                name="`outputs.append(output.detach())`",
                step=outputs_kept,
                reading="Every batch leaves its output on the card, until nothing fits.",
                instead="Keep what is made of it, such as `output.argmax(-1)`, or the next line.",
                holds=lambda own, none: own.failed_at is not None,
            ),
            Habit(
                name="`output.detach().cpu()` of each batch",
                step=outputs_to_host,
                reading="Leaves nothing on the card; the host waits, and has 1.15 GiB more to fill for each batch.",
                instead="Reduce on the card first, then `.cpu()`.",
                holds=lambda own, none: own.allocated == none.allocated and own.grown == 0 and own.reads == 1,
            ),
        ],
    ),
    Group(
        title="The same, with an evaluation after each batch",
        habits=[
            Habit(name="under `torch.no_grad()`", step=evaluated, reading="Evaluation is never the fullest moment."),
            Habit(
                name="without `torch.no_grad()`",
                step=evaluated_with_graph,
                reading="Keeps all that backward would need, and the names hold it into the next batch's forward.",
                instead="`torch.no_grad()` or `torch.inference_mode()`; `model.eval()` alone does not do it.",
                holds=lambda own, none: own.failed_at is not None,
            ),
        ],
    ),
    Group(
        title=f"Batches of 64 to {LENGTH:,} tokens an item, no two alike",
        habits=[
            Habit(
                name="none",
                step=Loop.train,
                lengths="random",
                reading="Each new length asks for pieces of new sizes, and those of earlier ones do not fit it.",
                holds=lambda own, none: own.failed_at is not None,
            ),
            Habit(
                name="the longest first",
                step=Loop.train,
                lengths="longest first",
                reading="Pieces for the longest serve all others: less is reserved, and nothing runs out.",
                instead="Run the longest batch first, once; `Guard.rehearse` does. Lengths in few sizes do the rest.",
                holds=lambda own, none: own.failed_at is None and own.reserved <= none.reserved,
            ),
            Habit(
                name="`expandable_segments:True`",
                step=Loop.train,
                lengths="random",
                conf="expandable_segments:True",
                reading="Pieces grow instead of being asked for anew: hardly more is reserved than was allocated.",
                instead="This is the one to set; it has to be in the environment before the process begins.",
                holds=lambda own, none: own.failed_at is None and own.reserved < 1.05 * own.allocated,
            ),
            Habit(
                name="`empty_cache()` after each batch",
                step=emptied,
                lengths="random",
                reading="Gets through, and asks the driver for every segment again in every step.",
                instead="The two lines above.",
                holds=lambda own, none: own.driver_calls > 100,
            ),
            Habit(
                name="`del loss, output` after each batch",
                step=deleted,
                lengths="random",
                reading="Pieces come back in another order; they do not fit the next length any better.",
                instead="The same two lines.",
                holds=lambda own, none: own.failed_at is not None,
            ),
        ],
    ),
)
HABITS = [(group, habit) for group in GROUPS for habit in group.habits]


def lengths_of(habit: Habit, count: int) -> list[int]:
    if not habit.lengths:
        return [LENGTH] * count
    import random

    lengths = random.Random(1).sample(range(64, LENGTH), count - 1)
    lengths.insert(count // 2, LENGTH)
    return sorted(lengths, reverse=True) if habit.lengths == "longest first" else lengths


def measure(habit: Habit, plain: Habit, calls: Callable[[], dict[str, int]]) -> Measured:
    """Run a habit's loop and read torch's statistics."""
    import torch

    loop = Loop()
    count = 4 * STEPS if habit.lengths else STEPS
    # A shape of its own each: what counts is how they come. One shape: what counts is the steady loop.
    warm = 0 if habit.lengths else WARM
    before: dict[str, int] = {}
    read = held = holds = 0
    failed_at = None
    for number, length in enumerate(lengths_of(habit, warm + count), 1 - warm):
        if number == 1:
            torch.cuda.reset_peak_memory_stats()
            before, read, held = torch.cuda.memory_stats(), calls()["reads of the card"], torch.cuda.memory_allocated()
        try:
            habit.step(loop, loop.batch(length), number)
        except torch.OutOfMemoryError:
            failed_at = number + warm
            break
        holds = torch.cuda.memory_allocated()
    stats = torch.cuda.memory_stats()
    took = max(number if failed_at is None else number - 1, 1)
    asked = sum(stats[name] - before.get(name, 0) for name in ("num_device_alloc", "num_device_free"))
    return Measured(
        allocated=stats["allocated_bytes.all.peak"],
        reserved=stats["reserved_bytes.all.peak"],
        grown=0 if habit.lengths else (holds - held) // took,
        driver_calls=asked / took,
        reads=(calls()["reads of the card"] - read) / took,
        seconds_ratio=None if failed_at is not None or habit.conf else ratio_of_seconds(loop, habit, plain),
        failed_at=failed_at,
    )


def ratio_of_seconds(loop: Loop, habit: Habit, plain: Habit) -> float | None:
    """Time both loops in blocks that take turns; the first step of each pays for what the other has left."""
    import torch

    lengths = lengths_of(habit, PERIOD)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TURNS):
        for is_plain in (True, False) if turn % 2 else (False, True):
            step = plain.step if is_plain else habit.step
            loop.kept = []
            try:
                step(loop, loop.batch(lengths[0]), 1)
                began = time.process_time()
                for number, length in enumerate(lengths, 1):
                    step(loop, loop.batch(length), number)
            except torch.OutOfMemoryError:
                return None
            seconds[is_plain].append(time.process_time() - began)
    return statistics.median(seconds[False]) / statistics.median(seconds[True])


def run_alone(index: int, library: Path) -> None:
    """What a process of its own does: one habit."""
    import os

    group, habit = HABITS[index]
    calls = counting(library)
    os.environ["PYTORCH_ALLOC_CONF"] = habit.conf
    ullage.emulate(CARD)
    print(json.dumps(asdict(measure(habit, group.habits[0], calls))))


def alone(index: int, library: Path) -> Measured:
    command = [sys.executable, __file__, "--habit", str(index), "--library", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{HABITS[index][1].name} failed:\n{done.stderr}")
    return Measured(**json.loads(done.stdout))


def figures(own: Measured) -> str:
    """A row's cells."""
    if own.failed_at is not None:
        return f"**runs out at batch {own.failed_at}** | | | | | "
    ratio = f"{own.seconds_ratio:.1f}" if own.seconds_ratio is not None else ""
    cells = (f"{own.allocated / GIB:.2f}", f"{own.reserved / GIB:.2f}", f"{own.driver_calls:.1f}", f"{own.reads:.0f}")
    return " | ".join((*cells, f"{own.grown:,}", ratio))


HEAD = """# What habits against running out of memory do

Written by `make habits` (`benchmarks/common_advice/habits.py`), which measures each of these on an emulated
{card}: GPT-2 small with AdamW and fp16 autocast, {items} sequences of {length:,} tokens a batch, torch {version}.
Memory and calls are torch.cuda's own statistics after {warm} steps. *Calls* are those that ask the driver for memory
or give it back (cudaMalloc, cudaFree, or mapping and unmapping), a step;
*reads* are values that come back from the card, a step, each
of which waits for it; *grows* is by how many bytes a step has more allocated at its end. *Host time* is the process's
own beside the loop without the habit (none where it could not be measured in one process); 0.8 to 1.2 is the noise of
the machine. An emulated card itself takes no time, so on a real one calls and reads cost more than this shows: cudaFree
and a read wait until the card has done all that was asked of it.

How to do it right is short: drop nothing by hand, `zero_grad()`, `torch.no_grad()` where nothing is trained, keep
numbers and not outputs, split a batch that does not fit, and for lengths that vary run the longest first or set
`expandable_segments:True`. [Variable lengths](variable_lengths.md) says more about the last.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="habits whose name has this text")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--habit", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.habit is not None:
        run_alone(options.habit, options.library)
        return 0
    version = importlib.metadata.version("torch").split("+")[0]
    lines = [HEAD.format(card=CARD, items=ITEMS, length=LENGTH, version=version, warm=WARM)]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for group in GROUPS:
            lines += [f"## {group.title}", "", TITLES, "|---|---|---|---|---|---|---|---|---|"]
            plain: Measured | None = None
            for habit in group.habits:
                if options.only not in habit.name and plain is not None:
                    continue
                own = alone(HABITS.index((group, habit)), library)
                plain = plain or own
                lines.append(f"| {habit.name} | {figures(own)} | {habit.reading} | {habit.instead} |")
                print(lines[-1], flush=True)
                if not habit.holds(own, plain):
                    wrong.append(f"{group.title}, {habit.name}: measured {own}, which is not what is said of it")
            lines.append("")
    print("\n".join(wrong), file=sys.stderr)
    if options.write:
        options.write.write_text("\n".join(lines).rstrip() + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
