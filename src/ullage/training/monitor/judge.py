"""Turns floors (`series`) into findings: which growth is suspected, which evidence is gathered, what is reported.

Growth is suspected when floors rise twice in a row, and established when they have risen four times and block lists of
the same steps name the growing lines. Suspicion is cheap and may be wrong; a finding needs both.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from ullage.base.units import MIB
from ullage.training.monitor.evidence import UNIT_BYTES, GrowthEvidence
from ullage.training.monitor.finding import FindingKind, MonitorFinding
from ullage.training.monitor.holder import HeldByPath, held_now, holder_of_growth
from ullage.training.monitor.series import CHUNK_STEPS, WIDENING, Floor, Series

_SUSPECTED: Final = 2
_ESTABLISHED: Final = 4
_RECORDED_LEVELS: Final = 3
"""The number of levels for which lines are recorded (floors of 8, 32 and 128 steps); for wider ones it costs too much.
"""
_CONFIRMED_STEPS: Final = 6
"""The number of steps for which growth of 8-step floors has to go on after it is established, to be called a leak."""
_WITHOUT_LINE: Final = 7
"""The number of rises after which growth is reported without a line, if block lists show none."""
_REST_STEPS: Final = 32
_LONGEST_REST: Final = 1 << 14
_FASTER: Final = 1.5
_SETTLED_FLOORS: Final = 3
_PEAK_TO_FLOOR_RATIO: Final = 2.5
"""The ratio of the peak's rise to the floor's from which on the growth is due to longer batches. A leak has a ratio of
up to 2: `state = torch.cat([state, new])` has the state twice at its peak."""
_LEAST_UNUSED: Final = 32 * MIB
_UNUSED_ONE_IN: Final = 3
"""Memory counts as fragmented if at least one byte in this many of the reserved was not in use even at the peak."""
_RISE_ONE_IN: Final = 16
"""A peak counts as risen if it has risen by at least one part in this many of itself."""


@dataclass(frozen=True, slots=True)
class StepLevels:
    """The allocator's statistics after a step, in bytes and blocks."""

    bytes: int
    blocks: int
    reserved_bytes: int
    peak_bytes: int

    @classmethod
    def of(cls, statistics: Mapping[str, Any]) -> Self:
        """Make them from the result of `torch._C._cuda_memoryStats`."""
        return cls(
            # What was asked for: a block may be larger by up to a MiB, more or less as it happens to lie.
            statistics["requested_bytes"]["all"]["current"],
            statistics["allocation"]["all"]["current"],
            statistics["reserved_bytes"]["all"]["current"],
            statistics["allocated_bytes"]["all"]["peak"],
        )


@dataclass(slots=True)
class _Suspicion:
    """Growth that is being investigated."""

    series: Series
    phase: str
    level: int
    is_by_blocks: bool
    since: Floor
    begun: tuple[int, int]
    """The bytes that stayed after steps, and the peak, when the growth was first suspected."""
    evidence: GrowthEvidence | None
    held: HeldByPath | None = None
    """The holders of memory, one floor before the growth is established."""
    is_swept: bool = False
    """Whether the garbage collector was run, so that reference cycles are not taken for growth."""
    confirmed_at: int | None = None
    """The step of the phase at which established growth is checked for the last time."""


@dataclass(slots=True)
class _Past:
    """The memory of earlier investigations of a series."""

    rest_until: int = 0
    """The step of the phase before which slow or uneven growth is not investigated again."""
    rest_steps: int = _REST_STEPS
    rests_blocks: bool = False
    """Whether growth in blocks is ignored until then, and not only growth in bytes, which may be longer batches."""
    blocks_per_step: float = 0.0
    """The growth that was not worth a finding; only faster growth is investigated meanwhile."""
    least_level: int = 0
    """The lowest level that is judged: after growth that ended, longer spans only (a list that is cleared at times)."""
    standing: tuple[int, int, bool] | None = None
    """The leak that goes on: its index in the findings, its level, whether it shows in blocks; None if there is no
    leak."""


