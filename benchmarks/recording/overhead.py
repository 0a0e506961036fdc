"""What `ullage run` costs a step of 10 ms that allocates 2,000 times, on the emulated card, where a step is the host's
work and nothing else. `make bench`. Exits 1 past a bound.

What is bounded is told of one process under `ullage run`: two steps with all that it does at a step's end, and two
without it, follow each other a thousand times; the differences, without the highest and lowest tenth, are averaged.
Two processes of the very same work differ by several percent, by where their memory happens to lie; so a process
alone and one under `ullage run` are compared many times over, without a bound, in the default mode and with the whole
history, which also costs at every allocation.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from figure import Measured

ALLOCATIONS, STEP_SECONDS = 2000, 0.010
TURN, TURNS, WARM_TURNS = 10, 100, 4
PAIRS, PAIR_TURNS = 7, 12
BOUND = 1.03
GPU = "T4"


def work() -> None:
    """Run a turn of steps for each line that comes in: how many host operations a step has, 0 to find that out.

    A number below 0 is for two steps, and two more without what the recorder does at a step's end.
    """
    import torch

    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(1024, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.zeros_like(weight)
    host = torch.zeros(20_000)

    def seconds_of_step(operations: int) -> float:
        began = time.process_time()
        for _ in range(ALLOCATIONS):
            torch.empty(1024, device="cuda")
        for _ in range(operations):  # the rest of a model's work on the host
            host.add_(1)
        optimizer.step()
        return time.process_time() - began

    from torch.optim import optimizer as hooked

    hooks = hooked._global_optimizer_post_hooks  # where `ullage run` learns that a step has ended
    for line in sys.stdin:
        operations = int(line)
        if operations < 0:
            kept, without, more = dict(hooks), [], []
            for _ in range(TURN):
                with_it = seconds_of_step(-operations) + seconds_of_step(-operations)
                hooks.clear()
                without.append(seconds_of_step(-operations) + seconds_of_step(-operations))
                hooks.update(kept)
                more.append(with_it - without[-1])
            print(json.dumps([without, more]), flush=True)
            continue
        if operations:
            answer = statistics.median(seconds_of_step(operations) for _ in range(TURN))
        else:
            few, many = (statistics.median(seconds_of_step(count) for _ in range(TURN)) for count in (1, 1001))
            answer = max(1, int((STEP_SECONDS - few) / (many - few) * 1000))
        print(answer, flush=True)


class Worker:
    """A process that takes turns."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [*command, __file__, "work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, operations: int) -> Any:
        """Return the median seconds of a turn's steps; of pairs the seconds of every two without, and differences."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(operations, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        """Let it come to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def recorder(history: str, folder: Path) -> Worker:
    """Start a worker under `ullage run`."""
    run = [sys.executable, "-m", "ullage", "run", "--quiet", "--gpu", GPU, "--history", history]
    return Worker(*run, "--folder", str(folder))


def within(history: str, folder: Path) -> Measured:
    """Tell the ratio of a step with a recorder's work to one without, in one process."""
    worker = recorder(history, folder)
    operations = int(worker.ask(0))
    turns = [worker.ask(-operations) for _ in range(WARM_TURNS + TURNS)][WARM_TURNS:]
    worker.end()
    step = statistics.median(seconds for without, _ in turns for seconds in without)
    shares = [_trimmed([difference for _, more in turns[share::5] for difference in more]) / step for share in range(5)]
    ratio = 1 + _trimmed([difference for _, more in turns for difference in more]) / step
    return told(
        f"a step of {step * 500:.1f} ms with {ALLOCATIONS:,} allocations, --history {history} "
        f"({TURN * TURNS:,} times two steps; five shares: {1 + min(shares):.3f} to {1 + max(shares):.3f})",
        ratio,
        BOUND,
    )


def _trimmed(values: list[float]) -> float:
    tenth = len(values) // 10
    return statistics.fmean(sorted(values)[tenth : len(values) - tenth])


def ratio_of_pair(history: str, folder: Path) -> float:
    """Return how much longer a step is in a process under `ullage run` than in one alone."""
    alone, recorded = Worker(sys.executable, "-c", BARE), recorder(history, folder)
    operations = int(alone.ask(0))
    found = []
    for turn in range(WARM_TURNS + PAIR_TURNS):
        workers = (alone, recorded) if turn % 2 else (recorded, alone)
        seconds = {worker: worker.ask(operations) for worker in workers}
        if turn >= WARM_TURNS:
            found.append(seconds[recorded] / seconds[alone])
    alone.end()
    recorded.end()
    return statistics.median(found)


BARE = (
    f"import runpy, sys, ullage; ullage.emulate({GPU!r}); sys.argv.pop(0); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def told(what: str, ratio: float, bound: float | None) -> Measured:
    """Print a figure."""
    figure = Measured(f"times as long under ullage run: {what}", ratio, "x", bound, digits=3)
    print(figure, flush=True)
    return figure


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = [within(history, folder / f"{history}-within") for history in ("never", "auto")]
        for history in ("auto", "always"):
            pairs = [ratio_of_pair(history, folder / f"{history}-{pair}") for pair in range(PAIRS)]
            low, middle, high = statistics.quantiles(pairs, n=4)
            spread = f"({PAIRS} pairs; quartiles {low:.3f} to {high:.3f})"
            what = f"the same beside a process alone, --history {history} {spread}"
            told(what, middle, None)
    sys.exit(0 if all(figure.kept for figure in figures) else 1)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
