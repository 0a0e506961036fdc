"""Infers the role of every block, such as parameter or gradient, and how certain it is.

Two properties decide together: the part of the step that allocated the block (`maker`), and its lifetime (`life`). A
block that a forward pass allocates and that is alive in backward is an activation. A block that an optimizer's step
allocates and leaves is optimizer state. If neither property decides, sizes may: a gradient has the size of its
parameter. Names in the script do not matter, except for functions called `forward`.
"""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from ullage.base.block_role import Role
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role.life import NEVER, KeyLives, Passes, counterparts, next_of, passes_of, previous_of
from ullage.explaining.analysis.role.maker import Makers, Mask, Pass, makers_of
from ullage.recorded.history import Action
from ullage.recorded.program import Column, is_one_of

ROLES: Final = tuple(Role)
# The size in bytes of cuBLAS's workspace for each stream and thread. It holds for GPUs below compute capability 9.0.
_CUBLAS_BYTES: Final = 8_519_680
# Two workspace sizes in bytes. The first is that of cuBLASLt. The second is that of cuBLAS and cuBLASLt from compute
# capability 9.0 on. A tensor can have one of these sizes by chance.
_CUBLASLT_BYTES: Final = (1_048_576, 33_554_432)


class Sureness(IntEnum):
    """How certain the role of a block is."""

    CERTAIN = 0
    """The call stack and the lifetime of the block both show its role."""
    LIKELY = 1
    """The lifetime and the size of the block suggest the role, but its call stack does not."""
    GUESS = 2
    """The role is a guess: only the block's size suggests it, or the recording lacks part of the block's lifetime."""

    @property
    def word(self) -> str:
        """The word that reports print for this degree of certainty."""
        return {Sureness.CERTAIN: "certain", Sureness.LIKELY: "likely", Sureness.GUESS: "a guess"}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleColumns:
    """The role of each block, such as parameter or gradient. Arrays are indexed by block ID."""

    role: Column
    """Indices into `ROLES`."""
    sureness: Column

    def role_of(self, key: int) -> Role:
        """Return the role of a block."""
        return ROLES[int(self.role[key])]

    def sureness_of(self, key: int) -> Sureness:
        """Return how certain the role of a block is."""
        return Sureness(int(self.sureness[key]))


def roles_of(recording: Recording) -> RoleColumns:
    """Return the role of every block of a run, such as parameter or gradient."""
    return _Roles(recording).decide()


