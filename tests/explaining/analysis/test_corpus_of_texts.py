"""Texts of memory running out from public threads: each is judged as a person judged it who read it before.

`data/texts.jsonl` has one text a line: where it stands (repository#number), the program that wrote it, the cause that
was expected and why, words that the advice must have, figures that must be read, and whose memory it is. `cause` is
null where nothing may be recognised. The first try on texts with `held_out`, before what they showed was mended: of a
third of the first 201, read while they were collected and not while the judging code was written, 72 of 74 (before
other programs' words were known, all 201 had 73); of those looked for afterwards ("blind" in their names), 15 of 18,
then 15 of 28 and 14 of 25 of programs that were not known yet, then 13 of 19 of programs that were. Then 24 of 43
("blind5"), mostly refused; since errors whose words no table has are told from talk of memory (`unknown_words`), 19 of
36 ("blind6": of the others 13 were recognised, most of them with the right memory but another cause) and 12 of 16
("blind7"). "blind8" are three of twelve that were looked for later, of which 11 were judged rightly; the others are
like what was there. "blind9" are eighteen of programs that were mostly not known, of which 10 were. "blind10" are
four that were chosen because no words were known of them (errors of the system in another language, and what shells say
of a killed program): none of them was held out. "blind11" are fourteen of fifteen of 2026, most of them looked for
because their words were new, of which five were judged rightly and with the right setting; the fifteenth is of a
program that is refused still.
"""

import html
import io
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ullage.base.errors import UsageError
from ullage.base.units import parse_bytes
from ullage.explaining.analysis.text.describe import describe_text
from ullage.explaining.analysis.text.explain import TextExplanation, explain_messages, explain_text
from ullage.recorded.message.log import scan
from ullage.report.terminal import draw

TEXTS: dict[str, dict[str, Any]] = {
    text["id"]: text
    for text in map(json.loads, (Path(__file__).parent / "data" / "texts.jsonl").read_text("utf-8").splitlines())
}
RECOGNISED = [name for name, text in TEXTS.items() if text["cause"] is not None]
OF_PYTORCH = ("PyTorch", "vLLM", "SGLang", "text-generation-inference", "Triton")
WIDTH = 80


@cache
def told(name: str) -> TextExplanation:
    return explain_text(TEXTS[name]["text"])


def advice(explained: TextExplanation) -> str:
    explanation = explained
    remedies = [f"{remedy.name} {remedy.remark}" for remedy in explanation.remedies]
    return "\n".join([explanation.sentence, *explanation.notes, *remedies])


def page(explained: TextExplanation) -> str:
    stream = io.StringIO()
    draw(describe_text(explained), Console(file=stream, width=WIDTH, highlight=False, force_terminal=False))
    return stream.getvalue()


def test_the_corpus_is_large_and_has_every_program() -> None:
    programs = {text["program"] for text in TEXTS.values()}
    assert len(TEXTS) >= 150
    assert len({text["source"] for text in TEXTS.values()}) >= 150
    assert programs >= {
        *("vLLM", "SGLang", "text-generation-inference", "llama.cpp", "TensorRT-LLM", "Ray", "JAX", "TensorFlow"),
        *("onnxruntime", "bitsandbytes", "Triton", "PyTorch", "none"),
    }
    assert all(text["why"] and "#" in text["source"] for text in TEXTS.values())


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_judged_as_a_person_judged_it(name: str) -> None:
    text = TEXTS[name]
    if text["cause"] is None:
        with pytest.raises(UsageError, match=r"contains no out-of-memory error|does not know"):
            explain_text(text["text"])
        return
    explained = told(name)
    assert explained.cause.value == text["cause"], explained.sentence
    for words in text["knobs"]:
        assert words in advice(explained)
    for figure, expected in text["figures"].items():
        if figure == "device":
            assert explained.found.message.device == expected
        else:
            size = int(expected.removesuffix(" bytes")) if expected.endswith(" bytes") else parse_bytes(expected)
            assert abs(explained.evidence[figure] - size) <= 1, figure


@pytest.mark.parametrize("name", RECOGNISED)
def test_the_program_is_named_and_its_advice_is_its_own(name: str) -> None:
    program = TEXTS[name]["program"]
    if program != "PyTorch":
        assert program in advice(told(name))
    if program not in OF_PYTORCH:
        assert "torch.cuda" not in advice(told(name))


@pytest.mark.parametrize("name", RECOGNISED)
def test_it_is_said_whose_memory_it_is(name: str) -> None:
    of_the_machine = re.search("Host memory|lists host memory", told(name).sentence) is not None
    assert of_the_machine == (TEXTS[name]["memory"] == "machine")


