"""Make the snapshots and messages of `corpus/`, with PyTorch on emulated cards: `python -m tests.fuzzing.make_corpus`.

Each has a few dozen entries, so that a change to one of them is likely to matter.
"""

import gzip
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MIB = 1 << 20


def _train(torch, steps: int, device: str = "cuda") -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(steps):
        model(torch.empty(64, 256, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _until_full(torch, device: str = "cuda") -> None:
    kept = []
    try:
        while True:
            kept.append(torch.empty(len(kept) % 5 * 9 * MIB + 1000, dtype=torch.uint8, device=device))
    except torch.cuda.OutOfMemoryError:
        pass


def no_failure(torch) -> None:
    """Two training steps that fit."""
    _train(torch, 2)


def out_of_memory(torch) -> None:
    """A card that is filled."""
    _train(torch, 1)
    _until_full(torch)


def expandable(torch) -> None:
    """Expandable segments, of which pages are given back before the card is full."""
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    blocks = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(6)]
    del blocks[::2]
    torch.cuda.empty_cache()
    _until_full(torch)


def two_cards(torch) -> None:
    """Two cards, the second of which is filled; blocks that wait for another stream."""
    _train(torch, 1)
    side = torch.cuda.Stream()
    block = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    block.record_stream(side)
    _until_full(torch, "cuda:1")


def pools(torch) -> None:
    """Private pools and streams."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (1, 3, 20)]
    with torch.cuda.stream(torch.cuda.Stream()):
        kept += [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (2, 7)]
    del kept[1]
    _train(torch, 1)
    KEPT.append((pool, kept))


KEPT: list[object] = []
"""Until its process ends: a MemPool's destructor counts its users."""


def state_only(torch) -> None:
    """No recording: blocks and segments alone."""
    torch.cuda.memory._record_memory_history(enabled=None)
    _train(torch, 1)
    KEPT.append(torch.empty(9 * MIB, dtype=torch.uint8, device="cuda"))


MAKERS: tuple[Callable[..., None], ...] = (no_failure, out_of_memory, expandable, two_cards, pools, state_only)


def _make(name: str) -> None:
    import ullage

    ullage.emulate("1GiB", total_memory_bytes=256 * MIB, context_bytes=64 * MIB, count=2)
    import torch

    torch.cuda.memory._record_memory_history(stacks="python")
    next(maker for maker in MAKERS if maker.__name__ == name)(torch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        # Read and written again: nobody else has made this file, and Python's pickle keeps what is named twice once.
        whole = pickle.loads(path.read_bytes())
    here = str(Path(__file__).parents[2])
    text = pickle.dumps(_without(whole, here), protocol=4)
    (CORPUS / f"{name}.pickle.gz").write_bytes(gzip.compress(text, 9, mtime=0))


def _without(value, folder: str):
    """A copy without the paths of the machine that made it."""
    match value:
        case dict():
            return {key: _without(one, folder) for key, one in value.items()}
        case list():
            return [_without(one, folder) for one in value]
        case str():
            return value.replace(folder, "/home/user").replace(sys.prefix, "/usr")
    return value


_SCRIPT = """import torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.empty(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def _make_messages() -> None:
    """Write down what the process of a script tells its parent, the longest message of each kind."""
    import json

    import ullage
    from ullage.predicting.prediction.process import listener as process

    told: dict[str, str] = {}
    take = process.Listener._take_message

    def note(listener, voice, message) -> None:
        text = json.dumps(message)
        told[message["event"]] = max(told.get(message["event"], ""), text, key=len)
        take(listener, voice, message)

    process.Listener._take_message = note
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(_SCRIPT)
        ullage.predict(str(script), gpu="T4")
        lines = [_without(text, folder) for text in told.values()]
    (CORPUS / "messages.jsonl").write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    """Make all of them, each in a process of its own."""
    _make_messages()
    for maker in MAKERS:
        child = os.fork()
        if not child:
            _make(maker.__name__)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{maker.__name__} ended with status {status}")


if __name__ == "__main__":
    main()
