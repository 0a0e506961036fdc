"""Replay a run with its segments at other addresses to see how much memory it reserves.

Up to torch 2.11, the allocator picks the lowest address among free blocks of equal size. The addresses of segments can
therefore change the reserved memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ullage.base.errors import UllageError
from ullage.predicting.prediction.data.run_result import Elsewhere
from ullage.recorded.allocator.replay import Replay, ReplayDevice
from ullage.recorded.allocator.replay import replay as run
from ullage.recorded.history import ACTIONS, Action, History, RecordedStacks
from ullage.recorded.rebuild import UNBOUNDED_BYTES, Rebuilt, program_of
from ullage.recorded.settings import ALLOCATORS, Tie, semantics_of

ELSEWHERE: Final = ("linux", "windows", "descending")
"""Rules for placing segments in the address space. ullage simulates a run with each rule.

In all 20 examined runs on a T4, the real reserved memory was between the smallest and the largest result.
"""


def addresses_count(torch_version: str) -> bool:
    """Return whether a torch version's allocator chooses among free blocks of equal size by address."""
    return ALLOCATORS[semantics_of(torch_version)].tie is Tie.ADDRESS


def reserved_elsewhere(
    trace: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    *,
    torch_version: str,
    placement: str,
    room_bytes: int,
    is_limited: bool,
    reserved_bytes: int,
    ran_out: bool,
) -> Elsewhere:
    """Replay a run with other segment addresses, and return the range of reserved memory.

    Args:
        trace: all events that PyTorch recorded of the device, as in torch.cuda.memory._snapshot.
        settings: the allocator's settings, as in the snapshot.
        torch_version: the version of torch of the run.
        placement: the placement of the run; one of `ullage.gpu.placement.PLACEMENTS`.
        room_bytes: the memory of the GPU minus the CUDA context, or the limit of the process if that is lower.
        is_limited: whether the process has its own limit. A memory fraction then needs no further check.
        reserved_bytes: the peak of reserved memory in the run.
        ran_out: whether the run ran out of memory.
    """
    unknown = Elsewhere(
        ties=0, low_bytes=reserved_bytes, high_bytes=reserved_bytes, fits_somewhere=not ran_out, is_certain=False
    )
    try:
        rebuilt = rebuilt_of(trace, settings, torch_version, room_bytes)
        if is_limited:
            rebuilt = replace(rebuilt, settings=replace(rebuilt.settings, per_process_memory_fraction=1.0))
        here = replayed(rebuilt, placement)
    except UllageError:
        return unknown
    if here.peak.reserved_bytes != reserved_bytes or here.ran_out != ran_out:
        return unknown
    if not here.address_ties:
        return replace(unknown, is_certain=True)
    there = [replayed(rebuilt, other) for other in ELSEWHERE]
    if not ran_out:  # Replay without a limit, to find what another placement needs even if the GPU has less memory.
        roomy = replace(rebuilt, room_bytes=UNBOUNDED_BYTES)
        there = [replayed(roomy, other) if done.ran_out else done for other, done in zip(ELSEWHERE, there, strict=True)]
    peaks = [done.peak.reserved_bytes for done in (here, *there)]
    return Elsewhere(
        ties=here.address_ties,
        low_bytes=min(peaks),
        high_bytes=max(peaks),
        fits_somewhere=not all(done.ran_out for done in (here, *there)),
        is_certain=True,
    )


def rebuilt_of(
    trace: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], torch_version: str, room_bytes: int
) -> Rebuilt:
    """Return the allocator operations of a device's trace in a form that can be replayed.

    Raises:
        UllageError: the settings of the allocator cannot be read.
    """
    return program_of(_history_of(trace, settings), semantics=semantics_of(torch_version), capacity_bytes=room_bytes)


def replayed(rebuilt: Rebuilt, placement: str) -> Replay:
    """Replay recorded allocator operations with other segment addresses, which `placement` selects."""
    placement = {"wsl": "windows", "linux-host": "linux"}.get(placement, placement)
    program = replace(rebuilt.program, recorded_addresses=())
    return run(program, rebuilt.settings, ReplayDevice(total_bytes=rebuilt.room_bytes, placement=placement))


# A replay does not need the call stacks.
def _history_of(trace: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> History:
    def column(name: str, other: str = "") -> np.ndarray:
        return np.array([event.get(name, event.get(other, 0)) for event in trace], np.uint64).astype(np.int64)

    none = np.full(len(trace), -1, np.int64)
    nothing = np.zeros(0, np.int64)
    return History(
        device=0,
        action=np.array([ACTIONS.get(event["action"], Action.OTHER) for event in trace], np.int64),
        address=column("addr", "device_free"),
        size=column("size"),
        stream=column("stream"),
        time_us=none,
        stack=none,
        stacks=RecordedStacks(starts=nothing, frames=nothing, table=()),
        segments=(),
        annotations=(),
        settings=settings,
    )
