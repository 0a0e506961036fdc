"""Measure what people do, and are advised to do, when memory runs out, and write docs/common_advice.md.

    python -m benchmarks.common_advice.run [--only TEXT] [--write docs/common_advice.md]

Bytes are torch.cuda's own statistics on an emulated T4, each advice in a process of its own; where it runs out, it runs
again on a card like it with 64 GiB, to say how much it needs. Time is that of a small loop on this machine's CPU
beside the one without the advice, in blocks that take turns. Exits 1 where what is said of an advice, a setting or a
habit is not what was measured.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ullage
from benchmarks.common_advice import habits
from benchmarks.common_advice.advice import Advice, Conf, Measured
from benchmarks.common_advice.advices import AFTER, CONFS, GROUPS, PLAIN, PLAIN_PICTURES
from benchmarks.common_advice.loop import CARD, FULL, ITEMS, PICTURES, SMALL, Loop, PictureLoop
from benchmarks.guard.counted import build, counting
from tools.stale_pages import write_page

ROOT = Path(__file__).resolve().parents[2]
WARM, STEPS, TURNS, TIMED = 3, 4, 5, 2
ROOMY_BYTES = 64 << 30
MIB, GIB = 1 << 20, 1 << 30
ADVICES = [PLAIN, PLAIN_PICTURES, *(advice for group in GROUPS.values() for advice in group), *AFTER]
HEAD = """# Which advice against out-of-memory errors works?

Only a few pieces of common advice against out-of-memory errors lower the peak of memory. In short:

* **This advice saves memory**: gradient accumulation over smaller parts, activation checkpointing, a loss in parts,
  autocast, and `scaled_dot_product_attention`.
* **If the lengths of your batches vary**: run the longest batch first, or set `expandable_segments:True`.
* **Good habits**: call `zero_grad()`, and evaluate the model under `torch.no_grad()`. From each batch, keep a number
  such as the loss, not the model's output. You need not delete variables by hand.
* **Most other advice does not lower the peak of this training loop**, because the advice frees memory before or after
  the peak, not at the peak. GPT-2 reaches its peak at the beginning of backward, when the saved tensors and the logits
  are allocated.

To test each piece of advice and each habit, `make common-advice` changes one training loop accordingly. The loop
trains GPT-2 small (or ResNet-50) with AdamW and fp16 autocast. Each batch has {items} sequences of {length:,} tokens.
The loop runs with torch {version} on an emulated {card}.

The columns *allocated* and *reserved* have the peaks of torch.cuda's statistics after {warm} steps. If a loop does not
fit on the GPU, the loop runs again on the same emulated GPU with 64 GiB of memory. The second run shows how much memory
the loop needs.

An emulated GPU computes nothing, so the *time* was not measured on it. For advice that changes the amount of
computation, the column *time* has a ratio: the time of a step with the change, divided by the time of a step without
the change. The step times for the column *time* were measured with a small model on one CPU thread. A ratio of 1.3
means 30 % longer, and 0.8 to 1.2 is within noise. On a real GPU, this ratio differs. An empty cell means that only a
real GPU can measure the time.
"""
TITLES = "| advice | allocated, GiB | reserved, GiB | fits | time | verdict |\n|---|---|---|---|---|---|"
HABITS = """
## Habits

The column *calls* has the number of driver calls per step that allocate or release memory (cudaMalloc, cudaFree, or
mapping and unmapping of pages). The column *reads* has the number of values per step that the script reads from the
GPU; each read waits for the GPU. The column *grows* has the bytes by which allocated memory rises from the end of one
step to the end of the next step. The column *host time* compares the CPU time of the training loop with and without
the habit in the first column. A host time of 1.3 means that the loop with the habit needs 1.3 times as much CPU time.
A ratio of 0.8 to 1.2 is within noise. If the column *host time* is empty, the CPU time was not measured. On a real
GPU, driver calls and reads cost more time than these figures show, because
cudaFree and reads wait until the GPU has finished all queued work.
"""
HABIT_TITLES = (
    "| habit | allocated, GiB | reserved, GiB | calls | reads | grows, bytes | host time | effect | better |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
SETTINGS = """
## Allocator settings, with batches of 64 to 1,024 tokens per item

The column *calls* has the number of driver calls per batch, over 64 batches. See also
[variable lengths](variable_lengths.md).

