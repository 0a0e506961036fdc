"""A recorded run, ready to be asked: its program, the moment that matters, and the lines behind its blocks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ullage.allocator.replay import Blocks, Device, Replay, State, replay
from ullage.history import Action, Frame, History
from ullage.program import Op, Program
from ullage.rebuild import Rebuilt
from ullage.settings import Settings

_LIBRARY: Final = re.compile(
    r"[\\/](site|dist)-packages[\\/]|/lib/python\d|[\\/]Lib[\\/]|^<|^$|^\?\?$|\.(cpp|cc|c|h|cu|cuh|so)$"
)
_STEP: Final = re.compile(r"^Optimizer\.step#|^ProfilerStep#|^step", re.IGNORECASE)


def users_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame that is the user's own: of no library, and no C++."""
    return next((frame for frame in frames if not _LIBRARY.search(frame.file)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A block that was alive at the moment: bytes after rounding, its program's key, the user's line."""

    key: int
    address: int
    size_bytes: int
    segment: int
    """Index into the replay's segments."""
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A history, its program, and what happens when it runs under its own settings."""

    history: History
    rebuilt: Rebuilt
    program: Program
    """Up to and including the request that failed last, if one did."""
    failing_op: int | None
    done: Replay
    """The program under its own settings, to its end."""

    @classmethod
    def of(cls, history: History, rebuilt: Rebuilt) -> "Recording":
        """Run the program, up to the last request that failed, or to the first that fails in the given room."""
        failed = np.flatnonzero(history.action == Action.OOM)
        device = Device(total_bytes=rebuilt.room_bytes)
        program, failing = rebuilt.program, None
        if len(failed):
            failing = int(np.flatnonzero(rebuilt.row_of_op == failed[-1])[-1])
            program = cut(program, failing + 1)
        done = replay(program, rebuilt.settings, device, stop_after_ooms=0 if failing is not None else 1)
        if failing is None and done.ran_out:
            failing = done.done - 1
            program = cut(program, done.done)
        return cls(history=history, rebuilt=rebuilt, program=program, failing_op=failing, done=done)

    def run(self, settings: Settings, program: Program | None = None) -> Replay:
        """Run a program under other settings on the same room."""
        return replay(program or self.program, settings, Device(total_bytes=self.rebuilt.room_bytes))

    def line_of(self, key: int) -> str:
        """The user's line that allocated a block, with the last two parts of its path."""
        if key < 0:
            return "(unknown)"
        stack = int(self.rebuilt.stack_of_key[key])
        frame = users_frame(self.history.stacks.frames_of(stack))
        if frame is not None:
            parts = frame.file.replace("\\", "/").split("/")
            return f"{'/'.join(parts[-2:])}:{frame.line}"
        if self.rebuilt.row_of_key[key] < 0 and stack < 0:
            return "(before recording began)"
        return "(no line of yours)" if stack >= 0 else "(no stack was recorded)"

    def held(self, blocks: Blocks | None = None) -> list[Held]:
        """Blocks that are alive when the program ends, largest first."""
        blocks = blocks or self.done.blocks
        alive = np.flatnonzero(blocks.state == State.ALLOCATED)
        lines: dict[int, str] = {}
        found = []
        for row in alive.tolist():
            key = int(blocks.key[row])
            stack = int(self.rebuilt.stack_of_key[key]) if key >= 0 else -2
            if stack not in lines or stack < 0:
                lines[stack] = self.line_of(key)
            found.append(
                Held(
                    key=key,
                    address=int(blocks.address[row]),
                    size_bytes=int(blocks.size[row]),
                    segment=int(blocks.segment[row]),
                    line=lines[stack],
                )
            )
        return sorted(found, key=lambda block: -block.size_bytes)

    def step_ops(self) -> list[int]:
        """The operation after which each step ends, as far as annotations tell: the optimizer's steps."""
        ends = [
            annotation.time_us
            for annotation in self.history.annotations
            if annotation.stage == "END" and _STEP.search(annotation.name)
        ]
        times = self.history.time_us
        if not ends or not len(times) or times[-1] < 0:
            return []
        rows = np.searchsorted(times, np.array(ends), side="right") - 1
        ops = np.searchsorted(self.rebuilt.row_of_op, rows, side="right") - 1
        return [int(op) for op in ops.tolist() if 0 <= op < len(self.program)]


def cut(program: Program, length: int) -> Program:
    """Return a program's first operations."""
    return replace(
        program,
        op=program.op[:length],
        key=program.key[:length],
        size=program.size[:length],
        stream=program.stream[:length],
    )


def insert(program: Program, before: Mapping[int, Sequence[tuple[Op, int]]]) -> Program:
    """Return a program with operations (op, key) put before others, by index."""
    at, ops, keys = [], [], []
    for index, added in sorted(before.items()):
        for op, key in added:
            at.append(index)
            ops.append(int(op))
            keys.append(key)
    zeros = np.zeros(len(at), np.int64)
    return replace(
        program,
        op=np.insert(program.op, at, np.array(ops, np.int64)),
        key=np.insert(program.key, at, np.array(keys, np.int64)),
        size=np.insert(program.size, at, zeros),
        stream=np.insert(program.stream, at, zeros),
    )
