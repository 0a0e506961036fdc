"""Compute the memory figures of a finished run, such as its peak in each step.

The memory levels are PyTorch's own numbers from `c10::reportMemoryUsageToProfiler`, which is called at every allocator
event.
"""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ullage.base.block_role import Role
from ullage.base.growth import StepBlock
from ullage.base.units import MIB
from ullage.gpu.tracing.journal import Entries, EntryKind, Phase
from ullage.gpu.tracing.journal.stacks import JournalStacks
from ullage.gpu.tracing.source import Line, is_users
from ullage.predicting.prediction.data.prediction import Step
from ullage.predicting.prediction.data.run_result import Alive
from ullage.predicting.prediction.measurement.line_use import BlockUse, library_lines_of, lines_of
from ullage.predicting.prediction.observation.role import Block, Lives, blocks_at, bytes_by_role, lives_of, roles_of
from ullage.recorded.frame import Frame

if TYPE_CHECKING:
    from ullage.predicting.prediction.observation.observer import Observer

TIMELINE_BINS: Final = 160
_LINES_SHOWN: Final = 40
_LEAST_STEPS: Final = 3
_SAME_PEAK: Final = 1.001
_OUTSIDE: Final = {
    Phase.OTHER: "(outside of modules)",
    Phase.FORWARD: "(outside of modules)",
    Phase.BACKWARD: "(backward)",
    Phase.OPTIMIZER: "(optimizer)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The allocated and reserved bytes of a GPU after each allocator event."""

    index: np.ndarray
    allocated: np.ndarray
    reserved: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requested size and the source line of each allocation. The index of the allocator event identifies an
    allocation.
    """

    bytes_by_index: Mapping[int, int]
    line_of: Callable[[int], Line | None]
    librarys_line_of: Callable[[int], Line | None] = lambda index: None
    """A function that returns the innermost library line of an allocation."""


def levels_of(entries: Entries, device: int) -> Levels:
    """Return the allocated and reserved bytes of a GPU after each allocator event."""
    kinds = entries["kind"]
    chosen = np.flatnonzero(((kinds == EntryKind.ALLOC) | (kinds == EntryKind.FREE)) & (entries["device"] == device))
    return Levels(index=chosen, allocated=entries["allocated"][chosen], reserved=entries["reserved"][chosen])


def failed_request(entries: Entries, moment: int) -> Any:
    """Return the last failed allocation up to the allocator event `moment`, or None."""
    errors = np.flatnonzero(entries["kind"][: moment + 1] == EntryKind.OOM)
    return entries[errors[-1]] if len(errors) else None


def busiest_device(entries: Entries) -> int | None:
    """Return the index of the GPU with the most reserved memory, or None if nothing was allocated."""
    allocations = entries[entries["kind"] == EntryKind.ALLOC]
    if not len(allocations):
        return None
    return int(allocations["device"][int(np.argmax(allocations["reserved"]))])


def requests_of(entries: Entries, device: int, history: Sequence[Mapping[str, Any]], stacks: JournalStacks) -> Requests:
    """Match PyTorch's memory history of a device with ullage's own record of allocations.

    If the history lost its beginning because its ring buffer was full, it is matched from its end.
    """
    indices = np.flatnonzero((entries["kind"] == EntryKind.ALLOC) & (entries["device"] == device))
    asked = [event for event in history if event["action"] == "alloc"]
    indices = indices[len(indices) - len(asked) :] if len(asked) <= len(indices) else indices[:0]
    sizes: dict[int, int] = {}
    frames: dict[int, Sequence[Mapping[str, Any]]] = {}
    for index, event in zip(indices.tolist(), asked, strict=False):
        if int(entries["address"][index]) != event["addr"]:
            continue
        sizes[index] = int(event["size"])
        frames[index] = event.get("frames") or ()
    if stacks.are_recorded:
        nodes = entries["stack"]
        return Requests(
            bytes_by_index=sizes,
            line_of=lambda index: stacks.users_line(int(nodes[index])),
            librarys_line_of=lambda index: stacks.librarys_line(int(nodes[index])),
        )
    return Requests(bytes_by_index=sizes, line_of=lambda index: _users_line(frames.get(index, ())))


def _users_line(frames: Sequence[Mapping[str, Any]]) -> Line | None:
    of_users = (frame for frame in map(Frame.of, frames) if frame.is_python and is_users(frame.file))
    return next((Line(frame.file, frame.line, frame.name) for frame in of_users), None)


def steps_of(
    levels: Levels, step_ends: Sequence[int], reserved_at_ends: Sequence[int], oom_indices: Sequence[int], end: int
) -> list[Step]:
    """Return the memory peaks of every training step.

    A step begins at the end of the step before it; the first one begins at the start of the script.

    Args:
        levels: the allocated and reserved bytes of one device.
        step_ends: the number of allocator events at each step's end.
        reserved_at_ends: the reserved bytes at each step's end.
        oom_indices: the numbers of allocator events at out-of-memory errors.
        end: the number of all allocator events. If memory ran out after the last step, that part is a separate step.
    """
    borders = list(step_ends)
    if not borders or any(index > borders[-1] for index in oom_indices):
        borders.append(end)
    steps: list[Step] = []
    start, allocated, reserved = -1, 0, 0
    for number, border in enumerate(borders):
        inside = slice(
            int(np.searchsorted(levels.index, start, side="right")),
            int(np.searchsorted(levels.index, border, side="right")),
        )
        peak_allocated = int(levels.allocated[inside].max(initial=allocated))
        peak_reserved = int(levels.reserved[inside].max(initial=reserved))
        if inside.stop > inside.start:
            allocated = int(levels.allocated[inside.stop - 1])
            reserved = int(levels.reserved[inside.stop - 1])
        if number < len(reserved_at_ends):
            reserved = reserved_at_ends[number]
        steps.append(
            Step(
                step=number + 1,
                peak_allocated_bytes=peak_allocated,
                peak_reserved_bytes=peak_reserved,
                end_allocated_bytes=allocated,
                oom=any(start < index <= border for index in oom_indices),
                complete=number < len(step_ends),
            )
        )
        start = border
    return steps


def is_settled(steps: Sequence[Step]) -> bool:
    """Return whether memory stopped growing: the last complete step needs no more than the step before it, or the last
    steps repeat the peaks of the steps before them.

    A GAN that trains two models in turn repeats a pattern of two steps. A pattern must have occurred twice, one after
    the other. Reserved memory must not grow from one occurrence to the next. Compared with the same step of the
    pattern, the peak of allocated memory may grow by 0.1 %, and allocated memory at the step's end by less than 1 MiB.
    """
    complete = [step for step in steps if step.complete]
    return any(_repeats(complete, period) for period in range(1, len(complete) // 2 + 1))


def _repeats(steps: Sequence[Step], period: int) -> bool:
    earlier, later = steps[-2 * period : -period], steps[-period:]
    return max(step.peak_reserved_bytes for step in later) <= max(step.peak_reserved_bytes for step in earlier) and all(
        after.peak_allocated_bytes <= before.peak_allocated_bytes * _SAME_PEAK
        and after.end_allocated_bytes < before.end_allocated_bytes + MIB
        # A lower peak ends growth. Between other steps, it shows that this is not a pattern.
        and (period == 1 or before.peak_allocated_bytes <= after.peak_allocated_bytes * _SAME_PEAK)
        for before, after in zip(earlier, later, strict=True)
    )


def is_level(steps: Sequence[Step]) -> bool:
    """Return whether the last three complete steps ended with the same allocated memory. The first step of the run does
    not count.

    A difference of 1 MiB or 0.1 % is allowed.
    """
    ends = [step.end_allocated_bytes for step in steps if step.complete][1:][-3:]
    return not ends or max(ends) < max(min(ends) + MIB, min(ends) * 1.001)


def second_keeps(entries: Entries, step_ends: Sequence[int], device: int) -> bool:
    """Return whether at least 1 MiB from the second step is still allocated after the third step. Library workspaces do
    not count.
    """
    if len(step_ends) != _LEAST_STEPS:
        return False
    since = entries[step_ends[0] + 1 :]
    lives = lives_of(since)
    kept = (lives.born <= step_ends[1] - step_ends[0] - 1) & (lives.died > len(since))
    kept &= lives.entries["device"] == device
    kept &= ~np.isin(lives.entries["address"], entries["address"][entries["kind"] == EntryKind.WORKSPACE])
    return int(lives.entries["size"][kept].sum()) >= MIB


def edges_of(levels: Levels) -> np.ndarray:
    """Return the index of the first allocator event in each bin of the timeline, and the total number of events."""
    bins = min(TIMELINE_BINS, len(levels.index))
    return np.linspace(0, len(levels.index), bins + 1).astype(int)


def timeline_of(levels: Levels, step_ends: Sequence[int]) -> dict[str, list[int]]:
    """Return the highest allocated bytes in each bin of the timeline, and the bin in which each step ends.

    All bins have the same number of allocator events.
    """
    if not len(levels.index):
        return {"allocated_bytes": [], "step_ends": []}
    edges = edges_of(levels)
    bins = len(edges) - 1
    highest = [int(levels.allocated[low:high].max()) for low, high in itertools.pairwise(edges.tolist())]
    events = np.searchsorted(levels.index, np.asarray(step_ends, int), side="right")
    ends = np.clip(np.searchsorted(edges, events, side="left") - 1, 0, bins - 1)
    return {"allocated_bytes": highest, "step_ends": ends.tolist()}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The live memory of a finished run on one GPU, at any time of the run."""

    device: int
    lives: Lives
    roles: list[Role]
    requests: Requests
    backward_lines: Sequence[tuple[int, Line | None]]
    module_names: Sequence[str] = ("",)
    """The names of the modules. The position of a name is the module's ID."""

    @classmethod
    def of(
        cls,
        entries: Entries,
        observer: "Observer",
        device: int,
        history: Sequence[Mapping[str, Any]],
        stacks: JournalStacks,
    ) -> "Memory":
        """Create a `Memory` object for a finished run."""
        lives = lives_of(entries)
        return cls(
            device=device,
            lives=lives,
            roles=roles_of(entries, lives, observer.notes, observer.moments),
            requests=requests_of(entries, device, history, stacks),
            backward_lines=observer.backward_lines,
            module_names=observer.module_names,
        )

    def alive_at(self, moment: int) -> Alive:
        """Return the live memory after the allocator event `moment`, by role and by source line."""
        blocks = blocks_at(moment, self.lives, self.roles, device=self.device)
        uses = [self._use_of(block) for block in blocks]
        return Alive(
            roles={role.value: size for role, size in bytes_by_role(blocks, self.requests.bytes_by_index).items()},
            lines=lines_of(uses)[:_LINES_SHOWN],
            library_lines=library_lines_of(uses)[:_LINES_SHOWN],
        )

    def _use_of(self, block: Block) -> BlockUse:
        return BlockUse(
            role=block.role.value,
            line=self._line_at(block.index, block.phase),
            librarys=self.requests.librarys_line_of(block.index),
            module=self.module_names[self._modules.get(block.index, 0)],
            phase=block.phase.name.lower(),
            size_bytes=block.size_bytes,
        )

    # From the index of an allocation to the ID of the module that was running.
    @cached_property
    def _modules(self) -> dict[int, int]:
        return dict(zip(self.lives.born.tolist(), self.lives.entries["module"].tolist(), strict=True))

    def role_peaks(self) -> dict[str, int]:
        """Return the peak of each role, such as parameters, in requested bytes. These peaks may be at different
        times.
        """
        lives = self.lives
        here = np.flatnonzero(lives.entries["device"] == self.device)
        blocks = zip(lives.born[here].tolist(), lives.entries["size"][here].tolist(), strict=True)
        requested = self.requests.bytes_by_index
        sizes = np.array([min(requested.get(born, size), size) for born, size in blocks], np.int64)
        names = np.array([self.roles[block].value for block in here])
        peaks = {}
        for role in Role:
            if role is Role.ROUNDING:
                continue
            mine = names == role.value
            born, died, size = lives.born[here][mine], lives.died[here][mine], sizes[mine]
            times = np.concatenate([born, died])
            changes = np.concatenate([size, -size])
            order = np.lexsort((changes, times))
            peaks[role.value] = int(max(np.cumsum(changes[order]), default=0))
        return peaks

    def line_of(self, moment: int) -> Line | None:
        """Return the user's source line of the allocation with the index `moment`, or None if it is unknown."""
        at = int(np.searchsorted(self.lives.born, moment))
        if at >= len(self.lives.born) or self.lives.born[at] != moment:
            return None
        return self._line_at(moment, Phase(int(self.lives.entries["phase"][at])))

    def _line_at(self, born: int, phase: Phase) -> Line | None:
        line = self.requests.line_of(born)
        if line is not None:
            return line
        if phase is Phase.BACKWARD:  # The autograd thread has no Python frames, so use the line that called backward().
            started = [line for index, line in self.backward_lines if index < born]
            return started[-1] if started else None
        return None

    def over_time(self, levels: Levels) -> dict[str, list[int]]:
        """Return the bytes of each role, such as parameters, for each bin of the timeline."""
        edges = edges_of(levels)
        moments = [
            int(levels.index[low + int(levels.allocated[low:high].argmax())])
            for low, high in itertools.pairwise(edges.tolist())
        ]
        here = np.flatnonzero(self.lives.entries["device"] == self.device)
        names = np.array([self.roles[block].value for block in here])
        by_role = {}
        for role in Role:
            mine = here[names == role.value]
            if not len(mine):
                continue
            sizes = self.lives.entries["size"][mine]
            by_role[role.value] = [
                int(sizes[(self.lives.born[mine] <= moment) & (self.lives.died[mine] > moment)].sum())
                for moment in moments
            ]
        return by_role

    def step_blocks(self, ends: Sequence[int]) -> list[StepBlock[Line | None]]:
        """Return the blocks that are still alive at the end of the step that allocated them.

        Optimizer state is not included, because an optimizer may create it in any step.

        Args:
            ends: the number of allocator events at which each complete step ended.
        """
        lives, borders = self.lives, np.asarray(ends, np.int64)
        steps = np.searchsorted(borders, lives.born, side="left") + 1
        until = np.searchsorted(borders, lives.died, side="left")
        numbers = np.flatnonzero((steps <= until) & (lives.entries["device"] == self.device))
        return [
            StepBlock(
                line=self._line_at(int(lives.born[number]), Phase(int(lives.entries["phase"][number]))),
                step=int(steps[number]),
                until=int(until[number]),
                size_bytes=int(lives.entries["size"][number]),
                key=int(lives.entries["address"][number]),
            )
            for number in numbers.tolist()
            if self.roles[number] is not Role.OPTIMIZER_STATE
        ]

    def tree_at(self, moment: int) -> list[tuple[str, str, str, int, int]]:
        """Return the live memory after the allocator event `moment`. Each row has a role, module, source line, size,
        and number of blocks.
        """
        rows: Counter[tuple[str, str, str]] = Counter()
        counts: Counter[tuple[str, str, str]] = Counter()
        for block in blocks_at(moment, self.lives, self.roles, device=self.device):
            line = self._line_at(block.index, block.phase)
            module = self.module_names[self._modules[block.index]] or _OUTSIDE[block.phase]
            key = (block.role.value, module, f"{line} {line.function}" if line else "(no line of your code)")
            rows[key] += block.size_bytes
            counts[key] += 1
        return [(*key, size, counts[key]) for key, size in rows.most_common()]

    def segments_at(self, moment: int, history: Sequence[Mapping[str, Any]], entries: Entries) -> list[dict[str, Any]]:
        """Return the allocator's segments after the event `moment`, with their live blocks, sorted by address.

        Adjacent pages of an expandable segment count as one segment.
        """
        allocations = np.flatnonzero((entries["kind"] == EntryKind.ALLOC) & (entries["device"] == self.device))
        wanted = int(np.searchsorted(allocations, moment, side="right"))
        known = sum(event["action"] == "alloc" for event in history)
        wanted -= len(allocations) - known  # The history may have lost its beginning.
        held: dict[int, tuple[int, bool]] = {}
        for event in history:
            action = event["action"]
            if action == "alloc":
                wanted -= 1
                if wanted < 0:
                    break
            elif action in ("segment_alloc", "segment_map"):
                held[event["addr"]] = event["size"], action == "segment_map"
            elif action in ("segment_free", "segment_unmap"):
                held.pop(event["addr"], None)
        segments: list[dict[str, Any]] = []
        before_is_mapped = False
        for address, (size, is_mapped) in sorted(held.items()):
            if is_mapped and before_is_mapped and segments[-1]["address"] + segments[-1]["size"] == address:
                segments[-1]["size"] += size
            else:
                segments.append({"address": address, "size": size, "blocks": []})
            before_is_mapped = is_mapped
        starts = [segment["address"] for segment in segments]
        for block in blocks_at(moment, self.lives, self.roles, device=self.device):
            at = bisect_right(starts, block.address) - 1
            if at >= 0 and block.address < starts[at] + segments[at]["size"]:
                segments[at]["blocks"].append([block.address - starts[at], block.size_bytes, block.role.value])
        for segment in segments:
            segment["blocks"].sort()
        return segments
