"""Rows have as many tokens as asked for, by the script's own tokenizer."""

from pathlib import Path
from typing import Any

import pytest

from ullage.predicting.made_up.choice import MadeUpChoice, MadeUpData
from ullage.predicting.made_up.rows import RowLengthError, chat_rows, lengths_of, text_of_length


class Halves:
    """A tokenizer that has two tokens for each word, and two at the ends."""

    chat_template = "some"

    def __call__(self, text: str) -> dict[str, Any]:
        return {"input_ids": [0, *[1] * (2 * len(text.split())), 2]}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> list[int]:
        return [token for message in messages for token in (7, *self(message["content"])["input_ids"])]


def rows_of(form: str, lengths: list[int], tokenizer: Any) -> list[dict[str, Any]]:
    if form == "text":
        return [{"text": text_of_length(length, tokenizer)} for length in lengths]
    return chat_rows(MadeUpData(form=form), lengths, tokenizer)


def tokens_of(row: dict[str, Any], tokenizer: Halves) -> int:
    if "messages" in row:
        return len(tokenizer.apply_chat_template(row["messages"]))
    return len(tokenizer(row["text"] if "text" in row else row["prompt"] + row["chosen"])["input_ids"])


@pytest.mark.parametrize("form", ["text", "chat", "preference"])
def test_lengths_are_counted_by_the_tokenizer(form: str) -> None:
    lengths = [12, 128, 2048]
    rows = rows_of(form, lengths, Halves())
    assert [tokens_of(row, Halves()) for row in rows] == lengths


@pytest.mark.parametrize("form", ["text", "chat", "preference"])
def test_without_a_tokenizer_they_are_words(form: str) -> None:
    [row] = rows_of(form, [100], None)
    texts = [each["content"] for each in row.get("messages", ())] or [row.get("text", row.get("prompt"))]
    words = sum(len(text.split()) for text in texts) + len(row.get("chosen", "").split())
    assert words == 100


def test_lengths_of_a_file_are_in_one_order(tmp_path: Path) -> None:
    (tmp_path / "lengths").write_text("5,3\n9,1\n")
    choice = MadeUpChoice(data="text", lengths=str(tmp_path / "lengths"))
    assert sorted(lengths_of(choice, MadeUpData(form="text"))) == [5, 5, 5, 9]
    assert lengths_of(choice, MadeUpData(form="text", rows=6)) == (lengths_of(choice, MadeUpData(form="text")) * 2)[:6]


class Nothing(Halves):
    """A tokenizer without a vocabulary: special tokens alone."""

    def __call__(self, text: str) -> dict[str, Any]:
        return {"input_ids": [0, 2]}


@pytest.mark.parametrize("form", ["text", "chat", "preference"])
def test_rows_that_do_not_reach_their_length_are_refused(form: str) -> None:
    with pytest.raises(RowLengthError, match=r"splits .* words into .* tokens, so rows of 512 tokens cannot be"):
        rows_of(form, [512], Nothing())


class Letters(Halves):
    """A tokenizer whose tokens are letters."""

    def __call__(self, text: str) -> dict[str, Any]:
        return {"input_ids": list(text)}


@pytest.mark.parametrize("form", ["text", "preference"])
def test_a_tokenizer_of_letters_reaches_the_length_but_for_a_word(form: str) -> None:
    [row] = rows_of(form, [512], Letters())
    assert 512 - 4 < tokens_of(row, Letters()) <= 512
