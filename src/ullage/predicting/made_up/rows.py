"""Rows of made-up data: texts of so many tokens, conversations, preferences. They know no library but the tokenizer.

A text is one short word again and again, which nearly every tokenizer has as one token; where the script has loaded
one, it says how many tokens a text really has, and the text is cut or drawn out until they are as many as asked for.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ullage.predicting.made_up.choice import MadeUpChoice, MadeUpData, read_lengths

_WORD: Final = "the"
_ROWS: Final = 64
_PROBES: Final = (32, 64, 128)
"""The numbers of words by which it is tried whether each word more is as many tokens more."""
Row = dict[str, Any]


def lengths_of(choice: MadeUpChoice, data: MadeUpData) -> list[int]:
    """Return how many tokens each row has. Lengths of a file come in one order, whatever order they have there."""
    if choice.lengths is None:
        return [data.length] * (data.rows or _ROWS)
    lengths = read_lengths(Path(choice.lengths))
    random.Random(0).shuffle(lengths)
    rows = data.rows or len(lengths)
    return (lengths * -(-rows // len(lengths)))[:rows]


def text_rows(data: MadeUpData, lengths: list[int], tokenizer: Any) -> list[Row]:
    """Return rows of a text, a chat or a preference."""
    make = {"text": _text, "chat": _chat, "preference": _preference}[data.form]
    made: dict[int, Row] = {}
    for length in set(lengths):
        made[length] = make(length, tokenizer, data.column)
    return [made[length] for length in lengths]


def _text(length: int, tokenizer: Any, column: str | None) -> Row:
    def count(words: int) -> int:
        return len(tokenizer(_words(words))["input_ids"])

    return {column or "text": _words(fitted(length, count if tokenizer is not None else None))}


def _chat(length: int, tokenizer: Any, column: str | None) -> Row:
    def conversation(words: int) -> list[dict[str, str]]:
        question = max(words // 4, 1)
        return [
            {"role": "user", "content": _words(question)},
            {"role": "assistant", "content": _words(max(words - question, 1))},
        ]

    def count(words: int) -> int:
        return len(tokenizer.apply_chat_template(conversation(words), tokenize=True, return_dict=False))

    can_count = tokenizer is not None and getattr(tokenizer, "chat_template", None)
    return {column or "messages": conversation(fitted(length, count if can_count else None))}


def _preference(length: int, tokenizer: Any, column: str | None) -> Row:
    """Return a prompt of half the length, and two answers that fill the rest."""

    def parts(words: int) -> tuple[str, str]:
        prompt = max(words // 2, 1)
        return _words(prompt), " " + _words(max(words - prompt, 1))

    def count(words: int) -> int:
        prompt, answer = parts(words)
        return len(tokenizer(prompt + answer)["input_ids"])

    prompt, answer = parts(fitted(length, count if tokenizer is not None else None))
    return {column or "prompt": prompt, "chosen": answer, "rejected": answer}


def _words(number: int) -> str:
    return " ".join([_WORD] * max(number, 1))


def fitted(length: int, count: Callable[[int], int] | None) -> int:
    """Return how many words make so many tokens, or as few less as can be; without a way to count, as many."""
    if count is None:
        return length
    try:
        first, second, third = (count(words) for words in _PROBES)
        step = (second - first) // (_PROBES[1] - _PROBES[0])
        if step and (third - second, second - first) == (step * (_PROBES[2] - _PROBES[1]), step * _PROBES[0]):
            return max(_PROBES[0] + (length - first) // step, 1)
        return _searched(length, count)
    except Exception:  # a tokenizer of somebody's own
        return length


def _searched(length: int, count: Callable[[int], int]) -> int:
    least, most = 1, 2 * length
    while least < most:
        middle = (least + most + 1) // 2
        if count(middle) <= length:
            least = middle
        else:
            most = middle - 1
    return least