| setting | allocated, GiB | reserved, GiB | calls | verdict |
|---|---|---|---|---|"""


def sizes_of(advice: Advice, *, is_small: bool) -> dict[str, int]:
    sizes = SMALL if is_small else FULL
    return {**sizes, "length": advice.length} if advice.length and not is_small else sizes


def loop_of(advice: Advice, **more: Any) -> Loop:
    """Make the loop of an advice; what it does not change is the plain one's."""
    own = {**PLAIN.changes, **advice.changes, **more}
    if advice.of is PictureLoop:
        own = {"items": PICTURES, **own}
    loop = advice.of(**own)
    loop.build()
    return loop


def measure(advice: Advice, total_bytes: int | None) -> tuple[int, int, float] | None:
    """Return the most that was allocated and reserved, and calls of the driver a step; None where memory ran out."""
    ullage.emulate(advice.card, total_memory_bytes=total_bytes)
    import torch

    before = 0
    try:
        loop = loop_of(advice, sizes=sizes_of(advice, is_small=False))
        for number in range(WARM + STEPS):
            if number == WARM:
                torch.cuda.reset_peak_memory_stats()
                before = calls()
            loop.step(loop, loop.batch())
    except torch.OutOfMemoryError:
        return None
    if advice.after is not None:
        advice.after(loop)
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), 0.0
    stats = torch.cuda.memory_stats()
    return stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"], (calls() - before) / STEPS


def calls() -> int:
    import torch

    stats = torch.cuda.memory_stats()
    return sum(stats[name] for name in ("num_device_alloc", "num_device_free"))


def time_on_cpu(advice: Advice) -> float:
    """Return the seconds of a step beside the plain loop's, both small."""
    ullage.emulate(CARD)  # torch's build for CUDA cannot be imported without
    import torch

    torch.set_num_threads(1)
    loops = [loop_of(each, device="cpu", sizes=sizes_of(each, is_small=True)) for each in (PLAIN, advice)]
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS + 1):
        for which in (0, 1) if turn % 2 else (1, 0):
            batches = [loops[which].batch() for _ in range(TIMED)]
            began = time.process_time()
            for tokens in batches:
                loops[which].step(loops[which], tokens)
            if turn:  # the first makes the optimizer's state
                seconds[which].append(time.process_time() - began)
    return statistics.median(seconds[1]) / statistics.median(seconds[0])


