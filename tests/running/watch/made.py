"""Live files as `ullage run` makes them, without torch: written by a process of their own, or by the test."""

import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ullage.base.units import GIB, MIB
from ullage.running.recording.plan import RecordingPlan
from ullage.running.run_files.facts import Arming, RunCard, RunFacts, RunPeak
from ullage.running.run_files.live import LiveWriter, Sample

ROOT = Path(__file__).parents[3]
TOTAL = 15 * GIB


def card(index: int = 0, **changes: Any) -> RunCard:
    """An emulated T4, as PyTorch sees it."""
    uuid = f"756c6c61-6765-0000-0000-{index:012x}"
    fields = {"index": index, "name": "Tesla T4", "uuid": uuid, "total_bytes": TOTAL, "limit_bytes": TOTAL}
    return RunCard(**fields | changes)


def sample(step: int, *, device: int = 0, **changes: Any) -> Sample:
    """Memory that goes up and down as batches do."""
    peak = int((7 + 4 * math.sin(step / 6)) * GIB)
    return Sample(
        step=step,
        time=time.time(),
        device=device,
        allocated_bytes=4 * GIB,
        reserved_bytes=12 * GIB,
        peak_bytes=peak,
        used_bytes=12 * GIB + 300 * MIB,
        split_bytes=64 * MIB,
        retries=0,
        ooms=0,
    )._replace(**changes)


def facts(**changes: Any) -> RunFacts:
    """Of a training of rank 0 that this process runs."""
    told: dict[str, Any] = {
        "pid": os.getpid(),
        "command": ("train.py", "--batch-size", "8"),
        "host": platform.node(),
        "started": time.time(),
        "told": time.time(),
        "torch": "2.11.0",
        "is_emulated": True,
        "steps": 90,
        "step_seconds": 0.25,
        "cards": (card(),),
        "peaks": (RunPeak(bytes=11 * GIB, device=0, step=9, line="train.py:33"),),
        "roles": {"parameters": GIB, "gradients": GIB, "optimizer state": 3 * GIB // 2},
        "arming": Arming(
            is_on=True, why="memory is short", since_step=40, entries=1000, budget_bytes=64 * MIB, cost=1.012
        ),
    }
    return RunFacts(**told | changes)


def write(path: Path, told: RunFacts, samples: list[Sample]) -> Path:
    """Make a live file."""
    writer = LiveWriter(path)
    for one in samples:
        writer.add(one)
    writer.write_facts(told.to_json())
    return path


def environment_of(folder: Path) -> dict[str, str]:
    """What `ullage run` gives to what it starts."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environment.pop("ULLAGE_EMULATED_CARD", None)
    RecordingPlan(folder=folder).put_into(environment)
    return environment


def start(folder: Path, *, rank: int | None = None, until: str = "") -> "subprocess.Popen[str]":
    """Start a process of a run; it takes a step every 50 ms, and ends when its input does, with a state."""
    command = [sys.executable, "-m", "tests.running.watch.made", str(folder), "" if rank is None else str(rank), until]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment_of(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "steps\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    """Let a process end in its own way, and wait for it."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait(900)
    process.stdout.close()


def _run(folder: Path, rank: str, until: str) -> None:
    name = f"rank{rank}" if rank else "process"
    told: dict[str, Any] = {"rank": int(rank), "world_size": 4} if rank else {}
    writer = LiveWriter(folder / f"{name}-{os.getpid()}.live")
    writer.write_facts(facts(**told).to_json())
    for step in range(1, 81):
        writer.add(sample(step))
    print("steps", flush=True)
    step = 80
    os.set_blocking(0, False)
    while sys.stdin.buffer.read(1) is None:
        step += 1
        writer.add(sample(step))
        time.sleep(0.05)
    if until == "out of memory":
        evidence = f"oom-{os.getpid()}-1"
        (folder / evidence).mkdir()
        told |= {"ooms": 1, "evidence": (evidence,)}
        writer.add(sample(step + 1, ooms=1))
    if until:
        writer.write_facts(facts(state=until, **told).to_json())


if __name__ == "__main__":
    _run(Path(sys.argv[1]), *sys.argv[2:])
