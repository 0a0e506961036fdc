"""What `ullage run` costs a step of 10 ms that allocates 2,000 times, on the emulated card, where a step is the host's
work and nothing else. `make bench`. Exits 1 past a bound.

The same script runs alone and under `ullage run`, in two processes that take turns of twenty steps; no other work runs
meanwhile. What is told is the ratio of medians, turn by turn, and how far apart the ratios of five shares are. In its
default mode and with the whole history.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from figure import Measured

ALLOCATIONS, STEP_SECONDS = 2000, 0.010
TURN, TURNS, WARM_TURNS, SHARES = 20, 60, 5, 5
BOUND = 1.03
GPU = "T4"


def work() -> None:
    """Run a turn of steps for each line that comes in: how many host operations a step has, 0 to find that out."""
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

    for line in sys.stdin:
        operations = int(line)
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

    def ask(self, operations: int) -> float:
        """Return the median seconds of the steps of a turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(operations, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """Let it come to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def ratios(history: str, folder: Path) -> tuple[list[float], float]:
    """Return the ratio of every turn, and the milliseconds of a bare step."""
    alone = Worker(sys.executable, "-c", BARE)
    run = [sys.executable, "-m", "ullage", "run", "--quiet", "--gpu", GPU, "--history", history]
    recorded = Worker(*run, "--folder", str(folder / history))
    operations = int(alone.ask(0))
    found, bare = [], []
    for turn in range(WARM_TURNS + TURNS):
        workers = (alone, recorded) if turn % 2 else (recorded, alone)
        seconds = {worker: worker.ask(operations) for worker in workers}
        if turn >= WARM_TURNS:
            found.append(seconds[recorded] / seconds[alone])
            bare.append(seconds[alone])
    alone.end()
    recorded.end()
    return found, statistics.median(bare) * 1000


BARE = (
    f"import runpy, sys, ullage; ullage.emulate({GPU!r}); sys.argv.pop(0); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


def main() -> None:
    """Print the figures."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for history, bound in (("never", BOUND), ("auto", BOUND), ("always", None)):
            found, bare = ratios(history, Path(folder))
            shares = [statistics.median(found[share::SHARES]) for share in range(SHARES)]
            what = f"times as long a step of {bare:.1f} ms with {ALLOCATIONS:,} allocations takes, --history {history}"
            spread = f" (five shares: {min(shares):.3f} to {max(shares):.3f})"
            figures.append(Measured(what + spread, statistics.median(found), "x", bound, digits=3))
            print(figures[-1], flush=True)
    sys.exit(0 if all(figure.kept for figure in figures) else 1)


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else main()