def alone(**task: Any) -> Any:
    """Run one task in a process of its own."""
    advice = ADVICES[task["index"]] if "index" in task else None
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": task.get("conf", ""), **(advice.environment if advice else {})}
    command = [sys.executable, "-m", "benchmarks.common_advice.run", "--task", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{advice.name if advice else task} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def do(task: dict[str, Any]) -> Any:
    """What a process of its own does."""
    if "habit" in task:
        group, habit = habits.HABITS[task["habit"]]
        calls = counting(Path(task["library"]))  # before the emulated CUDA is loaded
        ullage.emulate(CARD)
        without = group.habits[0].step
        return asdict(habits.measure(habit.step, habit.lengths, lambda: calls()["reads of the card"], without))
    if "conf" in task:
        ullage.emulate(CARD)
        return asdict(habits.measure(habits.trained, task["lengths"], lambda: 0))
    advice = ADVICES[task["index"]]
    return time_on_cpu(advice) if task.get("is_timed") else measure(advice, task.get("total_bytes"))


def measured(advice: Advice) -> Measured:
    return measured_at(ADVICES.index(advice))


@cache
def measured_at(index: int) -> Measured:
    """Measure an advice, once: the loop without any stands beside many."""
    advice = ADVICES[index]
    found = alone(index=index)
    allocated, reserved, driver_calls = found or alone(index=index, total_bytes=ROOMY_BYTES)
    return Measured(
        allocated=allocated,
        reserved=reserved,
        driver_calls=driver_calls,
        fits=found is not None,
        time_ratio=alone(index=index, is_timed=True) if advice.is_timed else None,
    )


def row_of(advice: Advice, own: Measured) -> str:
    ratio = "" if own.time_ratio is None else f"{own.time_ratio:.1f}"
    figures = f"{own.allocated / GIB:.2f} | {own.reserved / GIB:.2f} | {'yes' if own.fits else '**no**'} | {ratio}"
    return f"| {advice.name} | {figures} | {advice.verdict} |"


def left_row(advice: Advice, own: Measured) -> str:
    """Return a row of what is left."""
    return f"| {advice.name} | {own.allocated / MIB:,.1f} | {own.reserved / MIB:,.1f} | {advice.verdict} |"


def conf_row(conf: Conf, own: habits.Measured) -> str:
    name = f"`{conf.text}`" if conf.text else conf.name
    if own.failed_at is not None:
        return f"| {name} | **out of memory at batch {own.failed_at}** | | | {conf.verdict} |"
    figures = f"{own.allocated / GIB:.2f} | {own.reserved / GIB:.2f} | {own.driver_calls:.1f}"
    return f"| {name} | {figures} | {conf.verdict} |"


def habit_row(habit: habits.Habit, own: habits.Measured) -> str:
    if own.failed_at is not None:
        figures = f"**out of memory at batch {own.failed_at}** | | | | | "
    else:
        ratio = f"{own.seconds_ratio:.1f}" if own.seconds_ratio is not None else ""
        cells = (f"{own.allocated / GIB:.2f}", f"{own.reserved / GIB:.2f}", f"{own.driver_calls:.1f}")
        figures = " | ".join((*cells, f"{own.reads:.0f}", f"{own.grown:,}", ratio))
    return f"| {habit.name} | {figures} | {habit.reading} | {habit.instead} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Lines of the document as they are measured, and what is not as it is said to be."""

    only: str
    """A text that an advice's name must have, to be measured."""
    lines: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def tell(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def compare(self, advices: Sequence[Advice], none: Advice, row: Callable[[Advice, Measured], str]) -> None:
        """Measure those that are asked for beside the loop without any."""
        for advice in advices:
            if self.only in advice.name or advice is none:
                own = measured(advice)
                self.tell(row(advice, own))
                if not advice.holds(own, without := measured(none)):
                    self.wrong.append(f"{advice.name}: measured {own} beside {without}; that is not what is said of it")

    def advices(self) -> None:
        for title, group in GROUPS.items():
            self.tell(f"\n## {title}\n\n{TITLES}")
            none = PLAIN_PICTURES if group[0].of is PictureLoop else PLAIN
            self.compare((none, *group), none, row_of)

    def habits(self) -> None:
        self.tell(HABITS.rstrip())
        with tempfile.TemporaryDirectory() as folder:
            library = str(build(Path(folder)))
            for group in habits.GROUPS:
                self.tell(f"\n### {group.title}\n\n{HABIT_TITLES}")
                none: habits.Measured | None = None
                for habit in group.habits:
                    if self.only in habit.name or none is None:
                        own = habits.Measured(**alone(habit=habits.HABITS.index((group, habit)), library=library))
                        none = none or own
                        self.tell(habit_row(habit, own))
                        if not habit.holds(own, none):
                            self.wrong.append(
                                f"{habit.name}: measured {own} beside {none}; that is not what is said of it"
                            )

    def settings(self) -> None:
        self.tell(SETTINGS)
        for conf in CONFS:
            if self.only in conf.text:
                found = habits.Measured(**alone(conf=conf.text, lengths=conf.lengths))
                self.tell(conf_row(conf, found))
                if not conf.holds(found):
                    self.wrong.append(f"{conf.text}: measured {found}; that is not what is said of it")

    def endings(self) -> None:
        self.tell("\n## Memory that is left after training\n")
        self.tell(
            "Sizes are in MiB. The sizes were measured after the action in the first column, followed by "
            "`gc.collect()` and `empty_cache()`.\n"
        )
        self.tell("| action | allocated | reserved | verdict |\n|---|---|---|---|")
        self.compare(AFTER, AFTER[0], left_row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="advices, habits and settings whose name has this text")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task is not None:
        print(json.dumps(do(options.task)))
        return 0
    version = importlib.metadata.version("torch").split("+")[0]
    head = HEAD.format(items=ITEMS, length=FULL["length"], version=version, card=CARD, warm=WARM)
    page = Page(only=options.only)
    for measure_all in (page.advices, page.habits, page.settings, page.endings):
        measure_all()
    print("\n".join(page.wrong), file=sys.stderr)
    if options.write:
        text = "\n".join([head, *page.lines, "", (Path(__file__).parent / "beyond.md").read_text()])
        write_page(options.write, text.replace("\n\n\n", "\n\n").rstrip() + "\n")
    return 1 if page.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
