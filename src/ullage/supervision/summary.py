"""What a run tells at its end, in a few lines."""

from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Final

from ullage._units import text_of_bytes
from ullage.monitor.finding import ENOUGH_STEPS
from ullage.recording.facts import Arming
from ullage.recording.folder import Process, RunFolder
from ullage.recording.headroom import headroom_bytes
from ullage.recording.live import Sample


def summary_of(run: RunFolder) -> list[str]:
    """Return the lines on a run: on its only process, or on the fullest of its ranks after what tells ranks apart."""
    if not run.processes:
        return ["no process of the run has used a CUDA device"]
    fullest = max(run.processes, key=lambda process: process.peak_bytes)
    return [*differences_of(run), *_lines_of(fullest, is_named=len(run.processes) > 1)]


def differences_of(run: RunFolder) -> list[str]:
    """Return what tells the ranks of a run apart, and why, in sentences; nothing where they are alike."""
    ranks = [process for process in run.processes if process.facts.rank is not None]
    if len(ranks) < 2:
        return []
    low, high = (choose(ranks, key=lambda process: process.peak_bytes) for choose in (min, max))
    more = high.peak_bytes - low.peak_bytes
    if not high.peak_bytes or more <= _ALIKE * high.peak_bytes:
        return [f"all {len(ranks)} ranks are alike: {text_of_bytes(high.peak_bytes)} at the peak"]
    return [
        f"{high.name} is the fullest: {text_of_bytes(high.peak_bytes)} at the peak, {text_of_bytes(more)} more than "
        f"{low.name}{_why(high, low)}"
    ]


_ALIKE = 0.01


def _why(high: Process, low: Process) -> str:
    more = high.peak_bytes - low.peak_bytes
    if high.facts.growth and not low.facts.growth:
        return f": {high.facts.growth[0]}"
    roles = {
        name: size - low.facts.roles.get(name, 0)
        for name, size in high.facts.roles.items()
        if size - low.facts.roles.get(name, 0) > _ALIKE * more
    }
    if sum(roles.values()) >= more // 2:
        return ": " + ", ".join(f"{text_of_bytes(size)} more of {name}" for name, size in roles.items())
    at_rest = _at_rest(high) - _at_rest(low)
    if at_rest >= more // 2:
        return f": {text_of_bytes(at_rest)} more stay after its steps"
    steps = [peak.step for peak in high.facts.peaks if peak.bytes == high.peak_bytes]
    return f": what its steps need for a moment, as of a longer batch (step {steps[0]})" if steps else ""


def _at_rest(process: Process) -> int:
    return min((sample.allocated_bytes for sample in process.live.overview if sample.step > 1), default=0)


def _lines_of(process: Process, *, is_named: bool) -> Iterator[str]:
    facts = process.facts
    who = f"{process.name}: " if is_named else ""
    peak = max(facts.peaks, key=lambda one: one.bytes, default=None)
    if peak is None:
        yield f"{who}nothing was allocated on a card"
        return
    card = next((card for card in facts.cards if card.index == peak.device), None)
    samples = [sample for sample in process.live.overview if sample.device == peak.device]
    last = next((sample for sample in reversed(process.live.recent) if sample.device == peak.device), None)
    of = f" of {text_of_bytes(card.limit_bytes)}" if card is not None else ""
    words = [f"step {peak.step}" if facts.steps else "", peak.line or ""]
    where = f" ({', '.join(filter(None, words))})" if any(words) else ""
    steps = "1 step" if facts.steps == 1 else f"{facts.steps:,} steps"
    yield f"{who}{steps}; {text_of_bytes(peak.bytes)}{of} allocated at the peak{where}"
    if last is None or not samples:
        return  # it ended before its first sample
    reserved = max(sample.reserved_bytes for sample in samples)
    if card is not None:
        room = max(0, headroom_bytes(card, last, reserved))
        yield f"headroom {text_of_bytes(room)}: up to {text_of_bytes(reserved)} reserved, beside contexts and others"
    waste = last.reserved_bytes - last.allocated_bytes
    yield (
        f"out of memory: {_times(last.ooms)}; cache given back to go on: {_times(last.retries)}; at the end "
        f"{text_of_bytes(waste)} cached, of which {text_of_bytes(last.split_bytes)} beside live blocks"
    )
    yield from facts.growth or (_no_growth(facts.steps),)
    yield _cost(process, peak.device)


def _no_growth(steps: int) -> str:
    if not steps:
        return "whether memory grows is not known: no optimizer has stepped"
    if steps < ENOUGH_STEPS:
        return f"whether memory grows is not known: {steps} steps are too few to tell, about {ENOUGH_STEPS} are enough"
    return "nothing grows from step to step"


def _cost(process: Process, device: int) -> str:
    arming = process.facts.arming
    if arming is None:
        return "no history was recorded"
    state = f"history is {'on' if arming.is_on else 'off'} ({arming.why})"
    # One that is always on has no steps without it to be compared with: the recorder measures it otherwise.
    ratio = arming.cost if arming.why == _ALWAYS else cost_told(process.live.recent, arming, device)
    return state + (f"; steps take about {ratio:.2f} times as long with it" if ratio is not None and ratio >= 1 else "")


def cost_told(samples: Sequence[Sample], arming: Arming, device: int) -> float | None:
    """Return how many times as long steps take with history, where that can be told, else None.

    The steps on either side of the latest change are compared. It is told where there are ten on each side, and their
    medians are further apart than the steps of both sides vary: steps that become longer by themselves vary as much.

    Args:
        samples: the latest of a process, oldest first.
        arming: when the change was, and to what.
        device: whose samples count.
    """
    ends: dict[int, float] = {}
    for sample in samples:
        if sample.device == device:
            ends.setdefault(sample.step, sample.time)  # a later one of the same number is within the next step
    lasted = {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}
    before = [seconds for step, seconds in lasted.items() if step <= arming.since_step][-_MOST_COMPARED:]
    after = [seconds for step, seconds in lasted.items() if step > arming.since_step][:_MOST_COMPARED]
    if min(len(before), len(after)) < _LEAST_COMPARED:
        return None
    if abs(median(after) - median(before)) <= _spread(before) + _spread(after) or min(before + after) <= 0:
        return None
    ratio = median(after) / median(before)
    return ratio if arming.is_on else 1 / ratio


def _spread(seconds: Sequence[float]) -> float:
    """How far apart steps are, the longest tenth and the shortest left aside."""
    tenths = quantiles(seconds, n=10, method="inclusive")
    return tenths[-1] - tenths[0]


_ALWAYS: Final = "--history always"
_LEAST_COMPARED: Final = 10
_MOST_COMPARED: Final = 20


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count:,} times")
