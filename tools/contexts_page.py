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
"""An interval narrower than this is of use: it decides few verdicts."""


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
    return f"Measured by this project: {', '.join(own)}." if own else "No reading was taken by this project."


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
        f"{len(found)} readings. Left out by what the text says: {said}.",
        f"Of a chip's readings, those above {OTHER:g} times the median are left out too: of processes that held "
        "something else besides, such as NCCL's buffers, which PyTorch's texts do not tell apart. A process that "
        "does so takes more than these tables say.",
        f"Low and high are the {100 * LOW:.0f}th and the {100 * HIGH:.0f}th percentile, so one reading in five is "
        f"outside; of fewer than {MANY} readings they are the least and the most, each with its rounding. Rounding "
        "(+-10 MiB, mostly) is part of the spread. Expected is the median, or what was measured after training "
        "steps where somebody did.",
        "Where a text does not name its card, its total does, where the table of cards has no reading of that total "
        "for another chip. The readings of an H100 may so include some of its PCIe card, of whose total no reading "
        "was found.",
        "Of the moment a text says little: kernels were loaded by then, as memory ran out in one. Texts whose "
        "traceback was loading weights are left out.",
    ]
    return [
        "# CUDA contexts",
        _wrapped(
            "What a process holds on a card outside PyTorch's allocator, in MiB, from readings that others "
            "published: above all the texts of running out of memory, which since torch 2.1 say what the process "
            f"held, what its tensors held and what its allocator kept besides. {_measured(found)} "
            "The facts are in `benchmarks/contexts/readings.jsonl`; `make contexts` writes the profiles and this "
            "page from them."
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
        _table("| cards of this chip | readings | left out | low | expected | high |", *map(_own_row, own)),
        _wrapped(
            f"So {len(narrow)} cards of the table have an interval under {GOAL_MIB} MiB from readings of their chip. "
            f"{len(read)} of them were read themselves; those in italics have the same number of SMs of the same "
            "architecture."
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
        "## The rule for the other cards",
        _wrapped(
            f"Context = {rule.base_mib:.1f} MiB + {rule.mib_by_1024_threads:.3f} MiB for each 1,024 threads that the "
            f"chip holds at once (SMs times threads of an SM), give or take {rule.around_mib:.0f} MiB: a line "
            f"through the medians of the chips with {FEWEST_FOR_THE_RULE} readings or more, and an interval that "
            f"covers {100 * COVERED:.0f} % of their readings, each chip counted alike, about lines that are fitted "
            "without the chip. The last two columns are of a rule made without the chip of that row, interval and "
            "all."
        ),
        _table("| chip of | threads | readings | median | rule | rule without it | inside |", *rows),
        _wrapped(
            f"Left out one by one, {inside} of {tried} readings ({100 * inside / tried:.0f} %) are inside the "
            f"interval that the other chips make. It is {2 * rule.around_mib:.0f} MiB wide, where less than "
            f"{GOAL_MIB} is the goal."
        ),
        _wrapped(
            f"So have {sum(_follows_the_rule(card, known) for card in all_gpus())} more whole cards of the table, "
            "which were not read, or too seldom."
        ),
        _wrapped(
            "A slice of a card (MIG) follows the rule with its own number of SMs, of which no reading was found. A "
            "card that is given by its size has only an assumption (`profiles/assumed.toml`), as has one whose "
            "number of SMs is assumed."
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
            "Readings of a total that several chips have made neither profile nor rule. Here they are beside the "
            "rule; processes that held something else besides are among them."
        ),
        _table("| cards | readings | median | by the rule, of any of them | inside |", *rows),
    ]


def _sources(found: list[Reading]) -> list[str]:
    links = sorted({reading.source for reading in found if reading.source.startswith("http")})
    files = {reading.source for reading in found if reading.source.startswith("file ")}
    others = sorted({reading.source for reading in found} - set(links) - files)
    return [
        "## Sources",
        _wrapped(
            f"{len(files)} files of public repositories, found by the words of the error text in November 2026. The "
            "search did not tell where a file stands, so these cannot be looked up again: take them as our word. "
            "Beside them:"
        ),
        "\n".join([*[f"* {other}" for other in others], *[f"* <{link}>" for link in links]]),
    ]
