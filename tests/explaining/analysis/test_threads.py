"""What ullage says about public threads of 2024 to 2026, as whole texts and in five disguises.

The share of right answers is a rule of its own: `python -m tests.explaining.analysis.threads` prints it.
"""

import html
import io
import json
import textwrap

import pytest
from rich.console import Console

from tests.explaining.analysis.threads import CAUSES, HALVES, judged, shares, texts
from ullage.base.errors import UsageError
from ullage.explaining.analysis.text.describe import describe_text
from ullage.explaining.analysis.text.explain import TextExplanation, explain_messages, explain_text
from ullage.recorded.message.log import pieces_of, scan
from ullage.recorded.message.notebook import printed_by
from ullage.report.terminal import draw

OF_ALL = [text for half in HALVES for text in texts(half)]
RIGHT = {"cause right": 0.92, "first advice useful": 0.85}
CONFIDENTLY_WRONG = 0.03
MOST_LINES = 12
PREFIX = "trainer-1  | 2026-02-03T10:11:12.123456Z "


@pytest.mark.parametrize("half", HALVES)
def test_the_cause_is_named_and_the_first_advice_helps(half: str) -> None:
    found = shares(half)
    assert found["texts"] >= 75
    for name, share in RIGHT.items():
        assert found[name] >= share, name
    assert found["confidently wrong"] <= CONFIDENTLY_WRONG


def test_the_halves_have_different_sources_and_every_expectation_is_known() -> None:
    repositories = [{text["source"].split("#")[0].lower() for text in texts(half)} for half in HALVES]
    assert not repositories[0] & repositories[1]
    assert len({text["source"] for text in OF_ALL}) == len(OF_ALL) >= 150
    for text in OF_ALL:
        assert {text["cause"], *text["accept"]} <= CAUSES.keys()
        assert text["date"][:3] == "202"
        assert text["advice_any"]
        assert text["ended"]


def prefixed(text: str) -> str:
    return "\n".join(PREFIX + line for line in text.split("\n"))


def wrapped(text: str) -> str:
    return "\n".join(line[at : at + 80] for line in text.split("\n") for at in range(0, max(len(line), 1), 80))


def as_html(text: str) -> str:
    rows = "\n".join(f"<span>{html.escape(line)}</span>" for line in text.split("\n"))
    return f"<html><body><pre>{rows}</pre></body></html>"


def in_a_notebook(text: str) -> str:
    output = {"output_type": "stream", "name": "stderr", "text": text.splitlines(keepends=True)}
    cell = {"cell_type": "code", "source": [], "metadata": {}, "outputs": [output]}
    return printed_by(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})) or ""


def with_another_rank(text: str) -> str:
    return "\n".join(f"[rank0]: {line}\n[rank1]: step {row} loss 2.5" for row, line in enumerate(text.split("\n")))


DISGUISES = {
    "log prefix": prefixed,
    "wrapped at 80 columns": wrapped,
    "HTML": as_html,
    "notebook output": in_a_notebook,
    "interleaved with another rank": with_another_rank,
}
CUT_BEFORE = ("serve-odysseus-207",)  # a terminal had cut it already: the rows below a further prefix differ in width
ONE_ERROR = [
    text
    for text in OF_ALL
    if text["id"] not in CUT_BEFORE
    and judged(text).is_right
    and judged(text).explanation is not None
    and len(text["text"].splitlines()) < 60
]


def cause(text: str) -> object:
    try:
        explained = explain_messages(scan(pieces_of(text)))
    except UsageError:
        return None
    return explained.likely or explained.cause


@pytest.mark.parametrize("name", DISGUISES)
def test_a_disguise_changes_nothing(name: str) -> None:
    disguise = DISGUISES[name]
    wrong = [text["id"] for text in ONE_ERROR if cause(disguise(text["text"])) != judged(text).cause]
    assert not wrong, f"{len(wrong)} of {len(ONE_ERROR)}"


def lines_of(explained: TextExplanation) -> list[str]:
    stream = io.StringIO()
    draw(describe_text(explained), Console(file=stream, width=80, highlight=False, force_terminal=False))
    return stream.getvalue().splitlines()[1:]


def test_the_headline_the_bar_and_the_first_advice_fit_on_a_small_terminal() -> None:
    for text in OF_ALL:
        explained = judged(text).explanation
        if explained is not None:
            lines = lines_of(explained)
            end = next((row for row, line in enumerate(lines) if line.startswith("Where: ")), len(lines))
            assert end <= MOST_LINES, textwrap.indent("\n".join(lines), "  ")


@pytest.mark.parametrize("text", OF_ALL, ids=lambda text: text["id"])
def test_an_answer_does_not_contradict_itself(text: dict[str, object]) -> None:
    """A full GPU is not said to have had room, and memory that is missing is not to spare."""
    found = judged(text).explanation
    if found is None:
        return
    first = " ".join([found.sentence, *(remedy.name + remedy.remark for remedy in found.remedies[:1])])
    assert not ("are missing" in first and "to spare" in first)
    assert not ("GPU was full" in found.sentence and "size is not the cause" in found.sentence)
    assert len({remedy.name for remedy in found.remedies}) == len(found.remedies)
    assert explain_text(str(text["text"])).sentence == found.sentence
