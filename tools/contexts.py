"""Published readings of CUDA contexts, put together by chip, and the rule that they make for other chips.

`benchmarks/contexts/readings.jsonl` holds the facts, one reading a line. An error text of torch 2.1 or later tells what
the process held on the card, what its tensors held, and what its allocator kept besides; the rest is the context with
everything else outside the allocator. PyTorch writes hundredths of a unit, so a reading is an interval (of +-10 MiB,
where two of the figures are in GiB).

A chip is an architecture and a number of SMs, which the table of cards tells. This module does not know what a process
of a published reading had loaded. The records of `make gpu` (benchmarks/our_gpus/records/) add readings that were
measured after training steps.
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ullage.base.units import GIB, KIB, MIB
from ullage.gpu.gpus import Gpu, all_gpus

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.our_gpus.record import read_record  # noqa: E402  # the root has to be in the path first

READINGS = ROOT / "benchmarks" / "contexts" / "readings.jsonl"
RECORDS = ROOT / "benchmarks" / "our_gpus" / "records"
MEASURED = "context/training"
"""The question of `make gpu` whose answer has the context after training steps."""
FEWEST = 5
"""So many readings of a chip make its own interval; with fewer it follows the rule."""
MANY = 8
"""So many make one of percentiles; with fewer it goes from the least to the most, each with its rounding."""
FEWEST_FOR_THE_RULE = 2
OTHER = 1.5
"""A reading above so many times the chip's median is of a process that held something else besides: left out."""
LOW, HIGH = 0.1, 0.9
COVERED = 0.9
"""The share of readings that the rule's interval covers about the lines without their chip, each chip counted alike."""
SLICE = " MIG "
AFTER_TRAINING = "after training steps"
MOST_GIB = 4
"""No context of a process is larger."""
Chip = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one published text says; sizes in MiB."""

    source: str
    cards: tuple[Gpu, ...]
    """The card that the text names, or every card whose total it is."""
    mib: float
    doubt_mib: float
    """How far rounding may put the reading off, at most."""
    left_out: str | None
    moment: str | None
    """Where the publisher measured the context itself, and said when."""
    times: int

    @property
    def chips(self) -> set[Chip]:
        """The chips that it may be of."""
        return {chip_of(card) for card in self.cards}


@dataclass(frozen=True, slots=True)
class Population:
    """The readings of one chip."""

    chip: Chip
    readings: tuple[Reading, ...]
    """Those that may count."""

    @property
    def kept(self) -> tuple[Reading, ...]:
        """Those of a process that held nothing else, as far as one can tell."""
        most = OTHER * statistics.median(reading.mib for reading in self.readings)
        return tuple(reading for reading in self.readings if reading.mib <= most)

    @property
    def median_mib(self) -> float:
        """The middle of the readings."""
        return statistics.median(reading.mib for reading in self.kept)

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """Every whole card with this chip."""
        return tuple(card for card in all_gpus() if chip_of(card) == self.chip and is_known(card))

    @property
    def cards_read(self) -> tuple[Gpu, ...]:
        """Those that readings are of."""
        read = {card for reading in self.readings for card in reading.cards}
        return tuple(card for card in self.cards if card in read)

    @property
    def threads(self) -> int:
        """How many threads the chip holds at once."""
        return threads_of(self.cards[0])

    def interval_mib(self) -> tuple[int, int, int]:
        """Low, expected, high: percentiles, and what was measured after training where somebody did."""
        published = [reading for reading in self.kept if reading.moment is None]
        sizes = [reading.mib for reading in published]
        if len(published) >= MANY:
            low, high = percentile(sizes, LOW), percentile(sizes, HIGH)
        else:
            low = min(reading.mib - reading.doubt_mib for reading in published or self.kept)
            high = max(reading.mib + reading.doubt_mib for reading in published or self.kept)
        measured = [reading.mib for reading in self.kept for _ in range(reading.times) if reading.moment]
        expected = statistics.median(measured or sizes)
        return math.floor(min(low, expected)), round(expected), math.ceil(max(high, expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A context grows with the threads that the chip holds at once: a straight line, and an interval around it."""

    base_mib: float
    mib_by_1024_threads: float
    around_mib: float

    def expected_mib(self, threads: int) -> float:
        """The line."""
        return line_mib((self.base_mib, self.mib_by_1024_threads), threads)

    def covers(self, population: Population) -> int:
        """Count the readings of a chip that are in the interval, give or take their rounding."""
        expected = self.expected_mib(population.threads)
        return sum(abs(reading.mib - expected) <= self.around_mib + reading.doubt_mib for reading in population.kept)


# ---- reading


def chip_of(card: Gpu) -> Chip:
    """Cards of one architecture with as many SMs are one chip here."""
    return card.architecture, card.sm_count


