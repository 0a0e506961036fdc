"""What a monitor costs a healthy loop, on the emulated card, where a step is the host's work and nothing else.
`make bench`. Exits 1 past a bound.

Each step of a model is timed, and right after it the monitor's, whose code and data the step has driven out of the
processor's caches by then. Time is the process's own CPU time. What is told is the mean of a monitor's steps, of which
every second reads statistics and every eighth judges, over the median of the model's; and how far apart the means of
five shares are. Further runs count calls to CUDA with a monitor and without, and add up what a monitor holds.
"""

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ullage

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "guard"))
from counted import CALLS, build, counting
from figure import Measured
from overhead import MODELS, STEP_SECONDS, WARM, made, seconds_of  # the guard's, whose models these are

STEPS, SHARES = 1000, 5
COUNTED_STEPS, SIZE_TO_COUNT = 200, 4
BOUND = 1.01
MANY, BEFORE = 1_000_000, 20_000
KEPT_KIB = 16


def step_of(name: str, size: int) -> Callable[[], Any]:
    """Return a step of a model on the card."""
    model, optimizer, batch, loss_of, _ = made(name, "cuda", size)
    assert model is not None

    def step() -> None:
        optimizer.zero_grad()
        loss_of(batch).backward()
        optimizer.step()

    return step


def size_for(name: str) -> int:
    """Find the least size at which a step takes 10 ms."""
    size = 1
    while True:
        step = step_of(name, size)
        for _ in range(WARM):
            step()
        seconds = statistics.median(seconds_of(step) for _ in range(4 * WARM))
        if seconds >= STEP_SECONDS:
            return size
        size = max(size + 1, min(2 * size, round(0.9 * size * STEP_SECONDS / seconds)))


def timed(name: str) -> dict[str, float]:
    """Time both: milliseconds of a bare step, what a monitor adds in microseconds, and as a ratio."""
    import torch

    torch.set_num_threads(1)
    step = step_of(name, size_for(name))
    monitor = ullage.Monitor()
    for _ in range(WARM):
        step()
        monitor.step()
    gc.collect()
    gc.freeze()
    steps, watching = [], []
    for _ in range(STEPS):
        steps.append(seconds_of(step))
        watching.append(seconds_of(monitor.step))
    assert not [one for one in monitor.findings if one.is_leak]
    shares = [statistics.mean(watching[share::SHARES]) for share in range(SHARES)]
    bare, nothing = statistics.median(steps), statistics.median(seconds_of(int) for _ in range(STEPS))
    added = statistics.mean(watching) - nothing
    return {
        "ms": 1000 * bare,
        "added": 1e6 * added,
        "ratio": 1 + added / bare,
        "spread": (max(shares) - min(shares)) / bare,
    }


def counts(name: str, way: str, calls: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Count what many steps on the card ask of CUDA."""
    step, monitor = step_of(name, SIZE_TO_COUNT), ullage.Monitor()
    for _ in range(WARM):
        step()
    before = calls()
    for _ in range(COUNTED_STEPS):
        step()
        if way == "watched":
            monitor.step()
    after = calls()
    return {call: after[call] - before[call] for call in CALLS}


def kept() -> dict[str, float]:
    """Tell what a monitor holds more after a million steps, in KiB, with lengths that vary and phases."""
    import torch

    held = []
    with ullage.Monitor(log=lambda line: None) as monitor:
        for number in range(1, MANY + 1):
            batch = torch.empty(1 + number * 7919 % 4096, device="cuda")
            monitor.step()
            if number % 5000 == 0:
                with monitor.phase("eval"):
                    batch = torch.empty(4096, device="cuda")
            if number in (BEFORE, MANY):
                del batch
                held.append(held_by(monitor))
    return {"kib": (held[1] - held[0]) / 1024, "findings": len(monitor.findings)}


def held_by(root: object) -> int:
    """Add up the sizes of all that an object leads to, but for code, classes and modules."""
    seen, found, total = {id(root)}, [root], 0
    while found:
        one = found.pop()
        total += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, type | types.ModuleType | types.FunctionType):
                seen.add(id(other))
                found.append(other)
    return total


def run_alone(task: str, name: str, way: str, library: str) -> None:
    """What a process of its own does."""
    calls = counting(Path(library)) if task == "--count" else None
    ullage.emulate("T4")
    print(json.dumps(kept() if task == "--keep" else timed(name) if calls is None else counts(name, way, calls)))


def alone(task: str, name: str, way: str, library: Path) -> Any:
    command = [sys.executable, __file__, task, name, way, library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{task} {name} {way} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def measurements(library: Path) -> Iterator[Measured]:
    for name in MODELS:
        found = alone("--time", name, "", library)
        what = f"{name} ({found['ms']:.1f} ms + {found['added']:.0f} us): watched / bare"
        yield Measured(what, found["ratio"], "x", BOUND, digits=4)
        yield Measured(f"{name}: between the means of fifths of the steps", found["spread"], "x", digits=4)
    for name in MODELS:
        bare, watched = (alone("--count", name, way, library) for way in ("bare", "watched"))
        for call in CALLS:
            what = f"{name}: {call} added in {COUNTED_STEPS} steps (bare: {bare[call]})"
            yield Measured(what, watched[call] - bare[call], "", 0)
    found = alone("--keep", "", "", library)
    what = f"more held after {MANY:,} steps than after {BEFORE:,} ({found['findings']} findings)"
    yield Measured(what, found["kib"], "KiB", KEPT_KIB)


def main() -> None:
    if sys.argv[1:2] in (["--time"], ["--count"], ["--keep"]):
        return run_alone(*sys.argv[1:])
    is_kept = True
    with tempfile.TemporaryDirectory() as folder:
        for measured in measurements(build(Path(folder))):
            print(measured, flush=True)
            is_kept &= measured.kept
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
