"""Decides whether memory growth is a leak.

It compares the lowest memory over 8 steps, over 32 steps, and so on. If this minimum rises twice in a row, growth is
suspected. It is reported after more rises, if the source lines whose memory grows were found too.
"""

import gc
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

from ullage.base.growth import LEAST_RISES, has_stopped, is_even, is_longer_batch, is_noticeable
from ullage.base.units import MIB
from ullage.training.monitor.evidence import UNIT_BYTES, GrowthEvidence, HeldByPath, held_now, holder_of_growth
from ullage.training.monitor.finding import FindingKind, MonitorFinding
from ullage.training.monitor.series import CHUNK_STEPS, LEVELS, Floor, Series, width_of
from ullage.training.monitor.visits import Visit, Visits

_SUSPECTED: Final = 2
_ESTABLISHED: Final = 4
# Bytes without more blocks may rise by chance if batches differ in length, so more rises are needed if they differ.
_ESTABLISHED_IN_BYTES: Final = 6
# The monitor records which source lines allocate only if memory grows over 8, 32 or 128 steps. These are three levels.
# For more steps, recording would take too much time.
_RECORDED_LEVELS: Final = 3
# Growth in the memory minimums over 8 steps must continue for this many more steps before it is reported as a leak.
_CONFIRMED_STEPS: Final = 6
# The number of consecutive rises after which growth is reported even if no growing source line was found.
_WITHOUT_LINE: Final = 7
_REST_FLOORS: Final = 4
_LONGEST_REST: Final = 1 << 14
_FASTER: Final = 1.5
_SETTLED_FLOORS: Final = 3
_LEAST_UNUSED: Final = 32 * MIB
# The N in this rule: a GPU's memory is fragmented if at least 1/N of its reserved memory was unused even at the peak.
_UNUSED_ONE_IN: Final = 3
# The N in this rule: a peak of memory has risen if it is higher than its earlier value by at least 1/N of this value.
_RISE_ONE_IN: Final = 16
# Memory that rises this often, by the same number of blocks or almost of bytes, at almost equal intervals, leaks.
_RARE_RISES: Final = 6
_EQUAL_GAPS: Final = 0.9
_VERY_EVEN: Final = 0.95
# The maximum number of steps from one such rise to the next. Rarer ones are stages of the training.
_LONGEST_GAP: Final = 3072


@dataclass(frozen=True, slots=True)
class StepLevels:
    """The allocator's statistics after a training step: bytes, and numbers of blocks."""

    bytes: int
    blocks: int
    reserved_bytes: int
    peak_bytes: int

    @classmethod
    def of(cls, statistics: Mapping[str, Any]) -> Self:
        """Create the object from PyTorch's memory statistics (`torch._C._cuda_memoryStats`)."""
        return cls(
            # Requested bytes are used, because a block may be up to 1 MiB larger than its request, depending on its
            # position.
            statistics["requested_bytes"]["all"]["current"],
            statistics["allocation"]["all"]["current"],
            statistics["reserved_bytes"]["all"]["current"],
            statistics["allocated_bytes"]["all"]["peak"],
        )


@dataclass(slots=True)
class _Suspicion:
    series: Series
    phase: str
    level: int
    is_by_blocks: bool
    since: Floor
    begun: tuple[int, int]
    evidence: GrowthEvidence | None
    held: HeldByPath | None = None
    is_swept: bool = False
    confirmed_at: int | None = None


@dataclass(slots=True)
class _Rest:
    steps: int
    until: int = 0
    # if False, only growth in bytes is ignored, which longer batches can cause
    is_of_blocks: bool = False


@dataclass(slots=True)
class _Standing:
    place: int
    level: int
    is_by_blocks: bool
    since: Floor
    top: Floor
    longest_pause: int = 0


@dataclass(slots=True)
class _Past:
    rests: list[_Rest] = field(
        default_factory=lambda: [_Rest(_REST_FLOORS * width_of(level)) for level in range(LEVELS)]
    )
    blocks_per_step: float = 0.0
    # It is raised when growth has ended. A list that is cleared from time to time appears to grow over few steps.
    least_level: int = 0
    standing: _Standing | None = None
    visits: Visits = field(default_factory=Visits)
    held: HeldByPath | None = None


@dataclass(slots=True)
class _Rises:
    count: int = 0
    first_step: int = 0
    last_step: int = 0
    longest_pause: int = 0
    waiting: tuple[str, int, int] | None = None


