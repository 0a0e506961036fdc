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
    return f"Measured by this project: {', '.join(own)}." if own else "This project took none of the readings itself."


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
        f"The data contains {len(found)} readings. Some readings are left out because of the text that was published "
        f"with them. The numbers of these readings, with the reasons, are: {said}.",
        f"Readings above {OTHER:g} times the median of their chip are left out. The processes of these readings held "
        "other memory in addition to the CUDA context, such as NCCL's buffers. PyTorch's error messages do not show "
        "that memory separately. A process that uses NCCL takes more memory than the tables on this page show.",
        f'In the tables of readings, "low" and "high" are the {100 * LOW:.0f}th and the {100 * HIGH:.0f}th percentile '
        f"of the readings, so one reading in five is outside this range. For chips with fewer than {MANY} readings, "
        '"low" and "high" are the lowest and the highest reading, extended by the rounding of the reading (mostly +-10 '
        'MiB). The column "expected" shows the median of the readings. If somebody measured the context after '
        "training steps, the column shows that measurement instead.",
        "If the text of a reading does not name the GPU, the total memory identifies the GPU. If ullage's table of "
        "GPUs has the same total for another chip, the reading is not used. The readings of the H100 may include "
        "some readings of the H100 PCIe, because no reading shows the total memory of the H100 PCIe.",
        "The text of a reading rarely says at which time in the run it was taken. When a process ran out of memory, "
        "it had already run kernels. Error messages whose traceback shows that weights were being loaded are left "
        "out.",
    ]
    return [
        "# CUDA contexts",
        _wrapped(
            "This page lists how much GPU memory a process takes outside PyTorch's allocator, in MiB: mainly the "
            "CUDA context. The context sizes come from published readings, most of them from out-of-memory messages. "
            "Since torch 2.1, PyTorch's out-of-memory messages show the memory of the process, the memory of its "
            f"tensors, and the memory that its allocator caches. {_measured(found)} The readings are in "
            "`benchmarks/contexts/readings.jsonl`; `make contexts` generates the GPU profiles and this page from "
            "these readings."
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
            f"The rule is: CUDA context = {rule.base_mib:.1f} MiB + {rule.mib_by_1024_threads:.3f} MiB for each 1,024 "
            f"threads that can be resident on the chip (SMs times threads per SM), +- {rule.around_mib:.0f} MiB. The "
            f"rule is a line that was fitted to the median readings of all chips with {FEWEST_FOR_THE_RULE} readings "
            "or more. To find the width of the range, each chip was compared with a line that was fitted without "
            f"this chip. The range contains {100 * COVERED:.0f} % of the readings; each chip has the same weight. The "
            "last two columns of the following table compare each chip with a rule that was fitted without this chip."
        ),
        _table("| chip of | threads | readings | median | rule | rule without this chip | readings inside |", *rows),
        _wrapped(
            "For each chip in turn, the rule was fitted without this chip. Of the readings of these chips, "
            f"{inside} of {tried} ({100 * inside / tried:.0f} %) are inside the range of the rule. The "
            f"range of the rule is {2 * rule.around_mib:.0f} MiB wide; the goal is less than {GOAL_MIB} MiB."
        ),
        _wrapped(
            f"For {sum(_follows_the_rule(card, known) for card in all_gpus())} other whole GPUs of ullage's table, "
            "readings are missing or too few. For these GPUs, the rule for CUDA contexts gives a range of this width."
        ),
        _wrapped(
            "For a partition of a GPU (MIG), the rule uses the number of SMs of the partition; no reading of a "
            "partition was found. If a GPU is given only by its memory size, or if its number of SMs is assumed, "
            "ullage has only an assumption about the CUDA context (`profiles/assumed.toml`)."
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
            "If several chips have the same total memory, readings with this total were used neither for a GPU "
            "profile nor for the rule. The following table compares readings with an ambiguous total memory with the "
            "rule. These ambiguous readings include processes that held other memory in addition to the CUDA "
            "context."
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
            "for the text of the error message. The search did not report where a file is located, so nobody can "
            "look up these readings again. You have to trust us. The other sources are:"
        ),
        "\n".join([*[f"* {other}" for other in others], *[f"* <{link}>" for link in links]]),
    ]
