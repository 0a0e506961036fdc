"""Find out what holds memory at the peak of a test or a notebook cell, by role and source line.

PyTorch's memory history has the lifetime of each block and the line that allocated it. Global hooks record the
addresses of weights, gradients and optimizer state. All other memory is "activations and others". For memory from
before the recording, only the total is known.
"""

import gc
import sys
import weakref
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer, optimizer
from torch.utils.hooks import RemovableHandle

from ullage.base.units import text_of_bytes
from ullage.training.ownership.block import line_of
from ullage.training.ownership.contents import gradients_of, optimizer_tensors, parts_of_weights
from ullage.training.ownership.storage import addresses

_MOST_EVENTS: Final = 1_000_000
_LINES_SHOWN: Final = 12
_OTHERS: Final = "activations and others"
# If several roles were observed for an address, the report has the first of them.
_ROLES: Final = ("parameters", "buffers", "optimizer state", "gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakContents:
    """What holds a GPU's memory at the peak of allocated memory."""

    bytes: int
    """The allocated bytes at the peak, as PyTorch counted them.

    If PyTorch's peak is older than the recording, this is the sum of the recorded blocks.
    """
    by_role: tuple[tuple[str, int], ...] | None
    """The bytes of each role at the peak, largest first. None: the roles are unknown."""
    by_line: tuple[tuple[str, str, int], ...]
    """The source lines that hold the most memory at the peak, as (role, line, requested bytes)."""

    def __str__(self) -> str:
        if self.by_role is None:
            return (
                "Your program itself records PyTorch's memory history, so ullage cannot tell what holds memory at the "
                "peak."
            )
        lines = [f"{text_of_bytes(self.bytes)} at the peak:"]
        lines += [f"{text_of_bytes(size):>12}  {role}" for role, size in self.by_role]
        if self.by_line:
            lines += ["", "by source line:"]
            lines += [f"{text_of_bytes(size):>12}  {role:<22}  {line}" for role, line, size in self.by_line]
        return "\n".join(lines)


@dataclass(slots=True)
class _Life:
    address: int
    size: int
    born: int
    line: str | None
    begins: int
    died: int = sys.maxsize
    ends: int = sys.maxsize


@dataclass(slots=True)
class _Course:
    lives: list[_Life] = field(default_factory=list)
    peak_event: int = -1
    peak_bytes: int = 0
    before_at_peak: int = 0


class PeakWatch:
    """Records GPU memory allocations between `start` and `stop`. It keeps no tensors alive."""

    def __init__(self) -> None:
        self.before_bytes: list[int] = []
        self._highest_before: list[int] = []
        self._counts_before: list[int] = []
        self._notes: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        self._modules: dict[int, weakref.ref[nn.Module]] = {}
        self._handles: list[RemovableHandle] = []
        self._records = False

    def start(self) -> None:
        """Start to record allocations. CUDA is initialized if necessary."""
        torch.cuda.init()
        if torch.cuda.get_allocator_backend() == "native" and not torch._C._cuda_isHistoryEnabled():
            torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=_MOST_EVENTS)
            self._records = True
        self.before_bytes = [torch.cuda.memory_allocated(device) for device in _devices()]
        self._highest_before = [torch.cuda.max_memory_allocated(device) for device in _devices()]
        self._counts_before = [_allocations(device) for device in _devices()]
        if self._records:
            self._handles = [
                nn.modules.module.register_module_forward_pre_hook(self._before_forward),
                optimizer.register_optimizer_step_pre_hook(self._around_step),
                optimizer.register_optimizer_step_post_hook(self._around_step),
            ]

    @property
    def highest_bytes(self) -> int:
        """The highest peak of all GPUs in bytes, since PyTorch's peak statistics were last reset."""
        return int(max(torch.cuda.max_memory_allocated(device) for device in _devices()))

    def stop(self, *, is_explained: bool = True) -> PeakContents:
        """Remove all hooks, and return what held memory at the highest peak of all GPUs.

        Args:
            is_explained: whether to find the contents of the peak. The first time in a process, it takes one or two
                seconds to read PyTorch's history, because this imports PyTorch's compiler.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []
        traces: Any = []
        if self._records:
            self._records = False
            traces = torch.cuda.memory._snapshot()["device_traces"] if is_explained else []
            torch.cuda.memory._record_memory_history(None)
        self._modules.clear()
        peaks = [self._peak_of(device, traces[device] if traces else None) for device in _devices()]
        return max(peaks, key=lambda peak: peak.bytes)

    def note_alive(self) -> None:
        """Record the roles of all live tensors. Call this method while the test's objects still exist."""
        for one in gc.get_objects():
            if issubclass(type(one), Optimizer):
                self._note("optimizer state", optimizer_tensors(one))
        for reference in list(self._modules.values()):
            module = reference()
            if module is not None:
                self._note_module(module)

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        known = self._modules.get(id(module))
        if known is None or known() is not module:
            self._modules[id(module)] = weakref.ref(module)
            self._note_module(module)

    def _around_step(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        for group in optimizer.param_groups:
            self._note("parameters", group["params"])
            self._note("gradients", [one for parameter in group["params"] for one in gradients_of(parameter)])
        self._note("optimizer state", optimizer_tensors(optimizer))

    def _note_module(self, module: nn.Module) -> None:
        parameters = [one for one in module._parameters.values() if one is not None]
        self._note("parameters", [*parameters, *parts_of_weights(module)])
        self._note("buffers", module._buffers.values())
        self._note("gradients", [one for parameter in parameters for one in gradients_of(parameter)])

    def _note(self, role: str, tensors: Iterable[Any]) -> None:
        found = addresses(tensors)
        if not found:
            return
        for device in _devices():  # all GPUs share one CUDA address space
            count = _allocations(device) - self._counts_before[device]
            self._notes[device] += [(count, address, role) for address in found]

    def _peak_of(self, device: int, events: Any) -> PeakContents:
        before, highest = self.before_bytes[device], torch.cuda.max_memory_allocated(device)
        is_new = highest > self._highest_before[device] or not before
        if events is None:
            return PeakContents(bytes=highest, by_role=None, by_line=())
        course = _course_of(events, before)
        total = highest if is_new and highest > before else course.peak_bytes
        role_of = _roles_by(course.lives, self._notes[device])
        roles: Counter[str] = Counter()
        lines: Counter[tuple[str, str]] = Counter()
        for life in course.lives:
            if not life.begins <= course.peak_event < life.ends:
                continue
            role = role_of(life)
            roles[role] += life.size
            lines[role, life.line or "no Python line: backward's threads, or libraries"] += life.size
        rounding = total - course.before_at_peak - roles.total()
        rows = [*roles.items(), ("allocated before", course.before_at_peak), ("rounding", rounding)]
        return PeakContents(
            bytes=total,
            by_role=tuple(sorted(((role, size) for role, size in rows if size), key=lambda row: -row[1])),
            by_line=tuple((role, line, size) for (role, line), size in lines.most_common(_LINES_SHOWN)),
        )


def _course_of(events: Any, before_bytes: int) -> _Course:
    course = _Course(peak_bytes=before_bytes, before_at_peak=before_bytes)
    alive: dict[int, _Life] = {}
    earlier, new, count = before_bytes, 0, 0
    for number, event in enumerate(events):
        action, address, size = event["action"], event.get("addr", 0), event["size"]
        if action == "alloc":
            count += 1
            life = _Life(address, size, count, line_of(event.get("frames") or ()), number)
            alive[address] = life
            course.lives.append(life)
            new += size
            if earlier + new > course.peak_bytes:
                course.peak_bytes, course.before_at_peak = earlier + new, earlier
                course.peak_event = number
        elif action == "free_completed":
            gone = alive.pop(address, None)
            if gone is None:
                earlier = max(0, earlier - size)
            else:
                gone.died, gone.ends = count, number
                new -= gone.size
    return course


def _roles_by(lives: list[_Life], notes: list[tuple[int, int, str]]) -> Callable[[_Life], str]:
    by_address: dict[int, list[_Life]] = defaultdict(list)
    for life in lives:
        by_address[life.address].append(life)
    found: dict[int, str] = {}
    for count, address, role in notes:
        known = by_address.get(address, [])
        place = bisect_left(known, count + 1, key=lambda life: life.born) - 1
        if place >= 0 and count <= known[place].died:
            born = known[place].born
            if born not in found or _ROLES.index(role) < _ROLES.index(found[born]):
                found[born] = role
    return lambda life: found.get(life.born, _OTHERS)


def _allocations(device: int) -> int:
    stats: Any = torch._C._cuda_memoryStats(device)
    return int(stats["allocation"]["all"]["allocated"])


def _devices() -> range:
    return range(torch.cuda.device_count())