def _floor_of(visit: Visit) -> Floor:
    return Floor(
        bytes=visit.bytes,
        blocks=visit.blocks,
        step=visit.step,
        phase_steps=visit.phase_steps,
        inside_bytes=0,
        inside_blocks=0,
        inside_steps=0,
        all_bytes=0,
        all_blocks=0,
    )


def _new_rise(floors: list[Floor]) -> tuple[Floor, Floor] | None:
    """Return the last minimum before a rise of blocks and the latest one, if memory has just risen and stays."""
    if len(floors) <= _SETTLED_FLOORS:
        return None
    before, after = floors[-4:-2], floors[-2:]
    has_risen = before[0].blocks == before[1].blocks < after[0].blocks == after[1].blocks
    return (before[1], after[1]) if has_risen else None


class Judge:
    """Decides which memory growth is investigated and which is reported."""

    def __init__(self, least_bytes: int, notify: Callable[[MonitorFinding], Any], *, searches_holders: bool) -> None:
        self.findings: list[MonitorFinding] = []
        self.device = 0
        self._least = least_bytes
        self._notify = notify
        self._searches_holders = searches_holders
        self._suspicion: _Suspicion | None = None
        self._past: dict[int, _Past] = {}
        self._begun: StepLevels | None = None
        self._settled: tuple[int, StepLevels] | None = None
        self._settled_floors: dict[int, int] = {}
        self._rises = _Rises()
        self._higher = 0
        self._visited_blocks = 0
        """The number of blocks that `Monitor.phase` contexts have added since the last rise."""
        self._rare: deque[tuple[Floor, Floor]] = deque(maxlen=_RARE_RISES)

    def start(self, levels: StepLevels) -> None:
        """Record the allocator's statistics before the first step."""
        self._begun = levels

    @property
    def suspects(self) -> bool:
        return self._suspicion is not None

    def stop(self) -> None:
        """Stop investigating memory growth."""
        if self._suspicion is not None and self._suspicion.evidence is not None:
            self._suspicion.evidence.stop()
        self._suspicion = None

    def sample_evidence(self, series: Series, step: int) -> None:
        """Sample the allocated blocks after a step, if memory growth is under investigation."""
        suspicion = self._suspicion
        if suspicion is None or suspicion.series is not series:
            return
        if suspicion.evidence is not None:
            suspicion.evidence.sample(series.steps)
        if suspicion.confirmed_at is not None and series.steps >= suspicion.confirmed_at:
            suspicion.confirmed_at = None
            self._conclude(suspicion, self._past[id(series)], step)

    def judge(self, series: Series, phase: str, step: int, levels: StepLevels, *, is_alone: bool) -> None:
        """Examine the memory of a phase after a training step, and report growth."""
        closed = series.close(step)
        past = self._past.setdefault(id(series), _Past())
        if past.standing is not None:
            self._follow(series, past, step, closed)
        elif self._suspicion is None:
            self._suspect(series, past, phase, closed, levels, is_alone=is_alone)
        elif self._suspicion.series is series and closed > self._suspicion.level:
            self._decide(self._suspicion, past, step, levels)
        self._settle(series, phase, step, levels)

    def begin_visit(self, series: Series, phase: str, visit: Visit) -> None:
        """Examine the memory before a `Monitor.phase` context, and report growth from one context to the next."""
        past = self._past.setdefault(id(series), _Past())
        past.visits.begin(visit)
        if past.standing is not None:
            return
        if past.visits.is_suspicious:
            if gc.isenabled():
                gc.collect()
            past.held = held_now(self.device) if self._searches_holders else None
        growth = past.visits.growth()
        if growth is not None:
            first, last = map(_floor_of, growth)
            self._report_rises(series, phase, max(1, visit.step), first, last, since_step=first.step + 1)

    def _report_rises(
        self,
        series: Series,
        phase: str,
        step: int,
        first: Floor,
        last: Floor,
        *,
        since_step: int,
        longest_pause: int = 0,
    ) -> bool:
        """Report a leak whose rises are rare. Return False if it is too small."""
        steps, total = max(1, last.phase_steps - first.phase_steps), last.bytes - first.bytes
        if not self._is_noticeable(total / steps, steps):
            return False
        if self._suspicion is not None and self._suspicion.series is series:
            self.stop()
        past = self._past[id(series)]
        past.standing = _Standing(
            place=len(self.findings), level=0, is_by_blocks=True, since=first, top=last, longest_pause=longest_pause
        )
        held, past.held = past.held, None
        self._add(
            MonitorFinding(
                kind=FindingKind.LEAK,
                phase=phase,
                step=step,
                since_step=since_step,
                bytes_per_step=total // steps,
                total_bytes=total,
                holder=holder_of_growth(held, held_now(self.device), by_blocks=True) if held is not None else None,
            )
        )
        return True

    def end_visit(self, visit: Visit) -> None:
        """Note what a `Monitor.phase` context has added."""
        self._visited_blocks += visit.added_blocks

    def _suspect(
        self, series: Series, past: _Past, phase: str, closed: int, levels: StepLevels, *, is_alone: bool
    ) -> None:
        for level in range(past.least_level, closed):
            rises, is_by_blocks = series.growth(level, _SUSPECTED)
            if rises < _SUSPECTED or not (is_alone or series.came_inside(level, rises)):
                continue
            if not series.is_new(level, rises, by_blocks=is_by_blocks, further=_SUSPECTED):
                continue
            since, last = series.floors[level][-rises - 1], series.floors[level][-1]
            rate = (last.blocks - since.blocks) / max(1, last.phase_steps - since.phase_steps)
            is_faster = rate > _FASTER * past.blocks_per_step > 0
            evidence = GrowthEvidence(self.device, width_of(level) // 2) if level < _RECORDED_LEVELS else None
            # Batches of different sizes hide a slow growth in bytes, but not that of blocks.
            pace = max(series.bytes_per_step(level, rises), UNIT_BYTES * rate)
            if evidence is None and not self._is_noticeable(pace, _ESTABLISHED * width_of(level)):
                continue
            rest = past.rests[level]
            if series.steps < rest.until and not (is_by_blocks and (is_faster or not rest.is_of_blocks)):
                continue
            self._suspicion = _Suspicion(
                series, phase, level, is_by_blocks, since, (last.bytes, levels.peak_bytes), evidence
            )
            if evidence is not None:
                evidence.start(series.steps)
            return

    def _decide(self, suspicion: _Suspicion, past: _Past, step: int, levels: StepLevels) -> None:
        series, level, evidence = suspicion.series, suspicion.level, suspicion.evidence
        rises, is_by_blocks = series.growth(level, _ESTABLISHED)
        if rises < _SUSPECTED:
            self._dismiss(suspicion, past, step)
            return
        if rises >= _ESTABLISHED - 1 and not suspicion.is_swept:
            suspicion.is_swept = True
            if gc.isenabled():  # otherwise Python does not collect reference cycles at all
                gc.collect()
            if self._searches_holders:
                suspicion.held = held_now(self.device)
            return  # the next floor shows how much the collection has freed
        if rises < _ESTABLISHED or (evidence is not None and not evidence.is_complete):
            return
        if is_by_blocks and (series.is_slowing(level, rises) or series.slows_over_time(level, rises)):
            return
        if not is_by_blocks and rises < _ESTABLISHED_IN_BYTES and not series.rises_very_evenly(level, rises):
            return
        if not series.is_new(level, rises, by_blocks=is_by_blocks) or series.may_end_with_the_visit(level, rises):
            return
        stayed, peak = suspicion.begun
        more = series.floors[level][-1].bytes - stayed
        is_in_bytes = series.rises_in_blocks(level) < _SUSPECTED
        # If the line is unknown, blocks may belong to longer batches too, as in a curriculum of longer and longer
        # sequences.
        if (is_in_bytes or evidence is None) and is_longer_batch(levels.peak_bytes - peak, more):
            self._dismiss(suspicion, past, step)
            if is_in_bytes:
                self._report_once(
                    FindingKind.LONGER_BATCH, suspicion.phase, step, suspicion.since.step, levels.peak_bytes - peak
                )
        elif rises == _ESTABLISHED and not level:
            suspicion.confirmed_at = series.steps + _CONFIRMED_STEPS
        else:
            self._conclude(suspicion, past, step)

    def _conclude(self, suspicion: _Suspicion, past: _Past, step: int) -> None:
        series, level, evidence = suspicion.series, suspicion.level, suspicion.evidence
        rises, is_by_blocks = series.growth(level, _ESTABLISHED)
        if not series.goes_on(level, by_blocks=is_by_blocks):
            return
        first, last = series.floors[level][-rises - 1], series.floors[level][-1]
        steps = max(1, last.phase_steps - first.phase_steps)
        by_floors = int(max(series.bytes_per_step(level, rises), UNIT_BYTES * (last.blocks - first.blocks) / steps))
        lines = evidence.lines(by_blocks=is_by_blocks) if evidence is not None else ()
        if evidence is not None and evidence.is_possible and not lines and rises < _WITHOUT_LINE:
            return  # more samples may show a line
        by_lines = sum(size for _, size in lines)
        rate = by_lines or (by_floors if rises >= _ESTABLISHED or not is_by_blocks else 0)
        if not self._is_noticeable(rate, steps):
            past.blocks_per_step = (last.blocks - first.blocks) / steps
            self._dismiss(suspicion, past, step)
            return
        past.standing = _Standing(
            place=len(self.findings),
            level=level,
            is_by_blocks=is_by_blocks,
            since=first,
            top=last,
        )
        self.stop()
        holder = None
        if suspicion.held is not None:
            holder = holder_of_growth(suspicion.held, held_now(self.device), by_blocks=suspicion.is_by_blocks)
        self._add(
            MonitorFinding(
                kind=FindingKind.LEAK,
                phase=suspicion.phase,
                step=step,
                since_step=max(1, suspicion.since.step - width_of(level) + 1),
                bytes_per_step=rate,
                total_bytes=max(rate * steps, last.bytes - first.bytes),
                line=lines[0][0] if lines else None,
                lines=lines,
                holder=holder,
            )
        )

    def _is_noticeable(self, bytes_per_step: float, steps: int) -> bool:
        return is_noticeable(bytes_per_step, int(bytes_per_step * steps), self._least)

    def _dismiss(self, suspicion: _Suspicion, past: _Past, step: int) -> None:
        series = suspicion.series
        evidence = suspicion.evidence
        floors, since = series.floors[suspicion.level], suspicion.since
        top, last = max(floors, key=lambda floor: floor.blocks), floors[-1]
        stopped = has_stopped(
            last.phase_steps - top.phase_steps,
            longest_pause_steps=width_of(suspicion.level),
            growing_steps=top.phase_steps - since.phase_steps,
        )
        lines = evidence.lines(by_blocks=suspicion.is_by_blocks) if evidence is not None else ()
        grown = last.bytes - since.bytes
        self.stop()
        steps = past.rests[suspicion.level].steps
        if evidence is not None:  # recording stacks costs time, floors alone do not
            past.rests[suspicion.level].steps = min(2 * steps, _LONGEST_REST)
        for rest in past.rests[: suspicion.level + 1]:
            rest.until = max(rest.until, series.steps + steps)
            rest.is_of_blocks = suspicion.is_by_blocks
        if stopped and lines and suspicion.is_by_blocks and grown >= MIB and lines[0][1] >= self._least:
            self._add(
                MonitorFinding(
                    kind=FindingKind.GROWTH_ENDED,
                    phase=suspicion.phase,
                    step=step,
                    since_step=max(1, since.step - CHUNK_STEPS + 1),
                    until_step=step,
                    total_bytes=grown,
                    line=lines[0][0],
                    lines=lines,
                )
            )

    def _follow(self, series: Series, past: _Past, step: int, closed: int) -> None:
        leak = past.standing
        assert leak is not None
        if closed <= leak.level:
            return
        floor = series.floors[leak.level][-1]
        start, top, value = (one.blocks if leak.is_by_blocks else one.bytes for one in (leak.since, leak.top, floor))
        quiet = floor.phase_steps - leak.top.phase_steps
        if value > top:
            leak.longest_pause, leak.top = max(leak.longest_pause, quiet), floor
            return
        is_let_go = 2 * (value - start) <= top - start  # a list that was cleared
        if not has_stopped(
            quiet,
            longest_pause_steps=max(leak.longest_pause, _SETTLED_FLOORS * width_of(leak.level)),
            growing_steps=0 if is_let_go else leak.top.phase_steps - leak.since.phase_steps,
        ):
            return
        past.standing = None
        past.least_level = min(leak.level + 1, len(series.floors) - 1)
        found = self.findings[leak.place]
        ended = replace(
            found,
            kind=FindingKind.GROWTH_ENDED,
            step=step,
            until_step=step,
            total_bytes=max(found.total_bytes, leak.top.bytes - leak.since.bytes),
        )
        self.findings[leak.place] = ended
        self._notify(ended)

    def _settle(self, series: Series, phase: str, step: int, levels: StepLevels) -> None:
        floors = list(series.floors[0])
        settled = self._settled_floors.setdefault(id(series), floors[-1].bytes)
        is_leaking = any(past.standing for past in self._past.values())
        if is_leaking or len(floors) < _SETTLED_FLOORS or series.rises_in_blocks(0):
            return
        rise = _new_rise(floors)
        if (rise is not None and self._is_rare_leak(series, phase, step, *rise)) or self._suspicion is not None:
            return
        if self._settled is None:
            if self._begun is not None and not self.findings:  # otherwise the rise has been reported already
                self._report_rise(phase, step, 1, floors[-1].bytes - self._begun.bytes)
            self._settle_at(step, levels)
            return
        self._report_waiting(step)
        if rise is not None:
            before, after = rise
            self._report_rise(phase, step, before.step, after.bytes - before.bytes)
            self._settle_at(step, levels)
        self._judge_peak(phase, step, levels, rise=floors[-1].bytes - settled)

    def _is_rare_leak(self, series: Series, phase: str, step: int, before: Floor, after: Floor) -> bool:
        """Add a rise of memory, and report a leak if it is one of many equal ones at equal intervals."""
        rises = self._rare
        visited, self._visited_blocks = self._visited_blocks, 0
        if 2 * visited >= after.blocks - before.blocks:
            return False  # `begin_visit` examines what `Monitor.phase` contexts add
        if rises and rises[-1][1].blocks != before.blocks:
            rises.clear()  # memory has changed in between
        rises.append((before, after))
        if len(rises) < _RARE_RISES:
            return False
        sizes = [last.bytes - first.bytes for first, last in rises]
        is_equal = len({last.blocks - first.blocks for first, last in rises}) == 1 or is_even(sizes, _VERY_EVEN)
        gaps = [last.step - first.step for (first, _), (last, _) in pairwise(rises)]
        if not (is_equal and is_even(gaps, _EQUAL_GAPS) and max(gaps) <= _LONGEST_GAP):
            return False
        first, last = rises[0][0], rises[-1][1]
        pause = 2 * max(gaps)
        return self._report_rises(series, phase, step, first, last, since_step=first.step, longest_pause=pause)

    def _settle_at(self, step: int, levels: StepLevels) -> None:
        self._settled, self._higher = (step, levels), 0
        self._settled_floors.clear()

    def _judge_peak(self, phase: str, step: int, levels: StepLevels, *, rise: int) -> None:
        assert self._settled is not None
        since, settled = self._settled
        peak = levels.peak_bytes - settled.peak_bytes
        reserved = levels.reserved_bytes - settled.reserved_bytes
        if peak < 0 or reserved < 0:  # the user has reset the statistics or emptied the cache
            self._settle_at(step, levels)
            return
        unused = levels.reserved_bytes - levels.peak_bytes
        if reserved >= _LEAST_UNUSED and reserved >= 2 * peak and _UNUSED_ONE_IN * unused >= levels.reserved_bytes:
            self._report_once(FindingKind.FRAGMENTATION, phase, step, since, reserved)
        if peak >= MIB and peak * _RISE_ONE_IN >= settled.peak_bytes and 2 * rise < peak:
            self._higher += 1
            if self._higher >= _SETTLED_FLOORS:  # after these floors it is clear whether the memory stays allocated
                self._report_once(FindingKind.LONGER_BATCH, phase, step, since, peak)

    def _report_rise(self, phase: str, step: int, since: int, total: int) -> None:
        rises = self._rises
        rises.count += 1
        if rises.count == 1:
            rises.first_step = since
        else:
            rises.longest_pause = max(rises.longest_pause, since - rises.last_step)
        rises.last_step = since
        if rises.count < LEAST_RISES:
            self._add_warm_up(phase, step, since, since, total)
        elif rises.waiting is None:
            rises.waiting = phase, since, total
        else:
            phase, since, before = rises.waiting
            rises.waiting = phase, since, before + total

    def _report_waiting(self, step: int) -> None:
        rises = self._rises
        if rises.waiting is not None and has_stopped(
            step - rises.last_step,
            longest_pause_steps=2 * rises.longest_pause,
            growing_steps=rises.last_step - rises.first_step,
        ):
            phase, since, total = rises.waiting
            rises.waiting = None
            self._add_warm_up(phase, step, since, rises.last_step, total)

    def _add_warm_up(self, phase: str, step: int, since: int, last: int, total: int) -> None:
        if total >= MIB:
            self._add(
                MonitorFinding(
                    kind=FindingKind.WARM_UP,
                    phase=phase,
                    step=step,
                    since_step=since,
                    until_step=last,
                    total_bytes=total,
                )
            )

    def _report_once(self, kind: FindingKind, phase: str, step: int, since: int, total: int) -> None:
        for place, found in enumerate(self.findings):
            if found.kind is kind:
                self.findings[place] = replace(found, total_bytes=max(total, found.total_bytes))
                return
        self._add(MonitorFinding(kind=kind, phase=phase, step=step, since_step=since, total_bytes=total))

    def _add(self, finding: MonitorFinding) -> None:
        self.findings.append(finding)
        self._notify(finding)
