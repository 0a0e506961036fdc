"""docs/our_gpus.md: what the real GPUs answered, next to the emulated ones."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .compare import MOST_SHOWN, UNKNOWN, Compared, Comparison, difference, number, plain
from .figure import Verdict

MOST_RECORDED = 12
"""A question with more figures that are only recorded does not show them: they are in the record."""
HEAD = """# Our GPUs

This page compares measurements of real GPUs, made with `make gpu`, with the emulated GPU. Each measured figure is
*equal* to the emulated figure, *inside the interval* that ullage states, or *different*. Durations, and values that
only the driver decides, are *recorded only*: they are not compared. The measurements of real GPUs are in
`benchmarks/our_gpus/records/`; CONTRIBUTING.md explains how to add your own.
"""
NONE = """
Nobody has measured a real GPU with `make gpu` yet, so this page lists no measurements. The page [Real
GPUs](real_cards.md) compares ullage with measurements that other people have published.
"""


def page(comparisons: Sequence[Comparison]) -> str:
    """Return the page."""
    if not comparisons:
        return HEAD + NONE
    return HEAD + "".join("\n" + "\n".join(_section(comparison)) + "\n" for comparison in comparisons)


def _section(comparison: Comparison) -> Iterator[str]:
    gpu, emulated = comparison.gpu, comparison.emulated
    yield f"## {_cell(gpu['gpu'])}, torch {_cell(gpu['torch'])}"
    yield ""
    if gpu.get("emulated"):
        yield "**This is the record of a dry run on an emulated GPU, not of a real one.**"
        yield ""
    yield _cell(f"{_software(gpu)}. Emulated: {_software(emulated)}.", most=2000)
    yield ""
    yield "| figures | " + " | ".join(verdict.value for verdict in Verdict) + " |"
    yield "|---" * (len(Verdict) + 1) + "|"
    for kind, verdicts in comparison.counts().items():
        yield f"| {kind} | " + " | ".join(str(verdicts[verdict]) for verdict in Verdict) + " |"
    yield ""
    yield "| question | verdict | differences and their cause; what was recorded only |"
    yield "|---|---|---|"
    for question in comparison.questions:
        yield _row(question)


def _software(facts: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(facts["packages"].items()))
    return f"Driver {facts['driver']}, cuDNN {facts['cudnn']}, Python {facts['python']}, {packages}"


def _row(question: Compared) -> str:
    name = _cell(question.name)
    if question.problem:
        return f"| {name} | not compared | {_cell(question.problem)} |"
    said = [
        _cell(f"{difference(figure)}: {(question.causes or {}).get(figure.name, UNKNOWN)}")
        for figure in question.different
    ]
    noted = [figure for figure in question.figures if figure.verdict is Verdict.RECORDED]
    if len(noted) <= MOST_RECORDED:
        said += [_cell(f"{figure.name}: {number(figure.real)}") for figure in noted]
    return f"| {name} | {_verdict(question)} | {'<br>'.join(said)} |"


def _verdict(question: Compared) -> str:
    counted = dict.fromkeys(Verdict, 0)
    for figure in question.figures:
        counted[figure.verdict] += 1
    return ", ".join(f"{count} {verdict.value}" for verdict, count in counted.items() if count)


def _cell(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text of a record as it may stand in a table: nothing in it is Markdown or HTML."""
    shown = html.escape(plain(text, most), quote=False)
    return re.sub(r"[\\|`\[\]*]|(?<!\w)_|_(?!\w)", r"\\\g<0>", shown)
