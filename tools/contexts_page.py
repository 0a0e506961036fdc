"""docs/contexts.md: the intervals of CUDA contexts, the rule, how well it does, and where the readings come from."""

import statistics
import textwrap
from collections import Counter, defaultdict

from contexts import (
    COVERED,
    FEWEST,
    FEWEST_FOR_THE_RULE,
    HIGH,
    LOW,
    MANY,
    OTHER,
    Population,
    Reading,
    Rule,
    chip_of,
    is_known,
    rule_of,
    threads_of,
    without,
)

from ullage.gpu.gpus import Gpu, all_gpus

GOAL_MIB = 150
"""The width in MiB below which a range makes few verdicts uncertain."""


def page(found: list[Reading], known: list[Population]) -> str:
    """Write the document, as Markdown."""
    parts = [
        *_beginning(found),
        *_own(known),
        *_rule(known),
        *_of_several_chips(found, rule_of(known)),
        *_sources(found),
    ]
    return "\n\n".join(parts) + "\n"


def _measured(found: list[Reading]) -> str:
    """Say which readings the project has measured itself."""
    own = [reading.source for reading in found if reading.source.startswith("make gpu")]
    return (
        f"Measured by this project: {', '.join(own)}."
        if own
        else "Other people measured all context sizes on this page."
    )


