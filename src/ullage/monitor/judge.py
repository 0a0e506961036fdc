"""From floors to findings: what is suspected, what evidence is gathered, and what is said.

Growth is suspected when floors rise twice in a row, and established when they have risen four times and block lists of
the same steps name what grows. Suspicion is cheap and may be wrong; a finding needs both.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from ullage._units import MIB
from ullage.monitor.evidence import UNIT_BYTES, Evidence
from ullage.monitor.finding import Finding, Kind
from ullage.monitor.holder import Held, held_now, holder_of_growth
from ullage.monitor.series import CHUNK_STEPS, WIDENING, Floor, Series

_SUSPECTED: Final = 2
_ESTABLISHED: Final = 4
_RECORDED_LEVELS: Final = 3
"""Floors of 8, 32 and 128 steps: over wider ones recording would cost more than the line is worth."""
_CONFIRMED_STEPS: Final = 6
"""Growth of 8-step floors has to go on for so long after it is established: what is full by then is no leak."""
_WITHOUT_LINE: Final = 7
"""Rises after which growth is said without a line, where block lists show none."""
_REST_STEPS: Final = 32
_LONGEST_REST: Final = 1 << 14
_FASTER: Final = 1.5
_SETTLED_FLOORS: Final = 3
_OF_A_BATCH: Final = 2.5
"""Where the peak rises by this many times what stays, longer batches are what grows: joining a state to itself has it
twice."""
_LEAST_UNUSED: Final = 32 * MIB
_UNUSED: Final = 3
"""Memory is in pieces where at least this part of what is reserved was not in use even at the peak."""
_SHARE: Final = 16
"""What rises by less than this part of itself has not risen."""


@dataclass(frozen=True, slots=True)
class Levels:
    """What the allocator says after a step, in bytes and blocks."""

    bytes: int
    blocks: int
    reserved_bytes: int
    peak_bytes: int

    @classmethod
    def of(cls, statistics: Mapping[str, Any]) -> Self:
        """Read them from `torch._C._cuda_memoryStats`."""
        return cls(
            # What was asked for: a block may be larger by up to a MiB, more or less as it happens to lie.
            statistics["requested_bytes"]["all"]["current"],
            statistics["allocation"]["all"]["current"],
            statistics["reserved_bytes"]["all"]["current"],
            statistics["allocated_bytes"]["all"]["peak"],
        )


@dataclass(slots=True)
class _Suspicion:
    """Growth that is looked into."""

    series: Series
    phase: str
    level: int
    is_by_blocks: bool
    since: Floor
    begun: tuple[int, int]
    """What stayed after steps, and the peak, when it began."""
    evidence: Evidence | None
    held: Held | None = None
    """Who held what, a floor before growth is established."""
    is_swept: bool = False
    """Cycles of objects that only wait to be collected have been."""
    confirmed_at: int | None = None
    """The step of the phase at which growth that is established is looked at a last time."""


@dataclass(slots=True)
class _Past:
    """What is remembered of a series whose growth was looked into."""

    rest_until: int = 0
    """The step of the phase before which slow or uneven growth is not looked into again."""
    rest_steps: int = _REST_STEPS
    rests_blocks: bool = False
    """Whether growth in blocks rests too, not only growth by bytes alone, which lengths may look like."""
    blocks_per_step: float = 0.0
    """The growth that was not worth a finding: only faster growth is looked into meanwhile."""
    least_level: int = 0
    """Growth that ended is next judged over longer spans: a list that is cleared now and then."""
    standing: tuple[int, int, bool] | None = None
    """A leak that goes on: its place among the findings, its level, and whether it shows in blocks."""


class Judge:
    """Decides what the floors of all phases say."""

    def __init__(self, least_bytes: int, tell: Callable[[Finding], Any], *, searches_holders: bool) -> None:
        self.findings: list[Finding] = []
        self.device = 0
        self._least = least_bytes
        self._tell = tell
        self._searches_holders = searches_holders
        self._suspicion: _Suspicion | None = None
        self._past: dict[int, _Past] = {}
        self._begun: Levels | None = None
        self._settled: tuple[int, Levels] | None = None
        self._higher = 0

    def begin(self, levels: Levels) -> None:
        """Note what there is before the first step."""
        self._begun = levels

    @property
    def suspects(self) -> bool:
        """Whether growth is being looked into."""
        return self._suspicion is not None

    def end(self) -> None:
        """Stop gathering evidence."""
        if self._suspicion is not None and self._suspicion.evidence is not None:
            self._suspicion.evidence.end()
        self._suspicion = None

    def look(self, series: Series, step: int) -> None:
        """Give evidence that is gathered about a series its chance to look, after a step."""
        suspicion = self._suspicion
        if suspicion is None or suspicion.series is not series:
            return
        if suspicion.evidence is not None:
            suspicion.evidence.look(series.steps)
        if suspicion.confirmed_at is not None and series.steps >= suspicion.confirmed_at:
            suspicion.confirmed_at = None
            self._conclude(suspicion, self._past[id(series)], step)

    def judge(self, series: Series, phase: str, step: int, levels: Levels, *, is_alone: bool) -> None:
        """Complete a floor of a series and say what follows."""
        closed = series.close(step)
        past = self._past.setdefault(id(series), _Past())
        if past.standing is not None:
            self._follow(series, past, step, closed)
        elif self._suspicion is None:
            self._suspect(series, past, phase, closed, levels, is_alone=is_alone)
        elif self._suspicion.series is series and closed > self._suspicion.level:
            self._decide(self._suspicion, past, step, levels)
        self._settle(series, phase, step, levels)

    def _suspect(self, series: Series, past: _Past, phase: str, closed: int, levels: Levels, *, is_alone: bool) -> None:
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
            evidence = Evidence(self.device, stride) if level < _RECORDED_LEVELS else None
            self._suspicion = _Suspicion(
                series, phase, level, is_by_blocks, since, (last.bytes, levels.peak_bytes), evidence
            )
            if evidence is not None:
                evidence.begin(series.steps)
            return

    def _decide(self, suspicion: _Suspicion, past: _Past, step: int, levels: Levels) -> None:
        """Dismiss a suspicion, establish it, or wait."""
        series, level, evidence = suspicion.series, suspicion.level, suspicion.evidence
        rises, is_by_blocks = series.growth(level, _ESTABLISHED)
        if rises < _SUSPECTED:
            self._dismiss(suspicion, past, step)
            return
        if rises >= _ESTABLISHED - 1 and not suspicion.is_swept:
            suspicion.is_swept = True
            if gc.isenabled():  # Python would, some time
                gc.collect()
            if self._searches_holders:
                suspicion.held = held_now(self.device)
            return  # what has gone by that is seen a floor later
        if rises < _ESTABLISHED or (evidence is not None and not evidence.is_complete):
            return
        if is_by_blocks and series.is_slowing(level, rises):
            return
        if not series.is_new(level, rises, by_blocks=is_by_blocks):
            return
        stayed, peak = suspicion.begun
        more = series.floors[level][-1].bytes - stayed
        if series.rises_in_blocks(level) < _SUSPECTED and levels.peak_bytes - peak >= _OF_A_BATCH * more:
            self._dismiss(suspicion, past, step)
            self._say_once(Kind.LONGER_BATCH, suspicion.phase, step, suspicion.since.step, levels.peak_bytes - peak)
        elif rises == _ESTABLISHED and not level:
            suspicion.confirmed_at = series.steps + _CONFIRMED_STEPS
        else:
            self._conclude(suspicion, past, step)

    def _conclude(self, suspicion: _Suspicion, past: _Past, step: int) -> None:
        """Say that it is a leak, if it goes on and is as large as one has to be."""
        series, level, evidence = suspicion.series, suspicion.level, suspicion.evidence
        rises, is_by_blocks = series.growth(level, _ESTABLISHED)
        if not series.goes_on(level, by_blocks=is_by_blocks):
            return
        first, last = series.floors[level][-rises - 1], series.floors[level][-1]
        steps = max(1, last.phase_steps - first.phase_steps)
        by_floors = max(last.bytes - first.bytes, UNIT_BYTES * (last.blocks - first.blocks)) // steps
        lines = evidence.lines(by_blocks=is_by_blocks) if evidence is not None else ()
        if evidence is not None and evidence.is_possible and not lines and rises < _WITHOUT_LINE:
            return  # more looks may show one
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
        self.end()
        holder = None
        if suspicion.held is not None:
            holder = holder_of_growth(suspicion.held, held_now(self.device), by_blocks=suspicion.is_by_blocks)
        self._add(
            Finding(
                kind=Kind.LEAK,
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
        """Stop looking into a suspicion, and rest the longer, the more often this has happened."""
        series = suspicion.series
        evidence = suspicion.evidence
        last = series.floors[suspicion.level][-1]
        lines = evidence.lines(by_blocks=suspicion.is_by_blocks) if evidence is not None else ()
        grown = last.bytes - suspicion.since.bytes
        self.end()
        past.rest_until = series.steps + past.rest_steps
        past.rests_blocks = suspicion.is_by_blocks
        past.rest_steps = min(2 * past.rest_steps, _LONGEST_REST)
        if lines and suspicion.is_by_blocks and grown >= MIB and lines[0][1] >= self._least:
            self._add(
                Finding(
                    kind=Kind.GROWTH_ENDED,
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
        """See whether a leak goes on."""
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
            kind=Kind.GROWTH_ENDED,
            step=step,
            until_step=step,
            total_bytes=max(found.total_bytes, found.bytes_per_step * (step - found.since_step)),
        )
        self.findings[place] = ended
        self._tell(ended)

    def _settle(self, series: Series, phase: str, step: int, levels: Levels) -> None:
        """Tell what rose once, and what rose in the peak or in what is reserved alone."""
        floors = list(series.floors[0])
        is_growing = self._suspicion is not None or any(past.standing for past in self._past.values())
        if is_growing or len(floors) < _SETTLED_FLOORS or series.rises_in_blocks(0):
            return
        if self._settled is None:
            if self._begun is not None and not self.findings:  # else the rise has been told already
                self._say_rise(phase, step, 1, floors[-1].bytes - self._begun.bytes)
            self._settled = (step, levels)
            return
        if len(floors) > _SETTLED_FLOORS:
            before, after = floors[-4:-2], floors[-2:]
            if before[0].blocks == before[1].blocks < after[0].blocks == after[1].blocks:
                self._say_rise(phase, step, before[1].step, after[1].bytes - before[1].bytes)
                self._settled, self._higher = (step, levels), 0
        self._judge_peak(phase, step, levels, rise=floors[-1].bytes - floors[0].bytes)

    def _judge_peak(self, phase: str, step: int, levels: Levels, *, rise: int) -> None:
        assert self._settled is not None
        since, settled = self._settled
        peak = levels.peak_bytes - settled.peak_bytes
        reserved = levels.reserved_bytes - settled.reserved_bytes
        if peak < 0 or reserved < 0:  # the user has reset the counters, or emptied the cache
            self._settled = (step, levels)
            return
        unused = levels.reserved_bytes - levels.peak_bytes
        if reserved >= _LEAST_UNUSED and reserved >= 2 * peak and _UNUSED * unused >= levels.reserved_bytes:
            self._say_once(Kind.FRAGMENTATION, phase, step, since, reserved)
        if peak >= MIB and peak * _SHARE >= settled.peak_bytes and 2 * rise < peak:
            self._higher += 1
            if self._higher >= _SETTLED_FLOORS:  # by then floors show whether something has come to stay
                self._say_once(Kind.LONGER_BATCH, phase, step, since, peak)

    def _say_rise(self, phase: str, step: int, since: int, total: int) -> None:
        if total >= MIB:
            self._add(Finding(kind=Kind.WARM_UP, phase=phase, step=step, since_step=since, total_bytes=total))

    def _say_once(self, kind: Kind, phase: str, step: int, since: int, total: int) -> None:
        """Log what varies the first time; later its figures are brought up to date in silence."""
        for place, found in enumerate(self.findings):
            if found.kind is kind:
                self.findings[place] = replace(found, total_bytes=max(total, found.total_bytes))
                return
        self._add(Finding(kind=kind, phase=phase, step=step, since_step=since, total_bytes=total))

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)
        self._tell(finding)
