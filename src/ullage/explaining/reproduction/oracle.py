"""Tests whether a short list of allocations and frees fails in the same way as a recorded run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ullage.base.errors import UsageError
from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause, cause_of, evidence_of
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.reproduction.shrink import Sketch
from ullage.recorded.allocator.placement import PLACEMENTS
from ullage.recorded.allocator.replay import Replay, ReplayDevice, replay
from ullage.recorded.settings import LARGE_UNIT_BYTES, Settings

_CARD_BYTES: Final = 1 << 50  # The capacity is a fraction of this total, as on a real GPU.
_PAGES_TRIED: Final = 100


def as_a_script_sets_them(settings: Settings) -> Settings:
    """Return the allocator settings for a generated script. Garbage collection is turned off if the run had no memory
    limit.
    """
    collects = settings.per_process_memory_fraction < 1
    return replace(
        settings,
        per_process_memory_fraction=1.0,
        garbage_collection_threshold=settings.garbage_collection_threshold if collects else 0.0,
    )


# With expandable segments, PyTorch's limit is not the same as the end of the GPU's memory: PyTorch counts the whole
# request, though some pages of the chosen range may already be mapped. So the cache is emptied at different points in
# time. The limit that matches the run is close to the capacity.
def _rooms(room_bytes: int, settings: Settings) -> Iterator[int]:
    yield room_bytes
    if settings.expandable_segments:
        for pages in range(1, _PAGES_TRIED + 1):
            yield room_bytes - pages * LARGE_UNIT_BYTES
            yield room_bytes + pages * LARGE_UNIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """Decides whether a short list of allocations fails like the recorded run: at its last allocation, and for the same
    cause.
    """

    recording: Recording
    cause: Cause
    room_bytes: int
    placements: tuple[str, ...]
    """The rules for choosing segment addresses with which the whole run fails.

    A shorter list of operations must fail with all of these rules.
    """
    expandable_helps: bool

    @classmethod
    def of(cls, recording: Recording, sketch: Sketch) -> "Oracle":
        """Create the test that decides whether a shorter list of operations fails like a recorded run.

        Args:
            recording: the recorded run.
            sketch: all allocator operations of the run.

        Raises:
            UsageError: a simulation of all operations does not fail, or fails for another cause than the recorded run.
        """
        rebuilt = recording.rebuilt
        fraction = rebuilt.settings.per_process_memory_fraction
        room = rebuilt.room_bytes if fraction >= 1 else int(fraction * rebuilt.room_bytes)
        recording = replace(recording, rebuilt=replace(rebuilt, room_bytes=room), refused_bytes=0)
        cause = cause_of(recording, evidence_of(recording), None)
        places = tuple(PLACEMENTS)
        first = cls(recording=recording, cause=cause, room_bytes=room, placements=places, expandable_helps=False)
        for nearby in _rooms(room, rebuilt.settings):
            oracle = replace(first, room_bytes=nearby)
            failing = tuple(place for place in PLACEMENTS if oracle.is_same(oracle.run(sketch, place), sketch))
            if failing:
                oracle = replace(oracle, placements=failing)
                return replace(oracle, expandable_helps=oracle._passes_expandable(sketch))
        raise UsageError(first._why_not(sketch))

    def fails(self, sketch: Sketch) -> bool:
        """Return whether a list of operations fails for the same cause as the recorded run.

        Expandable segments must prevent both failures, or neither of them.
        """
        same = all(self.is_same(self.run(sketch, placement), sketch) for placement in self.placements)
        return same and self._passes_expandable(sketch) == self.expandable_helps

    def run(self, sketch: Sketch, placement: str | None = None, *, expandable: bool = False) -> Replay:
        """Simulate a list of operations with the run's memory capacity, up to the first failed allocation."""
        settings = replace(
            as_a_script_sets_them(self.recording.rebuilt.settings),
            per_process_memory_fraction=(self.room_bytes + 0.5) / _CARD_BYTES,
        )
        if expandable:
            settings = replace(settings, expandable_segments=True)
        device = ReplayDevice(total_bytes=_CARD_BYTES, placement=placement or self.placements[0])
        return replay(sketch.program(), settings, device, stop_after_ooms=1)

    def is_same(self, done: Replay, sketch: Sketch) -> bool:
        """Return whether a simulation failed at its last allocation, for the same cause as the recorded run."""
        if done.broken or not done.ran_out or done.done != len(sketch):
            return False
        return cause_of(self._as_recording(done), self.evidence(done), None) is self.cause

    def evidence(self, done: Replay) -> dict[str, int]:
        """Return the allocator's memory figures when an allocation failed in the simulation."""
        return evidence_of(self._as_recording(done))

    def _as_recording(self, done: Replay) -> Recording:
        rebuilt = replace(self.recording.rebuilt, room_bytes=self.room_bytes)
        return replace(self.recording, rebuilt=rebuilt, done=done, moment=done)

    def _passes_expandable(self, sketch: Sketch) -> bool:
        if self.recording.rebuilt.settings.expandable_segments:
            return False
        done = self.run(sketch, expandable=True)
        return not done.ran_out and not done.broken

    def _why_not(self, sketch: Sketch) -> str:
        done = self.run(sketch, next(iter(PLACEMENTS)))
        if not done.ran_out:
            what = "succeeds"
        elif done.done < len(sketch):
            what = f"is not reached, because an earlier request fails at operation {done.done:,} of {len(sketch):,},"
        else:
            what = f"fails for another cause ({cause_of(self._as_recording(done), self.evidence(done), None).value})"
        middle = "" if self.recording.rebuilt.is_whole else ", whose recording began in the middle,"
        return (
            f"the request that failed in this run{middle} {what} when a script repeats the run with an empty "
            f"allocator and a capacity of {text_of_bytes(self.room_bytes)}; expected {self.cause.value}. Record from "
            "the start of the process, or specify what the snapshot does not record (capacity=, alloc_conf=, "
            "torch_version=)"
        )