class Judge:
    """Decides what the floors of all phases mean."""

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
        self._higher = 0

    def start(self, levels: StepLevels) -> None:
        """Record the statistics before the first step."""
        self._begun = levels

    @property
    def suspects(self) -> bool:
        """Whether growth is being investigated."""
        return self._suspicion is not None

    def stop(self) -> None:
        """Stop gathering evidence."""
        if self._suspicion is not None and self._suspicion.evidence is not None:
            self._suspicion.evidence.stop()
        self._suspicion = None

    def sample_evidence(self, series: Series, step: int) -> None:
        """After a step, let the evidence that is gathered about a series take a sample."""
        suspicion = self._suspicion
        if suspicion is None or suspicion.series is not series:
            return
        if suspicion.evidence is not None:
            suspicion.evidence.sample(series.steps)
        if suspicion.confirmed_at is not None and series.steps >= suspicion.confirmed_at:
            suspicion.confirmed_at = None
            self._conclude(suspicion, self._past[id(series)], step)

    def judge(self, series: Series, phase: str, step: int, levels: StepLevels, *, is_alone: bool) -> None:
        """Complete a floor of a series, and report what follows from it."""
        closed = series.close(step)
        past = self._past.setdefault(id(series), _Past())
        if past.standing is not None:
            self._follow(series, past, step, closed)
        elif self._suspicion is None:
            self._suspect(series, past, phase, closed, levels, is_alone=is_alone)
        elif self._suspicion.series is series and closed > self._suspicion.level:
            self._decide(self._suspicion, past, step, levels)
        self._settle(series, phase, step, levels)

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
            if series.steps < past.rest_until and not (is_by_blocks and (is_faster or not past.rests_blocks)):
                continue
            stride = CHUNK_STEPS * WIDENING**level // 2
            evidence = GrowthEvidence(self.device, stride) if level < _RECORDED_LEVELS else None
            self._suspicion = _Suspicion(
                series, phase, level, is_by_blocks, since, (last.bytes, levels.peak_bytes), evidence
            )
            if evidence is not None:
                evidence.start(series.steps)
            return

    def _decide(self, suspicion: _Suspicion, past: _Past, step: int, levels: StepLevels) -> None:
        """Dismiss a suspicion, establish it, or wait."""
        series, level, evidence = suspicion.series, suspicion.level, suspicion.evidence
        rises, is_by_blocks = series.growth(level, _ESTABLISHED)
        if rises < _SUSPECTED:
            self._dismiss(suspicion, past, step)
            return
        if rises >= _ESTABLISHED - 1 and not suspicion.is_swept:
            suspicion.is_swept = True
            if gc.isenabled():  # Python itself would collect at some time
                gc.collect()
            if self._searches_holders:
                suspicion.held = held_now(self.device)
            return  # the next floor shows what this has freed
        if rises < _ESTABLISHED or (evidence is not None and not evidence.is_complete):
            return
        if is_by_blocks and series.is_slowing(level, rises):
            return
        if not series.is_new(level, rises, by_blocks=is_by_blocks):
            return
        stayed, peak = suspicion.begun
        more = series.floors[level][-1].bytes - stayed
        if series.rises_in_blocks(level) < _SUSPECTED and levels.peak_bytes - peak >= _PEAK_TO_FLOOR_RATIO * more:
            self._dismiss(suspicion, past, step)
            self._report_once(
                FindingKind.LONGER_BATCH, suspicion.phase, step, suspicion.since.step, levels.peak_bytes - peak
            )
        elif rises == _ESTABLISHED and not level:
            suspicion.confirmed_at = series.steps + _CONFIRMED_STEPS
        else:
            self._conclude(suspicion, past, step)

    def _conclude(self, suspicion: _Suspicion, past: _Past, step: int) -> None:
        """Report a leak, if the growth goes on and is at least as fast as the user's limit."""
        series, level, evidence = suspicion.series, suspicion.level, suspicion.evidence
        rises, is_by_blocks = series.growth(level, _ESTABLISHED)
        if not series.goes_on(level, by_blocks=is_by_blocks):
            return
        first, last = series.floors[level][-rises - 1], series.floors[level][-1]
        steps = max(1, last.phase_steps - first.phase_steps)
        by_floors = max(last.bytes - first.bytes, UNIT_BYTES * (last.blocks - first.blocks)) // steps
        lines = evidence.lines(by_blocks=is_by_blocks) if evidence is not None else ()
        if evidence is not None and evidence.is_possible and not lines and rises < _WITHOUT_LINE:
            return  # more samples may show one
        by_lines = sum(size for _, size in lines)
        rate = by_lines or (by_floors if rises >= _ESTABLISHED or not is_by_blocks else 0)
        if rate < self._least:
            past.blocks_per_step = (last.blocks - first.blocks) / steps
            self._dismiss(suspicion, past, step)
            return
        past.standing = (len(self.findings), level, is_by_blocks)
        self._establish(suspicion, step, rate, max(rate * steps, last.bytes - first.bytes), lines)

    def _establish(
        self, suspicion: _Suspicion, step: int, rate: int, total: int, lines: tuple[tuple[str, int], ...]
    ) -> None:
        self.stop()
        holder = None
        if suspicion.held is not None:
            holder = holder_of_growth(suspicion.held, held_now(self.device), by_blocks=suspicion.is_by_blocks)
        self._add(
            MonitorFinding(
                kind=FindingKind.LEAK,
                phase=suspicion.phase,
                step=step,
                since_step=max(1, suspicion.since.step - CHUNK_STEPS * WIDENING**suspicion.level + 1),
                bytes_per_step=rate,
                total_bytes=total,
                line=lines[0][0] if lines else None,
                lines=lines,
                holder=holder,
            )
        )

    def _dismiss(self, suspicion: _Suspicion, past: _Past, step: int) -> None:
        """Drop a suspicion, and wait before the next one: longer each time this happens."""
        series = suspicion.series
        evidence = suspicion.evidence
        last = series.floors[suspicion.level][-1]
        lines = evidence.lines(by_blocks=suspicion.is_by_blocks) if evidence is not None else ()
        grown = last.bytes - suspicion.since.bytes
        self.stop()
        past.rest_until = series.steps + past.rest_steps
        past.rests_blocks = suspicion.is_by_blocks
        past.rest_steps = min(2 * past.rest_steps, _LONGEST_REST)
        if lines and suspicion.is_by_blocks and grown >= MIB and lines[0][1] >= self._least:
            self._add(
                MonitorFinding(
                    kind=FindingKind.GROWTH_ENDED,
                    phase=suspicion.phase,
                    step=step,
                    since_step=max(1, suspicion.since.step - CHUNK_STEPS + 1),
                    until_step=step,
                    total_bytes=grown,
                    line=lines[0][0],
                    lines=lines,
                )
            )

    def _follow(self, series: Series, past: _Past, step: int, closed: int) -> None:
        """Check whether a reported leak goes on."""
        assert past.standing is not None
        place, level, is_by_blocks = past.standing
        floors = series.floors[level]
        if closed <= level or len(floors) < _SETTLED_FLOORS:
            return
        values = [one.blocks if is_by_blocks else one.bytes for one in list(floors)[-_SETTLED_FLOORS:]]
        if (values[-1] > values[0] and values[-1] > values[-2]) or values[-2] > values[0]:
            return
        past.standing = None
        past.least_level = min(level + 1, len(series.floors) - 1)
        found = self.findings[place]
        ended = replace(
            found,
            kind=FindingKind.GROWTH_ENDED,
            step=step,
            until_step=step,
            total_bytes=max(found.total_bytes, found.bytes_per_step * (step - found.since_step)),
        )
        self.findings[place] = ended
        self._notify(ended)

    def _settle(self, series: Series, phase: str, step: int, levels: StepLevels) -> None:
        """Report memory that rose once, and rises of only the peak or of only the reserved memory."""
        floors = list(series.floors[0])
        is_growing = self._suspicion is not None or any(past.standing for past in self._past.values())
        if is_growing or len(floors) < _SETTLED_FLOORS or series.rises_in_blocks(0):
            return
        if self._settled is None:
            if self._begun is not None and not self.findings:  # else the rise has been reported already
                self._report_rise(phase, step, 1, floors[-1].bytes - self._begun.bytes)
            self._settled = (step, levels)
            return
        if len(floors) > _SETTLED_FLOORS:
            before, after = floors[-4:-2], floors[-2:]
            if before[0].blocks == before[1].blocks < after[0].blocks == after[1].blocks:
                self._report_rise(phase, step, before[1].step, after[1].bytes - before[1].bytes)
                self._settled, self._higher = (step, levels), 0
        self._judge_peak(phase, step, levels, rise=floors[-1].bytes - floors[0].bytes)

    def _judge_peak(self, phase: str, step: int, levels: StepLevels, *, rise: int) -> None:
        assert self._settled is not None
        since, settled = self._settled
        peak = levels.peak_bytes - settled.peak_bytes
        reserved = levels.reserved_bytes - settled.reserved_bytes
        if peak < 0 or reserved < 0:  # the user has reset the counters, or emptied the cache
            self._settled = (step, levels)
            return
        unused = levels.reserved_bytes - levels.peak_bytes
        if reserved >= _LEAST_UNUSED and reserved >= 2 * peak and _UNUSED_ONE_IN * unused >= levels.reserved_bytes:
            self._report_once(FindingKind.FRAGMENTATION, phase, step, since, reserved)
        if peak >= MIB and peak * _RISE_ONE_IN >= settled.peak_bytes and 2 * rise < peak:
            self._higher += 1
            if self._higher >= _SETTLED_FLOORS:  # by then floors show whether the memory stays
                self._report_once(FindingKind.LONGER_BATCH, phase, step, since, peak)

    def _report_rise(self, phase: str, step: int, since: int, total: int) -> None:
        if total >= MIB:
            self._add(
                MonitorFinding(kind=FindingKind.WARM_UP, phase=phase, step=step, since_step=since, total_bytes=total)
            )

    def _report_once(self, kind: FindingKind, phase: str, step: int, since: int, total: int) -> None:
        """Report a kind of finding the first time; later only update its figures, without a line in the log."""
        for place, found in enumerate(self.findings):
            if found.kind is kind:
                self.findings[place] = replace(found, total_bytes=max(total, found.total_bytes))
                return
        self._add(MonitorFinding(kind=kind, phase=phase, step=step, since_step=since, total_bytes=total))

    def _add(self, finding: MonitorFinding) -> None:
        self.findings.append(finding)
        self._notify(finding)