def is_known(card: Gpu) -> bool:
    """Whether it is a whole card, and its number of SMs was published."""
    return SLICE not in card.name and "sm_count" not in card.assumed


def threads_of(card: Gpu) -> int:
    """How many threads a card holds at once."""
    return card.sm_count * card.max_threads_per_sm


def percentile(values: Iterable[float], share: float) -> float:
    """Interpolate between the two values beside the place."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    return ordered[below] + (place - below) * (ordered[math.ceil(place)] - ordered[below])


def doubt_bytes(n_bytes: int) -> float:
    """Half of the last digit that PyTorch writes of a size: 0.005 of its unit."""
    unit = next((unit for unit in (GIB, MIB, KIB) if n_bytes >= unit), 1)
    return 0.005 * unit if unit > 1 else 0


def readings(records: Path = RECORDS) -> Iterator[Reading]:
    """Read the published facts, and what the project has measured."""
    yield from measured_readings(records)
    by_name = {card.name: card for card in all_gpus()}
    for line in READINGS.read_text(encoding="utf-8").splitlines():
        fact = json.loads(line)
        parts = [fact[name] for name in ("in_use_bytes", "allocated_bytes", "unallocated_bytes") if name in fact]
        yield Reading(
            source=fact["source"],
            cards=tuple(by_name[name] for name in fact["cards"]),
            mib=(parts[0] - parts[1] - parts[2] if parts else fact["context_bytes"]) / MIB,
            doubt_mib=sum(map(doubt_bytes, parts)) / MIB,
            left_out=fact.get("left_out"),
            moment=fact.get("moment"),
            times=fact.get("times", 1),
        )


def measured_readings(records: Path = RECORDS) -> Iterator[Reading]:
    """Read the contexts that `make gpu` has measured after training steps on real GPUs."""
    by_driver_name = {card.driver_name: card for card in all_gpus()}
    for folder in sorted(path for path in records.glob("*") if path.is_dir()):
        record = read_record(folder)
        card = by_driver_name.get(record.gpu["gpu"])
        if record.gpu["emulated"] or card is None or MEASURED not in record.answers:
            continue
        n_bytes = record.answers[MEASURED]["stages"]["training"]["context_bytes"]
        if type(n_bytes) is not int or not 0 < n_bytes < GIB * MOST_GIB:
            raise ValueError(f"{folder}: {MEASURED} has a context of {n_bytes} bytes, which cannot be")
        yield Reading(
            source=f"make gpu, {folder.name}",
            cards=(card,),
            mib=n_bytes / MIB,
            doubt_mib=0.0,
            left_out=None,
            moment=AFTER_TRAINING,
            times=1,
        )


def populations(found: list[Reading]) -> list[Population]:
    """Put readings together by chip; one that may be of several chips counts for none."""
    of_chip: dict[Chip, list[Reading]] = defaultdict(list)
    for reading in found:
        counts = reading.left_out is None and reading.moment in (None, AFTER_TRAINING)
        if counts and len(reading.chips) == 1 and all(map(is_known, reading.cards)):
            of_chip[next(iter(reading.chips))].append(reading)
    order = {chip_of(card): place for place, card in reversed(list(enumerate(all_gpus())))}
    return [Population(chip, tuple(of_chip[chip])) for chip in sorted(of_chip, key=lambda chip: order[chip])]


def rule_of(known: list[Population]) -> Rule:
    """Fit the line to the chips' medians by least squares.

    Its interval covers most readings about the lines that are fitted without their chip: what the rule is for.
    """
    known = [population for population in known if len(population.kept) >= FEWEST_FOR_THE_RULE]
    weighted = sorted(
        (abs(reading.mib - line_mib(_line_of(known, but=population), population.threads)), 1 / len(population.kept))
        for population in known
        for reading in population.kept
    )
    weight, around = 0.0, 0.0
    for residual, one in weighted:
        if weight >= COVERED * len(known):
            break
        weight, around = weight + one, residual
    base, slope = _line_of(known)
    return Rule(base_mib=base, mib_by_1024_threads=slope, around_mib=around)


def line_mib(line: tuple[float, float], threads: int) -> float:
    """What a line, base and MiB for each 1,024 threads, says of a chip."""
    return line[0] + line[1] * threads / 1024


def _line_of(known: list[Population], *, but: Population | None = None) -> tuple[float, float]:
    points = [(population.threads / 1024, population.median_mib) for population in known if population is not but]
    line = statistics.linear_regression(*zip(*points, strict=True))
    return line.intercept, line.slope


def without(known: list[Population], left_out: Population) -> Rule:
    """The rule as the other chips make it."""
    return rule_of([population for population in known if population is not left_out])
