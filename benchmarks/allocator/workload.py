"""Programs of allocations and frees to measure an allocator with."""

from pathlib import Path

import numpy as np

from ullage.recorded.program import Op, Program
from ullage.recorded.rebuild import program_of
from ullage.recorded.snapshot.snapshot import load_snapshot

RECORDED = Path(__file__).parents[2] / "tests" / "snapshots"
MIB = 1 << 20


def program_of_columns(op: np.ndarray, key: np.ndarray, size: np.ndarray, stream: np.ndarray | None = None) -> Program:
    """Put columns together; the stream is the default one where none is given."""
    columns = [np.ascontiguousarray(column, np.int64) for column in (op, key, size)]
    streams = np.zeros(len(op), np.int64) if stream is None else np.ascontiguousarray(stream, np.int64)
    return Program(op=columns[0], key=columns[1], size=columns[2], stream=streams)


def recorded(name: str, events: int) -> Program:
    """A recorded training run, again and again, each time until nothing is alive, up to about so many events."""
    program = program_of(load_snapshot(RECORDED / f"{name}.pickle.gz").devices[0]).program
    taken = (program.op == Op.ALLOCATE) | (program.op == Op.FREE)
    op, key, size, stream = (column[taken] for column in (program.op, program.key, program.size, program.stream))
    left = np.setdiff1d(key[op == Op.ALLOCATE], key[op == Op.FREE])
    op, size, stream = (
        np.concatenate([column, np.full(len(left), value)]) for column, value in ((op, Op.FREE), (size, 0), (stream, 0))
    )
    key = np.concatenate([key, left])
    key = np.unique(key, return_inverse=True)[1]
    times = max(1, events // len(op))
    keys = key[None, :] + (key.max() + 1) * np.arange(times)[:, None]
    return program_of_columns(np.tile(op, times), keys.reshape(-1), np.tile(size, times), np.tile(stream, times))


def random(events: int, *, alive: int, sizes: tuple[int, int], seed: int = 20260901) -> Program:
    """Blocks of sizes between two bounds (as many small as large ones, by powers of two), of which about `alive` live.

    A block that is freed is any of those alive.
    """
    chance = np.random.default_rng(seed)
    low, high = np.log2(sizes)
    size_of_key = np.exp2(chance.uniform(low, high, events)).astype(np.int64)
    picks = chance.random(events)
    frees = chance.random(events) < 0.5
    op, key, size = (np.zeros(events, np.int64) for _ in range(3))
    living: list[int] = []
    next_key = 0
    for row, (pick, is_free) in enumerate(zip(picks.tolist(), frees.tolist(), strict=True)):
        if (living and (is_free if len(living) > alive // 2 else False)) or len(living) >= alive:
            place = int(pick * len(living))
            living[place], living[-1] = living[-1], living[place]
            op[row], key[row] = Op.FREE, living.pop()
        else:
            op[row], key[row], size[row] = Op.ALLOCATE, next_key, size_of_key[next_key]
            living.append(next_key)
            next_key += 1
    return program_of_columns(op, key, size)


def workloads(events: int) -> dict[str, Program]:
    """What is measured, by name."""
    return {
        "recorded training, GPT": recorded("normal", events),
        "recorded training, lengths that vary": recorded("variable_length_oom", events),
        "random sizes, 512 B to 64 MiB, 1,000 alive": random(events, alive=1000, sizes=(512, 64 * MIB)),
        "many small, 512 B to 64 KiB, 20,000 alive": random(events, alive=20000, sizes=(512, MIB // 16)),
    }


def big(events: int) -> Program:
    """A long run: the recorded training, over and over."""
    return recorded("normal", events)
