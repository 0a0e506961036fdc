"""The forward line that explain finds for what backward allocates, beside the one that anomaly mode knows."""

import json
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.roles.compare import recording_of
from ullage.explaining.analysis.recording import users_frame
from ullage.explaining.analysis.role import Sureness
from ullage.explaining.analysis.role.forward_line import forward_stacks_of
from ullage.recorded.history import Action
from ullage.recorded.snapshot.snapshot import load_snapshot

SCRIPT = Path(__file__).resolve().with_name("forward_lines.py")
# Those whose forward pass is on several lines of the script.
NAMES = (
    *("mlp_without_modules", "gradient_accumulation", "cnn_sgd", "cnn_channels_last_amp", "diffusion_unet_ema", "gan"),
    *("autoencoder_double_backward", "lstm", "torch_transformer", "gpt2", "lora_by_hand", "checkpointed"),
    *("checkpointed_reentrant", "own_function", "autocast_bf16"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Bytes that backward allocated without a line of the script's, by how sure explain is of one; None: no line."""

    name: str
    said: Counter[Sureness | None]
    right: Counter[Sureness | None]


def collect_lines(name: str, folder: Path) -> None:
    """Run a workload in a process of its own, where it was not run before."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / f"{name}.json").exists():
        return
    done = subprocess.run([sys.executable, str(SCRIPT), name, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")


def compare_lines(name: str, folder: Path) -> Lines:
    """Compare one workload, over everything that backward allocated in it."""
    nodes = json.loads((folder / f"{name}.json").read_text())
    before = [count for count, _ in nodes]
    (history,) = load_snapshot(folder / f"{name}.pickle").devices.values()
    recording = recording_of(history)
    rebuilt, frames_of = recording.rebuilt, history.stacks.frames_of
    number = {int(row): index for index, row in enumerate(np.flatnonzero(history.action == Action.ALLOC))}
    found = forward_stacks_of(recording, range(len(rebuilt.size_of_key)))
    said: Counter[Sureness | None] = Counter()
    right: Counter[Sureness | None] = Counter()
    for key, row in enumerate(rebuilt.row_of_key.tolist()):
        at = bisect_right(before, number[row]) - 1 if row >= 0 else -1
        line = nodes[at][1] if at >= 0 else None
        if line in (None, "(end)") or users_frame(frames_of(int(rebuilt.stack_of_key[key]))) is not None:
            continue
        stack, sureness = found.get(key, (-1, None))
        frame = users_frame(frames_of(stack))
        size = int(rebuilt.size_of_key[key])
        said[sureness] += size
        right[sureness] += size if frame is not None and str(frame.line) == line else 0
    return Lines(name=name, said=said, right=right)