class _Roles:
    def __init__(self, recording: Recording) -> None:
        rebuilt = recording.rebuilt
        self._recording = recording
        keys = len(rebuilt.size_of_key)
        self._size = rebuilt.size_of_key
        self._stack = rebuilt.stack_of_key
        self._makers: Makers = makers_of(recording.history.stacks)
        self._part = self._makers.part[self._stack]
        self._lives = KeyLives.of(recording.program, keys)
        begins = self._makers.begins_backward[self._stack]
        self._begins: Mask = np.asarray(begins & (self._part == Pass.OUTSIDE), bool)
        self._passes: Passes = passes_of(self._lives, self._part, self._begins)
        self._failed = recording.failing_op is not None
        self._trains = bool(len(self._passes.backward_starts)) or bool((self._part == Pass.OPTIMIZER).any())
        self._role = np.full(keys, -1, np.int64)
        self._sureness = np.full(keys, Sureness.GUESS, np.int64)

    def decide(self) -> RoleColumns:
        seen = self._lives.born >= 0
        self._owned(seen)
        self._workspaces(seen)
        self._optimizer(seen)
        self._forward(seen)
        self._outside(seen)
        self._backward(seen)
        self._there_before(~seen)
        if self._failed:
            self._as_one_pass_before(seen)
        self._role[self._role < 0] = ROLES.index(Role.UNKNOWN)
        return RoleColumns(role=self._role, sureness=self._sureness)

    def _is(self, where: Mask, role: Role, sureness: Sureness) -> None:
        free = where & (self._role < 0)
        self._role[free] = ROLES.index(role)
        self._sureness[free] = sureness

    def _flag(self, flag: Mask) -> Mask:
        return np.asarray(flag[self._stack], bool)

    # ---- blocks of libraries

    def _workspaces(self, seen: Mask) -> None:
        lives, order, makers = self._lives, self._lives.order, self._makers
        self._is(seen & self._flag(makers.is_workspace), Role.WORKSPACES, Sureness.CERTAIN)
        # Blocks that are freed before the next allocation: no other block was computed from them.
        following = np.full(len(self._size), NEVER, np.int64)
        following[order[:-1]] = lives.born[order[1:]]
        passing = seen & (lives.freed < following) & ~self._has_parameters_size()
        # The same call allocates its result just before.
        before = np.full(len(self._size), -1, np.int64)
        before[order[1:]] = order[:-1]
        same_call = (before >= 0) & (self._stack[before] == self._stack)
        by_cudnn = self._flag(makers.is_cudnn)
        inside = passing & same_call & is_one_of(self._part, (Pass.FORWARD, Pass.RECOMPUTED, Pass.BACKWARD))
        named = inside & (self._stack >= 0)
        self._is(named & by_cudnn, Role.WORKSPACES, Sureness.CERTAIN)
        self._is(named & self._flag(makers.is_generated), Role.WORKSPACES, Sureness.LIKELY)
        if by_cudnn.any():  # and no backward frames name an operation
            unnamed = passing & (self._part == Pass.BACKWARD) & ~self._flag(makers.is_named)
            self._is(unnamed, Role.WORKSPACES, Sureness.LIKELY)
        self._is(seen & self._of_cublas(), Role.WORKSPACES, Sureness.LIKELY)

    # If a block with a parameter's size is allocated in backward, it may be a gradient that is added to an existing
    # one.
    def _has_parameters_size(self) -> Mask:
        return np.isin(self._size, np.unique(self._size[self._role == ROLES.index(Role.PARAMETERS)]))

    # Each thread and stream allocates such a workspace once and never frees it.
    def _of_cublas(self) -> Mask:
        order, makers = self._lives.order, self._makers
        found = np.zeros(len(self._size), bool)
        computes = is_one_of(self._part[order], (Pass.FORWARD, Pass.BACKWARD, Pass.RECOMPUTED, Pass.OUTSIDE))
        is_made = self._flag(makers.is_parameter) | self._has_parameters_size()
        kept = computes & (self._lives.freed[order] == NEVER)
        # A workspace is kept over a whole backward pass. Without backward, it is kept into the second following forward
        # pass.
        ended, starts = self._passes.after_backward, self._passes.forward_starts
        born = self._lives.born[order]
        if len(ended):
            goes_on = next_of(ended[ended != NEVER], born) != NEVER
        else:
            goes_on = next_of(starts, np.minimum(next_of(starts, born), NEVER - 1)) != NEVER
        is_clear = bool((kept & (self._size[order] == _CUBLAS_BYTES)).any())
        for size in (_CUBLAS_BYTES, *_CUBLASLT_BYTES[: 1 if is_clear else 2]):
            is_candidate = kept & (self._size[order] == size) & ~is_made[order] & ((size == _CUBLAS_BYTES) | goes_on)
            mine = np.flatnonzero(is_candidate & ~found[order])
            in_backward = is_one_of(self._part[order[mine]], (Pass.BACKWARD, Pass.RECOMPUTED))
            _, first = np.unique(in_backward, return_index=True)
            found[order[mine[first]]] = True
            if size == _CUBLAS_BYTES:  # cuBLASLt's workspace may be allocated by the same call
                beside = mine[first][mine[first] + 1 < len(order)]
                same = kept[beside + 1] & (self._stack[order[beside + 1]] == self._stack[order[beside]])
                found[order[beside[same & (self._stack[order[beside]] >= 0)] + 1]] = True
        return found

    # ---- blocks of modules and optimizers

    def _owned(self, seen: Mask) -> None:
        born, freed = self._lives.born, self._lives.freed
        made = seen & is_one_of(self._part, (Pass.OUTSIDE, Pass.UNKNOWN))
        is_kept = (freed == NEVER) | (freed > next_of(self._passes.forward_starts, born))
        buffers = made & self._flag(self._makers.is_buffer)
        self._is(buffers & is_kept, Role.BUFFERS, Sureness.CERTAIN)
        parameters = made & self._flag(self._makers.is_parameter)
        self._is(parameters & is_kept, Role.PARAMETERS, Sureness.CERTAIN)
        self._is(buffers | parameters, Role.TEMPORARIES, Sureness.CERTAIN)

    def _optimizer(self, seen: Mask) -> None:
        lives = self._lives
        mine = seen & (self._part == Pass.OPTIMIZER)
        # Allocations outside of every step. A closure's forward pass is inside a step, and backward may run its own
        # steps.
        outside = is_one_of(self._part, (Pass.OUTSIDE, Pass.FORWARD)) & ~self._flag(self._makers.in_optimizer)
        others = lives.born[lives.order[outside[lives.order]]]
        following = next_of(others, lives.born)
        is_left = (lives.freed > following) | (lives.freed == NEVER)
        sure = Sureness.GUESS if self._failed else Sureness.LIKELY
        self._is(mine & is_left & (following != NEVER), Role.OPTIMIZER_STATE, Sureness.CERTAIN)
        if self._failed:
            self._is(mine & is_left & self._flag(self._makers.is_state), Role.OPTIMIZER_STATE, Sureness.LIKELY)
            self._is(mine & is_left & self._flag(self._makers.is_update), Role.TEMPORARIES, Sureness.LIKELY)
        self._is(mine & is_left, Role.OPTIMIZER_STATE, sure)
        self._is(mine, Role.TEMPORARIES, Sureness.CERTAIN)

    # ---- forward

    def _forward(self, seen: Mask) -> None:
        born, freed = self._lives.born, self._lives.freed
        mine = seen & (self._part == Pass.FORWARD)
        following = next_of(self._passes.backward_starts, born)
        self._is(mine & (freed > following), Role.ACTIVATIONS, Sureness.CERTAIN)
        waits = mine & ((freed == NEVER) | self._is_cut_short())
        without_gradients = self._flag(self._makers.has_no_gradients) & ~self._flag(self._makers.in_optimizer)
        self._is(waits & without_gradients, Role.TEMPORARIES, Sureness.LIKELY)
        if self._trains:
            self._is(waits, Role.ACTIVATIONS, Sureness.LIKELY)
        self._is(waits, Role.ACTIVATIONS, Sureness.GUESS)  # or a key-value cache
        self._is(mine, Role.TEMPORARIES, Sureness.CERTAIN)
        self._is(seen & (self._part == Pass.RECOMPUTED), Role.ACTIVATIONS, Sureness.CERTAIN)

    # Blocks that were alive when a request failed may have been freed only because of the error.
    def _is_cut_short(self) -> Mask:
        lives, recording = self._lives, self._recording
        failed = recording.rebuilt.ops_of(np.flatnonzero(recording.history.action == Action.OOM))
        failure = next_of(failed[failed < len(recording.program)], lives.born)
        return np.asarray((failure != NEVER) & (lives.freed > failure), bool)

    def _outside(self, seen: Mask) -> None:
        born, freed = self._lives.born, self._lives.freed
        passes = self._passes
        mine = seen & (self._part == Pass.OUTSIDE)
        self._is(mine & self._begins, Role.TEMPORARIES, Sureness.CERTAIN)
        forward, backward = next_of(passes.forward_starts, born), next_of(passes.backward_starts, born)
        ended = next_of(passes.after_backward, np.minimum(backward, NEVER - 1))
        after_forward = previous_of(passes.forward_starts, born) > previous_of(passes.backward_ends, born)
        survives = (freed > backward) & (backward != NEVER)
        in_backward = survives & (freed < ended)
        if not passes.has_modules:
            self._is(mine & in_backward, Role.ACTIVATIONS, Sureness.LIKELY)
        between = mine & after_forward & (backward <= forward)
        waits = (freed == NEVER) & (backward == NEVER) & self._trains
        self._is(between & (survives | waits), Role.ACTIVATIONS, Sureness.LIKELY)
        self._is(between, Role.TEMPORARIES, Sureness.LIKELY)
        self._is(mine & after_forward & in_backward, Role.ACTIVATIONS, Sureness.LIKELY)
        # If modules have parameters, standalone parameters are created in an `__init__`; otherwise they may be created
        # anywhere.
        alone = self._flag(self._makers.in_init) | (not (self._role == ROLES.index(Role.PARAMETERS)).any())
        self._parameters_by_size(mine & (freed == NEVER) & alone)
        self._is(mine & (freed > forward), Role.INPUTS, Sureness.LIKELY)
        self._is(mine & (freed != NEVER), Role.TEMPORARIES, Sureness.LIKELY)

    def _parameters_by_size(self, kept: Mask) -> None:
        if not len(self._passes.backward_starts):
            return
        left = _count(self._size[self._gradients()])
        left.subtract(_count(self._size[self._role == ROLES.index(Role.PARAMETERS)]))
        first = int(self._passes.backward_starts[0])
        chosen = self._as_many(np.flatnonzero(kept & (self._role < 0) & (self._lives.born < first)), left)
        self._role[chosen], self._sureness[chosen] = ROLES.index(Role.PARAMETERS), Sureness.LIKELY

    def _gradients(self) -> Mask:
        passes, born = self._passes, self._lives.born
        start, end, after = (
            int(column[0]) for column in (passes.backward_starts, passes.backward_ends, passes.after_backward)
        )
        inside = (self._part == Pass.BACKWARD) & (born >= start) & (born <= end) & (self._role < 0)
        return np.asarray(inside & (self._lives.freed > min(after, end + 1)), bool)

    # ---- backward

    def _backward(self, seen: Mask) -> None:
        born, freed = self._lives.born, self._lives.freed
        passes = self._passes
        mine = seen & (self._part == Pass.BACKWARD)
        if not len(passes.backward_starts):
            return
        own = np.clip(np.searchsorted(passes.backward_ends, born, side="left"), 0, len(passes.backward_ends) - 1)
        end, after = passes.backward_ends[own], passes.after_backward[own]
        self._is(mine & self._flag(self._makers.is_gradient) & (freed > end), Role.GRADIENTS, Sureness.CERTAIN)
        # Kept for a double backward pass, and freed in it.
        later = next_of(passes.backward_starts, np.maximum(end, born))
        later_end = np.append(passes.backward_ends, -1)[np.minimum(own + 1, len(passes.backward_ends))]
        self._is(mine & (freed > later) & (freed < later_end), Role.ACTIVATIONS, Sureness.LIKELY)
        has_parameters = bool((self._role == ROLES.index(Role.PARAMETERS)).any())
        fits = self._has_parameters_size() | (not has_parameters)
        again = next_of(passes.forward_starts, end) > later  # double backward: no forward pass between
        self._is(mine & again & (freed > later) & (later != NEVER) & ~fits, Role.ACTIVATIONS, Sureness.LIKELY)
        is_over = after != NEVER
        self._is(mine & (freed > after) & is_over & fits, Role.GRADIENTS, Sureness.CERTAIN)
        self._is(mine & (freed > after) & is_over, Role.GRADIENTS, Sureness.LIKELY)
        # Freed before the next allocation, as zero_grad does after an optimizer step that allocates nothing.
        left = np.zeros(len(passes.backward_ends), bool)
        left[own[mine & (freed > after) & is_over & fits]] = True
        let_go = mine & (freed > end) & fits & ~left[own]
        is_open = ~is_over & self._failed
        self._is(let_go & ~is_open, Role.GRADIENTS, Sureness.LIKELY)
        self._is(self._within_count(let_go & is_open), Role.GRADIENTS, Sureness.GUESS)
        self._is(mine & (freed == NEVER) & (not self._failed), Role.GRADIENTS, Sureness.LIKELY)
        self._is(mine & (freed != NEVER), Role.TEMPORARIES, Sureness.CERTAIN)
        self._is(mine, Role.TEMPORARIES, Sureness.GUESS)

    def _within_count(self, chosen: Mask) -> Mask:
        left = _count(self._size[self._role == ROLES.index(Role.PARAMETERS)])
        has = (self._role == ROLES.index(Role.GRADIENTS)) & (self._lives.freed == NEVER)
        left.subtract(_count(self._size[has]))
        found = np.zeros(len(chosen), bool)
        order = self._lives.order
        found[self._as_many(order[chosen[order] & (self._role[order] < 0)], left)] = True
        return found

    def _as_many(self, keys: Column, left: Counter[int]) -> list[int]:
        found = []
        for key, size in zip(keys.tolist(), self._size[keys].tolist(), strict=True):
            if left[size] > 0:
                left[size] -= 1
                found.append(key)
        return found

    # ---- failed runs

    def _as_one_pass_before(self, seen: Mask) -> None:
        stays = self._lives.freed == NEVER
        stays &= self._role == ROLES.index(Role.WORKSPACES)
        unsure = seen & (self._lives.freed == NEVER) & (self._sureness != Sureness.CERTAIN)
        found = counterparts(
            unsure,
            lives=self._lives,
            passes=self._passes,
            part=self._part,
            stack=self._stack,
            size=self._size,
            stays=stays,
        )
        is_cut_short = self._is_cut_short()
        for key, before in found:
            if self._role[before] >= 0 and self._sureness[before] != Sureness.GUESS and not is_cut_short[before]:
                self._role[key], self._sureness[key] = self._role[before], Sureness.LIKELY

    # ---- blocks from before the recording

    def _there_before(self, before: Mask) -> None:
        freed, passes = self._lives.freed, self._passes
        self._is(before & self._flag(self._makers.is_workspace), Role.WORKSPACES, Sureness.CERTAIN)
        self._is(before & self._flag(self._makers.is_buffer), Role.BUFFERS, Sureness.CERTAIN)
        self._is(before & self._flag(self._makers.is_parameter), Role.PARAMETERS, Sureness.CERTAIN)
        has_stack = before & (self._stack >= 0)
        self._is(has_stack & (self._part == Pass.OPTIMIZER), Role.OPTIMIZER_STATE, Sureness.LIKELY)
        self._is(has_stack & (self._part == Pass.FORWARD), Role.ACTIVATIONS, Sureness.GUESS)
        self._is(has_stack & (self._part == Pass.RECOMPUTED), Role.ACTIVATIONS, Sureness.GUESS)
        self._is(has_stack & (self._part == Pass.BACKWARD), Role.GRADIENTS, Sureness.GUESS)
        if len(passes.backward_starts):
            start, end = int(passes.backward_starts[0]), int(passes.backward_ends[0])
            self._is(before & (freed > start) & (freed <= end), Role.ACTIVATIONS, Sureness.GUESS)
        self._is(before & (self._size == _CUBLAS_BYTES) & (freed == NEVER), Role.WORKSPACES, Sureness.LIKELY)
        self._kept_from_before(before & (freed == NEVER))

    # The long-lived blocks of a training step are parameters, gradients and optimizer state. Optimizer state has one or
    # several blocks of its parameter's size.
    def _kept_from_before(self, kept: Mask) -> None:
        gradients = self._role == ROLES.index(Role.GRADIENTS)
        turn = np.searchsorted(self._passes.backward_ends, self._lives.born, side="left")
        turns, counts = np.unique(turn[gradients], return_counts=True)
        if not len(turns):
            return
        age = _age_of(self._recording, len(kept))
        known = _count(self._size[gradients & (turn == turns[int(counts.argmax())])])
        for size, count in known.items():
            mine = np.flatnonzero(kept & (self._role < 0) & (self._size == size))
            mine = mine[np.argsort(age[mine], kind="stable")]
            copies = len(mine) // count
            self._role[mine[:count]] = ROLES.index(Role.PARAMETERS)
            self._role[mine[count : count * copies]] = ROLES.index(Role.OPTIMIZER_STATE)


# The Linux driver places each new segment below the previous ones, the Windows driver above them. Within a segment,
# addresses ascend. The oldest block has age 0.
def _age_of(recording: Recording, keys: int) -> Column:
    start = sorted(recording.program.start, key=lambda segment: segment.address)
    history = recording.history
    new = history.address[history.action == Action.SEGMENT_ALLOC]
    old = np.array([segment.address for segment in start], np.int64)
    goes_up = len(new) and len(old) and np.median(new) > np.median(old)
    age = np.full(keys, keys, np.int64)
    rank = 0
    for segment in start if goes_up else reversed(start):
        for _, _, key in segment.blocks:
            if key >= 0:
                age[key] = rank
                rank += 1
    return age


def _count(sizes: Column) -> Counter[int]:
    values, counts = np.unique(sizes, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
