"""The summary that `ullage run` prints after the user's command has ended."""

from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.running.run_files.facts import Arming
from ullage.running.run_files.folder import RunFolder, RunProcess, headroom_bytes
from ullage.running.run_files.live import Sample
from ullage.training.monitor.finding import ENOUGH_STEPS


def summary_of(run: RunFolder) -> list[str]:
    """Return the lines of the summary. With several ranks, they describe the rank that used the most memory."""
    if not run.processes:
        return ["no process of the run has used a CUDA device"]
    fullest = max(run.processes, key=lambda process: process.peak_bytes)
    return [*differences_of(run), *_lines_of(fullest, is_named=len(run.processes) > 1)]


def differences_of(run: RunFolder) -> list[str]:
    """Return sentences about the memory differences between ranks. Empty if there is only one rank."""
    ranks = [process for process in run.processes if process.facts.rank is not None]
    if len(ranks) < 2:
        return []
    low, high = (choose(ranks, key=lambda process: process.peak_bytes) for choose in (min, max))
    more = high.peak_bytes - low.peak_bytes
    if not high.peak_bytes or more <= _ALIKE * high.peak_bytes:
        return [f"all {len(ranks)} ranks use about the same memory: {text_of_bytes(high.peak_bytes)} at the peak"]
    return [
        f"{high.name} uses the most memory: {text_of_bytes(high.peak_bytes)} at the peak, {text_of_bytes(more)} "
        "more than "
        f"{low.name}{_why(high, low)}"
    ]


_ALIKE = 0.01


def _why(high: RunProcess, low: RunProcess) -> str:
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
        return f": {text_of_bytes(at_rest)} more stay allocated after its steps"
    steps = [peak.step for peak in high.facts.peaks if peak.bytes == high.peak_bytes]
    return f": its steps need more memory temporarily, as with a longer batch (step {steps[0]})" if steps else ""


def _at_rest(process: RunProcess) -> int:
    return min((sample.allocated_bytes for sample in process.live.overview if sample.step > 1), default=0)


def _lines_of(process: RunProcess, *, is_named: bool) -> Iterator[str]:
    facts = process.facts
    who = f"{process.name}: " if is_named else ""
    peak = max(facts.peaks, key=lambda one: one.bytes, default=None)
    if peak is None:
        yield f"{who}no GPU memory was allocated"
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
        return  # the process ended before its first sample
    reserved = max(sample.reserved_bytes for sample in samples)
    if card is not None:
        room = max(0, headroom_bytes(card, last, reserved))
        yield (
            f"headroom {text_of_bytes(room)}: at most {text_of_bytes(reserved)} reserved, plus CUDA contexts and "
            "other processes"
        )
    waste = max(0, last.reserved_bytes - last.allocated_bytes)
    yield (
        f"ran out of memory: {_times(last.ooms)}; emptied the cache and retried: {_times(last.retries)}; at the end "
        f"{text_of_bytes(waste)} cached, of which {text_of_bytes(last.split_bytes)} in segments that are partly in use"
    )
    yield from facts.growth or (_no_growth(facts.steps, process.told_steps),)
    if damaged := process.live.damaged:
        yield f"{damaged:,} of its samples are damaged and were left out: the peak may be among them"
    yield _cost(process, peak.device)


def _no_growth(steps: int, told_steps: int) -> str:
    if not steps:
        return "memory growth is unknown: no optimizer has stepped"
    if told_steps < steps:  # the process was killed, or has not written its facts yet
        looked = f"it was last checked after step {told_steps:,}" if told_steps else "it was never checked"
        return f"memory growth is unknown: {looked}"
    if steps < ENOUGH_STEPS:
        return f"memory growth is unknown: {steps} steps are too few, about {ENOUGH_STEPS} are enough"
    return "memory does not grow from step to step"


def _cost(process: RunProcess, device: int) -> str:
    arming = process.facts.arming
    if arming is None:
        return "memory history was not recorded"
    state = f"memory history is {'on' if arming.is_on else 'off'} ({arming.why})"
    # If history is always on, no steps without it can be compared; the recorder then measures the cost
    # itself.
    ratio = arming.cost if arming.why == _ALWAYS else measured_cost(process.live.recent, arming, device)
    return state + (f"; steps take about {ratio:.2f} times as long with it" if ratio is not None and ratio >= 1 else "")


def measured_cost(samples: Sequence[Sample], arming: Arming, device: int) -> float | None:
    """Return the ratio of a step's time with memory history to its time without. None if it is unknown.

    The steps before and after the latest switch are compared. At least ten steps are needed on each side.

    Args:
        samples: the latest memory samples of a process, oldest first.
        arming: the state of memory history since the latest switch.
        device: the device whose samples are used.
    """
    ends: dict[int, float] = {}
    for sample in samples:
        if sample.device == device:
            ends.setdefault(
                sample.step, sample.time
            )  # later samples with the same number were taken during the next step
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
    tenths = quantiles(seconds, n=10, method="inclusive")
    return tenths[-1] - tenths[0]


_ALWAYS: Final = "--history always"
_LEAST_COMPARED: Final = 10
_MOST_COMPARED: Final = 20


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count:,} times")