def _wrapped(text: str) -> str:
    """Break a paragraph into lines; a list's items are indented."""
    rest = "  " if text.startswith("* ") else ""
    return textwrap.fill(text, 120, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


def _table(*rows: str) -> str:
    return "\n".join(
        [rows[0], "|".join("---" for _ in rows[0].split("|")).removeprefix("---").removesuffix("---"), *rows[1:]]
    )


def _beginning(found: list[Reading]) -> list[str]:
    reasons = Counter(reading.left_out for reading in found if reading.left_out)
    said = ", ".join(f"{count} ({reason})" for reason, count in sorted(reasons.items()))
    items = [
        f"The data contains {len(found)} readings of CUDA contexts. A reading is not used if the text around it shows "
        f"that it is unreliable. The number of unused readings for each reason is: {said}.",
        f"Readings above {OTHER:g} times the median of their GPU chip are left out, because they include other "
        "memory, for example NCCL's buffers. PyTorch's error messages do not show separately how much memory NCCL "
        "uses. A process that uses NCCL takes more memory than the tables on this page show.",
        f'In the tables of readings, "low" and "high" are the {100 * LOW:.0f}th and the {100 * HIGH:.0f}th percentile '
        "of a GPU chip's context sizes, so one size in five is outside this range. For GPU chips with fewer than "
        f'{MANY} published context sizes, "low" and "high" are the lowest and the highest size. The error messages '
        'round their figures, so "low" is reduced and "high" is raised by the possible rounding error (mostly 10 '
        'MiB). The column "expected" shows the median of the readings. If somebody measured the context after '
        "training steps, the column shows that measurement instead.",
        "If an error message does not name the GPU, the total memory in the message identifies the GPU. If two GPU "
        "chips have the same total memory, an error message without the GPU's name is not used. The total memory of "
        "an H100 PCIe is not known. Some error messages that count for the H100 may therefore come from an H100 PCIe.",
        "If the traceback shows that a process was still loading weights, the context size is left out, because the "
        "process had not run kernels yet. All context sizes on this page come from processes that had already run "
        "kernels.",
    ]
    return [
        "# CUDA contexts",
        _wrapped(
            "This page lists how much GPU memory a process takes outside PyTorch's allocator, in MiB: mainly the CUDA "
            "context. The context sizes come from published readings. A reading is one published figure of a process "
            "on a real GPU, mostly from an out-of-memory message. Since torch 2.1, PyTorch's out-of-memory messages "
            "show the memory of the process, the memory of its tensors, and the memory that its allocator caches. "
            f"{_measured(found)} The readings are in `benchmarks/contexts/readings.jsonl`; `make contexts` generates "
            "the GPU profiles and this page from these readings."
        ),
        "\n".join(_wrapped(f"* {item}") for item in items),
    ]


def _own(known: list[Population]) -> list[str]:
    own = [population for population in known if len(population.kept) >= FEWEST]
    narrow = [
        card
        for population in own
        for low, _, high in [population.interval_mib()]
        for card in population.cards
        if high - low < GOAL_MIB
    ]
    read = [card for card in narrow if any(card in population.cards_read for population in own)]
    return [
        f"## Chips with {FEWEST} readings or more",
        _table("| GPUs with this chip | readings | left out | low | expected | high |", *map(_own_row, own)),
        _wrapped(
            f"{len(narrow)} GPUs of ullage's table have a range that is narrower than {GOAL_MIB} MiB and comes "
            f"from readings of their chip. {len(read)} of these GPUs have readings themselves; the GPUs in italics "
            "have the same architecture and the same number of SMs as a GPU with readings."
        ),
    ]


def _own_row(population: Population) -> str:
    names = ", ".join(
        card.short_name if card in population.cards_read else f"*{card.short_name}*" for card in population.cards
    )
    low, expected, high = population.interval_mib()
    more = len(population.readings) - len(population.kept)
    return f"| {names} | {len(population.kept)} | {more} | {low} | {expected} | {high} |"


def _rule(known: list[Population]) -> list[str]:
    rule, inside, rows = rule_of(known), 0, []
    for population in known:
        others = without(known, population)
        inside += others.covers(population)
        rows.append(
            f"| {population.cards_read[0].short_name} | {population.threads} | {len(population.kept)} | "
            f"{population.median_mib:.0f} | {rule.expected_mib(population.threads):.0f} | "
            f"{others.expected_mib(population.threads):.0f} | {others.covers(population)} |"
        )
    tried = sum(len(population.kept) for population in known)
    return [
        "## The rule for other GPUs",
        _wrapped(
            f"The rule is this formula: CUDA context = {rule.base_mib:.1f} MiB + {rule.mib_by_1024_threads:.3f} MiB "
            "for each 1,024 threads that can be resident on the chip (SMs times threads per SM), +- "
            f"{rule.around_mib:.0f} MiB. To get the formula for CUDA contexts, a line was fitted to the median "
            f"context sizes of all GPU chips with at least {FEWEST_FOR_THE_RULE} published context sizes. To test the "
            "formula, each GPU chip in turn was left out of the fit. The published context sizes of the left-out chip "
            "were then compared with a line that was fitted to all other chips. The range of +- "
            f"{rule.around_mib:.0f} MiB is so wide that it contains {100 * COVERED:.0f} % of the published context "
            f"sizes of left-out chips. In the {100 * COVERED:.0f} %, each GPU chip has the same weight, however many "
            "of its context sizes were published."
        ),
        _table("| chip of | threads | readings | median | rule | rule without this chip | readings inside |", *rows),
        _wrapped(
            "The last two columns of the table show the test in which each GPU chip is left out of the fit. For "
            f"left-out chips, {inside} of {tried} published context sizes ({100 * inside / tried:.0f} %) are inside "
            f"the range that the formula predicts. The formula's range is {2 * rule.around_mib:.0f} MiB wide; the "
            f"goal of ullage is a range narrower than {GOAL_MIB} MiB."
        ),
        _wrapped(
            f"ullage knows {sum(_follows_the_rule(card, known) for card in all_gpus())} GPU models with fewer than "
            f"{FEWEST} published context sizes. If too few sizes were published for a GPU, ullage computes the size "
            "of its CUDA context from the number of threads that can be resident on the chip."
        ),
        _wrapped(
            "For a partition of a GPU (MIG), ullage computes the size of the CUDA context from the SMs of the "
            "partition. No published context size of a GPU partition (MIG) was found. If a GPU is given "
            "only by its memory size, or if its number of SMs is assumed, ullage has only an assumption about the "
            "CUDA context (`profiles/assumed.toml`)."
        ),
    ]


def _follows_the_rule(card: Gpu, known: list[Population]) -> bool:
    own = {population.chip for population in known if len(population.kept) >= FEWEST}
    return is_known(card) and chip_of(card) not in own


def _of_several_chips(found: list[Reading], rule: Rule) -> list[str]:
    groups: dict[tuple[Gpu, ...], list[Reading]] = defaultdict(list)
    for reading in found:
        if len(reading.chips) > 1 and reading.left_out is None:
            groups[reading.cards].append(reading)
    rows = []
    for cards, group in groups.items():
        ends = [rule.expected_mib(threads_of(card)) for card in cards]
        low, high = min(ends) - rule.around_mib, max(ends) + rule.around_mib
        inside = sum(low - reading.doubt_mib <= reading.mib <= high + reading.doubt_mib for reading in group)
        names = ", ".join(card.short_name for card in cards)
        middle = statistics.median(reading.mib for reading in group)
        rows.append(f"| {names} | {len(group)} | {middle:.0f} | {low:.0f} to {high:.0f} | {inside} |")
    return [
        _wrapped(
            "Some error messages do not name the GPU, and show a total memory that several GPU chips have. Context "
            "sizes from ambiguous error messages were used neither to fit the formula nor as the context size of a "
            "GPU. The following table compares the context sizes from ambiguous error messages with those that the "
            "formula predicts. Some of the ambiguous error messages come from processes that held other memory in "
            "addition to the CUDA context."
        ),
        _table("| GPUs | readings | median | range of the rule over these GPUs | readings inside |", *rows),
    ]


def _sources(found: list[Reading]) -> list[str]:
    links = sorted({reading.source for reading in found if reading.source.startswith("http")})
    files = {reading.source for reading in found if reading.source.startswith("file ")}
    others = sorted({reading.source for reading in found} - set(links) - files)
    return [
        "## Sources",
        _wrapped(
            f"Most readings come from {len(files)} files of public repositories, found in November 2026 by a search "
            "for the text of PyTorch's out-of-memory message. The search returned the contents of the public files, "
            f"but not their addresses. Nobody can therefore look up the context sizes from the {len(files)} public "
            "files again. You have to trust us. The other sources are:"
        ),
        "\n".join([*[f"* {other}" for other in others], *[f"* <{link}>" for link in links]]),
    ]
