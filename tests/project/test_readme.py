"""Every figure of the README has a source, and is the source's; so are figures that documents say again in prose."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from .test_docs import docs, stale_pages

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@dataclass(frozen=True, slots=True)
class Figure:
    """What the README says, and where it comes from; the groups of both are the figures."""

    says: str
    page: str
    """A page with a block that the suite runs, one that a make target writes, or a file that is no document."""
    finds: str
    is_cited: bool = False
    """Whether it is a figure of others, whose place the page names."""


FIGURES = (
    Figure(r"one rank of (\d+), ullage runs", "docs/layouts.md", r"--world-size (\d+)"),
    Figure(r"layout fits on (\d+) GPUs", "docs/layouts.md", r"--cards (\d+)"),
    Figure(
        r"For (\d+ of \d+) published fine-tunings on a T4 without quantized weights",
        "docs/accuracy.md",
        r"without quantised weights, every figure to the byte: (\d+ of \d+)",
    ),
    Figure(
        r"(\d+ of \d+) runs that need almost all memory of a GPU",
        "docs/accuracy.md",
        r"runs near the memory limit with the verdict of the real GPU: (\d+ of \d+)",
    ),
    Figure(r"a mean error of ([\d.]+ %)", "docs/accuracy.md", r"a\s+mean\s+error\s+of\s+([\d.]+ %)", is_cited=True),
    Figure(
        r"run has (?P<all>[\d,]+) allocations, and the short script that reproduces the error has (?P<few>\d+)",
        "docs/why.md",
        r"(?P<few>\d+) allocations, of (?P<all>[\d,]+) in the recording",
    ),
    Figure(
        r"([\d.]+ MiB) in the autograd graphs of the global variable",
        "docs/release.md",
        r"([\d.]+ MiB) +graph +who_holds_what\.py:\d+ global 'losses'",
    ),
    Figure(r"that you pass: ([\d.]+ MiB)", "docs/release.md", r"([\d.]+ MiB) freed"),
    Figure(r"Python (\d\.\d+) or newer", "pyproject.toml", r'requires-python = ">=(\d\.\d+)"'),
)
SAID_AGAIN = {
    "docs/accuracy.md": (
        Figure(
            r"Every\s+segment\s+is\s+identical\s+in\s+(\d+\s+of\s+\d+)\s+recordings",
            "docs/accuracy.md",
            r"recordings with every segment identical: (\d+ of \d+)",
        ),
        Figure(
            r"In (\d+) of\s+(\d+)\s+recordings,\s+at\s+least\s+95\s+%\s+of\s+the\s+segments\s+are\s+identical",
            "docs/accuracy.md",
            r"recordings with 95% of their segments identical: (\d+) of (\d+)",
        ),
        Figure(
            r"reaches\s+this\s+goal\s+in\s+(\d+)\s+of\s+48\s+runs,\s+and\s+reserved\s+memory\s+in\s+(\d+)\s+of\s+(\d+)\s+runs",
            "docs/accuracy.md",
            r"NF4, allocated within 0\.1%: (\d+) of \d+\n +NF4, reserved within 1%: (\d+) of (\d+)",
        ),
        Figure(
            r"real\s+figure\s+in\s+only\s+(?P<most>\d+)\s+of\s+the\s+21\s+repeated\s+NF4\s+runs\.\s+ullage's\s+prediction\s+of\s+reserved\s+memory\s+has\s+an\s+error\s+of\s+at\s+most\s+1\s+%\s+for\s+(?P<here>\d+)\s+of\s+the\s+21\s+repeated",
            "docs/accuracy.md",
            r"measured several times, reserved within 1%: (?P<here>\d+) of \d+; with one figure per recipe at most "
            r"(?P<most>\d+)",
        ),
        Figure(
            r"error\s+of\s+at\s+most\s+0\.1\s+%\s+for\s+(\d+)\s+of\s+the\s+21\s+repeated",
            "docs/accuracy.md",
            r"measured several times, allocated within 0\.1%: (\d+) of",
        ),
    ),
    "docs/qlora.md": (
        Figure(
            r"figure in (\d+ of \d+) runs, and reserved\s+memory within 1 % in (\d+ of \d+) runs",
            "docs/accuracy.md",
            r"NF4, allocated within 0\.1%: (\d+ of \d+)\n +NF4, reserved within 1%: (\d+ of \d+)",
        ),
    ),
    "Makefile": (
        Figure(r"Explain the (\d+) snapshots", "docs/snapshots.md", r"of all that were found \| \d+ of (\d+) \|"),
    ),
}
"""Of other files: what they say in words of a block or a page."""
NAMES = re.compile(r"\bT4\b|x86-64|Apache-2\.0|FSDP2|8-bit|between two runs")
"""What has digits, or is a number word, and is not a figure."""
NUMBER = re.compile(
    r"\S*\d\S*|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|hundred|thousand|half"
    r"|third|quarter|twice)\b",
    re.IGNORECASE,
)


def said(readme: str) -> str:
    """Return what the README says in its own words: no code but comments, no addresses of links."""
    lines = []
    is_fenced = False
    for line in readme.split("\n"):
        if line.startswith("```"):
            is_fenced = not is_fenced
        else:
            lines.append(line.partition("# ")[2] if is_fenced else line)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", " ", " ".join(" ".join(lines).split()))


def compared(figure: Figure, text: str) -> tuple[str, str]:
    """Return the words of a text that have a figure, and what is wrong with them."""
    here = re.search(figure.says, text)
    there = re.search(figure.finds, (ROOT / figure.page).read_text())
    if here is None or there is None:
        words, place = (figure.says, "it") if here is None else (figure.finds, figure.page)
        return "", f"{place} has no words such as {words!r}"
    is_same = here.groupdict() == there.groupdict() if here.groupdict() else here.groups() == there.groups()
    return here[0], "" if is_same else f"it says {here[0]!r}, and {figure.page} {there[0]!r}"


def wrong(readme: str) -> list[str]:
    """Say which figures of the README are not their source's, and which have none."""
    text, found = said(readme), []
    for figure in FIGURES:
        words, problem = compared(figure, text)
        text = text.replace(words, " ", 1) if words else text
        found += [problem] if problem else []
    return found + [f"{each!r} has no source in FIGURES" for each in NUMBER.findall(NAMES.sub("", text))]


