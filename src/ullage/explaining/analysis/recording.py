"""A recorded run, prepared for analysis. It has the allocator operations, the failed allocation, and the source lines
of the blocks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ullage.base.errors import UsageError
from ullage.base.source_location import shortened
from ullage.explaining.analysis.card import recorded_card
from ullage.explaining.analysis.frame_names import is_in, node_in, operation_in
from ullage.explaining.analysis.step import step_ops
from ullage.recorded.allocator.replay import BlockColumns, ImpossibleStartError, Replay, ReplayDevice, State, replay
from ullage.recorded.frame import Frame, short_line, users_frame, users_frames
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, Op, Program
from ullage.recorded.rebuild import UNBOUNDED_BYTES, Rebuilt
from ullage.recorded.settings import Settings

NO_LINE: Final = "(no line of yours)"
"""The label for allocations whose call stack shows no source line."""

NO_STACK: Final = "(no stack was recorded)"
"""The label for allocations without a recorded call stack."""

# Pairs of a search in the name of a C++ frame, and a label. The label describes allocations that have such a frame on
# their stack. The most specific search comes first.
_KINDS: Final = (
    (re.compile(r"\bAccumulateGrad(::|_)").search, "(gradients of parameters: AccumulateGrad)"),
    (node_in, "(backward: {}{})"),
    (re.compile(r"\bc10d::|\bnccl\w*\(").search, "(communication between GPUs: c10d)"),
    (
        re.compile(r"\b(?:getCurrentCUDABlas|cublasLt|getCUDABlasLt|getChosenWorkspace|getNewWorkspace)").search,
        "(workspace of cuBLAS)",
    ),
    (re.compile(r"\bautograd::Engine::").search, "(backward)"),
)
_PATH_LINES: Final = 8


def operation_name(frames: Sequence[Frame]) -> str:
    """Return a label in brackets for an allocation whose stack contains no line of user code.

    Backward runs in threads of PyTorch's engine, so the stack shows the operation (`torch::autograd::generated::
    DivBackward0::apply`) but no Python frames. Names are those of torch 2.1 to 2.15.

    Args:
        frames: the recorded C++ frames, innermost first.
    """
    names = [frame.name for frame in frames]
    for search, text in _KINDS:
        name = next((name for name in names if is_in(search, name)), None)
        if name is not None:
            found = search(name)
            return shortened(text.format(*(found.groups() if found is not None else ())))
    # The outermost operation is the one that was called directly.
    called = next(filter(None, map(operation_in, reversed(names))), None)
    if called is not None:
        return f"(operation {shortened(called)}, called from C++)"
    generated = next((frame for frame in frames if frame.is_generated), None)
    return f"(generated code: {short_line(generated)})" if generated is not None else NO_LINE


def line_of_frames(frames: Sequence[Frame]) -> str:
    """Return the line of user code on a stack, or a label in brackets. The file's path is shortened."""
    if not frames:
        return NO_STACK
    frame = users_frame(frames)
    return short_line(frame) if frame is not None else operation_name(frames)


def placed(line: str) -> str:
    """Return words that tell where memory was allocated, such as "at train.py:17" or "outside your code"."""
    if line == NO_STACK:
        return "where no stack was recorded"
    if line == NO_LINE:
        return "outside your code"
    return line.strip("()") if line.startswith("(") else f"at {line}"


def allocated_by(line: str, what: str = "from") -> str:
    """Return "from FILE:LINE" for a source line. Return "allocated" and the label if no line is known."""
    return f"allocated {placed(line)}" if line.startswith("(") else f"{what} {line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlock:
    """A block that is alive when the allocation fails, or at the memory peak. It has an address, a size and a source
    line.
    """

    key: int
    address: int
    size_bytes: int
    segment: int
    """The index of the segment that contains the block."""
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded run, with its reconstructed allocator operations and a simulation of them under the run's own
    settings.
    """

    history: History
    rebuilt: Rebuilt
    program: Program
    """The allocator operations up to the last failed allocation, or all operations if none failed."""
    failing_op: int | None
    done: Replay
    """The simulation of the whole run under its own settings."""
    moment: Replay
    """The simulation up to the failed allocation, or up to the memory peak if none failed."""
    refused_bytes: int = 0
    """The free GPU memory minus the memory that the failed allocation needed. If positive, the GPU had enough
    memory.
    """
    held_back: frozenset[int] = frozenset()
    """The IDs of freed blocks whose memory could not yet be reused when the allocation failed.

    PyTorch waits for other streams before a request fails, but not during a graph capture.
    """

    @classmethod
    def of(cls, history: History, rebuilt: Rebuilt) -> "Recording":
        """Simulate the run up to its last failed allocation."""
        failed = np.flatnonzero(history.action == Action.OOM)
        program = rebuilt.program
        if rebuilt.room_is_known and rebuilt.settings.per_process_memory_fraction < 1:
            # The recorded free memory is what the fraction left: the capacity already includes the fraction.
            rebuilt = replace(rebuilt, settings=replace(rebuilt.settings, per_process_memory_fraction=1.0))
        if len(failed):
            last = (rebuilt.row_of_op == failed[-1]) & (program.op == Op.ALLOCATE)
            failing, refused = int(np.flatnonzero(last)[-1]), 0
            if rebuilt.room_is_known:
                refused = _beyond_need(rebuilt, failing, free_bytes=int(history.address[failed[-1]]))
                # More was reserved earlier in the run, so no limit refused the request: the allocator itself gave up.
                if rebuilt.room_bytes - refused < recorded_card(history).peak_reserved_bytes:
                    refused = 0
                beyond = rebuilt.beyond_room_bytes + refused if rebuilt.beyond_room_bytes else 0
                rebuilt = replace(rebuilt, room_bytes=rebuilt.room_bytes - refused, beyond_room_bytes=beyond)
            until = cut(program, failing + 1)
            device = ReplayDevice.of(rebuilt)
            done, held_back = _whole_replay(until, rebuilt.settings, device), frozenset[int]()
            if not _fails(done, failing) and rebuilt.room_is_known and (held_back := _waiting(until)):
                until = _kept_alive(until, held_back)
                done = _whole_replay(until, rebuilt.settings, device)
            if _fails(done, failing) and (rebuilt.room_is_known or _first_fails_as_recorded(done, rebuilt, failed)):
                found = cls(history=history, rebuilt=rebuilt, program=until, failing_op=failing, done=done, moment=done)
                return replace(found, refused_bytes=refused, held_back=held_back)
        device = ReplayDevice.of(rebuilt)
        done = moment = _whole_replay(program, rebuilt.settings, device, stop_after_ooms=1)
        if done.ran_out:
            program = cut(program, done.done)
        else:
            fullest = max(program.setup, done.peak_allocated_op + 1)
            moment = replay(cut(program, fullest), rebuilt.settings, device)
        failing_op = done.done - 1 if done.ran_out else None
        return cls(history=history, rebuilt=rebuilt, program=program, failing_op=failing_op, done=done, moment=moment)

    @property
    def is_of_everything(self) -> bool:
        """Whether the simulation covers the whole recording."""
        rest = slice(len(self.program), None)
        whole = self.rebuilt.program
        if self.failing_op is None or self.held_back:
            return not self.held_back and len(self.program) == len(whole)
        left = (whole.op[rest] == Op.FREE) & (whole.key[rest] == whole.key[self.failing_op])
        return bool(left.all())

    def run(self, settings: Settings, program: Program | None = None) -> Replay:
        """Simulate a run under other allocator settings, with the same memory capacity."""
        device = ReplayDevice.of(self.rebuilt)
        if settings.per_process_memory_fraction < 1:  # a memory fraction refers to the capacity
            device = ReplayDevice(total_bytes=self.rebuilt.room_bytes)
        return replay(program or self.program, settings, device)

    def stack_of(self, key: int) -> int:
        """Return the ID of the call stack that allocated a block. -1 means no stack; -2 means a block older than the
        recording.
        """
        if key < 0:
            return -1
        stack = int(self.rebuilt.stack_of_key[key])
        return -2 if stack < 0 and self.rebuilt.row_of_key[key] < 0 else stack

    def line_of(self, key: int) -> str:
        """Return the line of user code that allocated a block. The file's path is shortened to its last two parts."""
        return self.line_of_stack(self.stack_of(key))

    def line_of_stack(self, stack: int) -> str:
        """Return the line of user code on a call stack. `stack` is an ID that `stack_of` returns."""
        if stack < 0:
            return "(before recording began)" if stack == -2 else NO_STACK
        return line_of_frames(self.history.stacks.frames_of(stack))

    def path_of_stack(self, stack: int) -> tuple[str, ...]:
        """Return the innermost eight lines of user code on a call stack, ordered from outermost to innermost."""
        if stack < 0:
            return (self.line_of_stack(stack),)
        own = [short_line(frame) for frame in users_frames(self.history.stacks.frames_of(stack))]
        return tuple(reversed(own[:_PATH_LINES])) or (self.line_of_stack(stack),)

    @property
    def capacity_is_given(self) -> bool:
        """Whether the user specified the memory capacity with `--capacity`."""
        return not self.rebuilt.room_is_known and self.rebuilt.room_bytes < UNBOUNDED_BYTES

    @property
    def has_recorded_failure(self) -> bool:
        """Whether the recording contains a failed allocation."""
        return bool((self.history.action == Action.OOM).any())

    @property
    def is_recorded_failure(self) -> bool:
        """Whether the simulation fails at the last allocation that failed in the recording."""
        failed = np.flatnonzero(self.history.action == Action.OOM)
        return self.failing_op is not None and self.rebuilt.row_of_op[self.failing_op] in failed[-1:]

    @property
    def program_has_streams(self) -> bool:
        """Whether any block was freed while another CUDA stream still used it."""
        return bool((self.program.op == Op.HOLD).any())

    def held(self, blocks: BlockColumns | None = None) -> list[HeldBlock]:
        """Return the blocks that are alive when the allocation fails, or at the memory peak. The largest comes
        first.
        """
        blocks = blocks or self.moment.blocks
        alive = np.flatnonzero(blocks.state == State.ALLOCATED)
        lines: dict[int, str] = {}
        found = []
        for row in alive.tolist():
            key = int(blocks.key[row])
            if key in self.held_back:
                continue
            stack = self.stack_of(key)
            if stack not in lines:
                lines[stack] = self.line_of_stack(stack)
            found.append(
                HeldBlock(
                    key=key,
                    address=int(blocks.address[row]),
                    size_bytes=int(blocks.size[row]),
                    segment=int(blocks.segment[row]),
                    line=lines[stack],
                )
            )
        return sorted(found, key=lambda block: -block.size_bytes)

    def pool_of_ops(self) -> Column:
        """Return the private pool in use at each operation. 0 is the default pool."""
        program = self.program
        begins = program.op == Op.BEGIN_POOL
        last = np.maximum.accumulate(np.where(begins | (program.op == Op.END_POOL), np.arange(len(program)), -1))
        return np.where((last >= 0) & begins[last], program.key[last], 0)

    def step_ops(self) -> list[int]:
        """Return the indices of the operations that end a training step."""
        return step_ops(self.history, self.rebuilt, len(self.program))


def _whole_replay(program: Program, settings: Settings, device: ReplayDevice, *, stop_after_ooms: int = 0) -> Replay:
    try:
        return replay(program, settings, device, calls=True, places=True, stop_after_ooms=stop_after_ooms)
    except ImpossibleStartError as error:
        raise UsageError(
            f"the file contradicts itself: by its entries {error}; nothing can be concluded from it, "
            "unless its entries are not in the order in which they were written"
        ) from None


def segment_bytes(requested: int, settings: Settings) -> int:
    """Return how many bytes an empty allocator would take from the driver to serve one allocation."""
    one = np.array([requested], np.int64)
    zero = np.zeros(1, np.int64)
    program = Program(op=np.array([Op.ALLOCATE], np.int64), key=zero, size=one, stream=zero)
    return replay(program, settings, ReplayDevice(total_bytes=1 << 60)).now.reserved_bytes


def _beyond_need(rebuilt: Rebuilt, failing: int, *, free_bytes: int) -> int:
    needed = segment_bytes(int(rebuilt.program.size[failing]), rebuilt.settings)
    return max(0, free_bytes - needed + 1)


def _fails(done: Replay, op: int) -> bool:
    return op in (*done.oom_ops.tolist(), *done.rejected_ops.tolist())


# If the given capacity is too small, a different request fails first.
def _first_fails_as_recorded(done: Replay, rebuilt: Rebuilt, failed: Column) -> bool:
    first = min((*done.oom_ops.tolist(), *done.rejected_ops.tolist()))
    return bool(rebuilt.row_of_op[first] in failed)


def _waiting(program: Program) -> frozenset[int]:
    held: dict[int, int] = {}
    rows = zip(program.op.tolist(), program.key.tolist(), program.stream.tolist(), strict=True)
    for op, key, stream in rows:
        if op == Op.RECORD_STREAM:
            held[stream] = key
        elif op == Op.COMPLETE:
            held.pop(stream, None)
    freed = set(program.key[program.op == Op.FREE].tolist())
    return frozenset(freed & set(held.values()))


def _kept_alive(program: Program, keys: frozenset[int]) -> Program:
    op = program.op.copy()
    op[(op == Op.FREE) & np.isin(program.key, list(keys))] = Op.NOTHING
    return replace(program, op=op)


def cut(program: Program, length: int) -> Program:
    """Return the first `length` operations of a program."""
    return program.of_rows(slice(length))


def insert(program: Program, before: Mapping[int, Sequence[tuple[Op, int]]]) -> Program:
    """Return a copy of a program with additional operations. `before` maps operation indices to the operations inserted
    there.
    """
    at, ops, keys = [], [], []
    for index, added in sorted(before.items()):
        for op, key in added:
            at.append(index)
            ops.append(int(op))
            keys.append(key)
    places = np.array(at, np.int64) + np.arange(len(at))
    is_old = np.ones(len(program) + len(at), np.bool_)
    is_old[places] = False

    def with_added(column: Column, added: Sequence[int] | int) -> Column:
        found = np.empty(len(is_old), np.int64)
        found[is_old], found[places] = column, added
        return found

    return replace(
        program,
        op=with_added(program.op, ops),
        key=with_added(program.key, keys),
        size=with_added(program.size, 0),
        stream=with_added(program.stream, 0),
    )