@pytest.mark.parametrize("name", RECOGNISED)
def test_no_figure_is_negative_and_no_advice_is_empty(name: str) -> None:
    drawn = page(told(name))
    assert not re.search(r"(?<![\w.=/-])-\d+(\.\d+)? (B|KiB|MiB|GiB|%)", drawn)
    assert not re.search(r"\b0 % less|\b0 B are missing", drawn)
    assert all(remedy.name and remedy.remark for remedy in told(name).remedies)
    assert all(value >= 0 for value in told(name).evidence.values())


def coloured(text: str) -> str:
    return "\n".join(f"\x1b[31m{line[:20]}\x1b[0m{line[20:]}\x1b[1;36m\x1b[0m" for line in text.split("\n"))


FIGURE = re.compile(r"\d[\d.,]* [KMGT]i?B\b")


def of_a_page(text: str) -> str:
    """What the source of a page has: entities, and tags around figures."""
    bold = FIGURE.sub(lambda figure: f'<b class="figure">{figure[0]}</b>', html.escape(text))
    return f"<pre>{bold}</pre>"


def prefixed(prefix: str, text: str) -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


FORMS = {
    "coloured": coloured,
    "a page's source": of_a_page,
    "Markdown": lambda text: re.sub(rf"(?<= ){FIGURE.pattern}(?=[ ,.;)])", lambda figure: f"**{figure[0]}**", text),
    "hard spaces": lambda text: text.replace(" ", "\xa0"),
    "CRLF": lambda text: text.replace("\n", "\r\n") + "\r\n",
    "torchrun": lambda text: prefixed("[rank3]: ", text),
    "Ray": lambda text: prefixed("(WorkerDict pid=81234) ", text),
    "Ray of another machine": lambda text: prefixed("(WorkerDict pid=81234, ip=10.0.0.7) ", text),
    "docker compose": lambda text: prefixed("server-1  | ", text),
    "Kubernetes": lambda text: prefixed("2026-11-02T10:11:12.123456789Z ", text),
    "a log around it": lambda text: "epoch 1 loss 0.3\n" * 300 + text + "\n" + "Shutting down.\n" * 50,
}
AT_START = {"PyTorch"}
"""Programs of which some wordings count only at the start of a line."""


@pytest.mark.parametrize("form", FORMS)
def test_a_text_in_an_odd_form_is_judged_alike(form: str) -> None:
    """The prefixes of launchers and containers, what only says how a text looks, and a log around it."""
    differing = []
    for name in RECOGNISED:
        try:
            again = explain_text(FORMS[form](TEXTS[name]["text"]))
        except UsageError:
            differing.append(f"{name}: not recognised")
            continue
        if (again.cause, again.sentence) != (told(name).cause, told(name).sentence):
            differing.append(f"{name}: {again.sentence}")
    assert not differing


def cut(text: str, width: int, *, keeps_spaces: bool) -> str:
    """Cut rows as a terminal does; a copy of what it shows often lacks the spaces at the ends."""
    pieces = [row[at : at + width] for row in text.split("\n") for at in range(0, max(1, len(row)), width)]
    return "\n".join(pieces if keeps_spaces else (piece.rstrip(" ") for piece in pieces))


@pytest.mark.parametrize("keeps_spaces", [True, False])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_text_whose_rows_a_terminal_has_cut_is_judged_alike(width: int, keeps_spaces: bool) -> None:
    """In 19 of 20: where a row ends within a program's name or between an error and its cause, less is known."""
    differing = []
    for name in RECOGNISED:
        try:
            again = explain_text(cut(TEXTS[name]["text"], width, keeps_spaces=keeps_spaces))
        except UsageError:
            differing.append(f"{name}: not recognised")
            continue
        if again.cause is not told(name).cause:
            differing.append(f"{name}: {again.sentence}")
    assert len(differing) <= len(RECOGNISED) / 20, differing


@pytest.mark.parametrize("seed", range(3))
def test_a_text_may_come_in_pieces(seed: int) -> None:
    chance = random.Random(seed)
    for name in RECOGNISED:
        text = of_a_page(coloured(TEXTS[name]["text"]))
        cuts = sorted(chance.randrange(len(text) + 1) for _ in range(7))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        again = explain_messages(scan(pieces))
        assert (again.cause, again.sentence) == (told(name).cause, told(name).sentence), name


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_after_the_first_error_changes_nothing(seed: int) -> None:
    """Two texts one below the other: the first that is certain decides, whatever program the second is of."""
    chance = random.Random(seed)
    certain = [name for name in RECOGNISED if told(name).found.message.is_certain and _is_error(name)]
    for name in certain:
        other = TEXTS[chance.choice(RECOGNISED)]["text"]
        again = explain_text(TEXTS[name]["text"] + "\n" + "epoch 1\n" * 200 + other)
        assert again.cause is told(name).cause, name


def _is_error(name: str) -> bool:
    return told(name).evidence["messages"] > 0