def test_every_figure_of_the_readme_is_its_sources() -> None:
    """A figure that is added needs a line of `FIGURES`; one that a command prints anew is to be written anew here."""
    assert wrong(README) == []


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.says)
def test_a_source_is_checked_itself(figure: Figure) -> None:
    """In a document it stands in a block that is run, or on a page that a make target writes."""
    path = ROOT / figure.page
    text = path.read_text()
    if path.parent.name != "docs" or path.name in stale_pages.PAGES or figure.is_cited:
        return
    at = re.search(figure.finds, text)
    assert at is not None
    line = text.count("\n", 0, at.start())
    assert any(block.first <= line < block.last for block in docs.blocks_of(path, text)), at[0]


@pytest.mark.parametrize("name", SAID_AGAIN)
def test_prose_says_the_figures_of_its_block(name: str) -> None:
    """What a block or a page shows, and words of a document repeat, is the same in both."""
    assert [problem for figure in SAID_AGAIN[name] if (problem := compared(figure, (ROOT / name).read_text())[1])] == []


def test_a_wrong_figure_is_told() -> None:
    """Each figure of the README that is changed, and each that is added, is found."""
    for figure in FIGURES:
        here = re.search(figure.says.replace(" ", r"\s+"), README)
        assert here is not None, figure.says
        for group in range(1, len(here.groups()) + 1):
            start, end = here.span(group)
            other = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), here[group], count=1)
            assert wrong(README[:start] + other + README[end:]), here[0]
    for sentence in ("It is 31 % faster.", "Half of them fit.", "```\nullage gpus   # 64 cards\n```"):
        assert wrong(f"{README}\n{sentence}\n"), sentence
