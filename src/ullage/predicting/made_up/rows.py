"""Generate rows of texts, conversations or preferences with a given number of tokens."""

# A text repeats one short word, which is one token in nearly every tokenizer. If the script has loaded a tokenizer, it
# counts the tokens of a text, and the text is shortened or extended until it has the wanted number of tokens. At the
# end the tokens are counted again, because a tokenizer whose vocabulary is missing splits any text into almost nothing.

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ullage.predicting.made_up.choice import MadeUpChoice, MadeUpData, read_lengths

_WORD: Final = "the"
_ROWS: Final = 64
# These numbers of words show whether each additional word adds the same number of tokens.
_PROBES: Final = (32, 64, 128)
# A shorter row can consist of special tokens alone.
_LEAST_CHECKED: Final = 16
Row = dict[str, Any]


class RowLengthError(RuntimeError):
    """The tokenizer that the script loaded does not split texts into tokens."""


def lengths_of(choice: MadeUpChoice, data: MadeUpData) -> list[int]:
    """Return the number of tokens of each generated row. Lengths from a file are shuffled with a fixed seed."""
    if choice.lengths is None:
        return [data.length] * (data.rows or _ROWS)
    lengths = read_lengths(Path(choice.lengths))
    random.Random(0).shuffle(lengths)
    rows = data.rows or len(lengths)
    return (lengths * -(-rows // len(lengths)))[:rows]


def chat_rows(data: MadeUpData, lengths: list[int], tokenizer: Any) -> list[Row]:
    """Return generated rows of conversations or preferences.

    Raises:
        RowLengthError: the tokenizer does not split texts into tokens.
    """
    make = {"chat": _chat, "preference": _preference}[data.form]
    made = {length: make(length, tokenizer, data.column) for length in set(lengths)}
    return [made[length] for length in lengths]


def text_of_length(length: int, tokenizer: Any) -> str:
    """Return a text with a number of tokens, including special tokens. Without a tokenizer, a word is a token.

    Raises:
        RowLengthError: the tokenizer does not split texts into tokens.
    """

    def count(words: int) -> int:
        return len(tokenizer(_words(words))["input_ids"])

    return _words(fitted(length, count if tokenizer is not None else None))


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


# The prompt has half of the tokens, and each of the two answers has the other half.
def _preference(length: int, tokenizer: Any, column: str | None) -> Row:

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
    """Return how many words fit in `length` tokens. Without a tokenizer, a word counts as one token.

    Raises:
        RowLengthError: so many words have less than half as many tokens.
    """
    if count is None:
        return length
    try:
        words = _words_for(length, count)
        reached = count(words)
    except Exception:  # a tokenizer of the user's own that fails
        return length
    if length >= _LEAST_CHECKED and reached < length // 2:
        raise RowLengthError(
            f"the script's tokenizer splits {words:,} words into {reached:,} tokens, so rows of {length:,} tokens "
            "cannot be generated; expected a tokenizer with a vocabulary, so check that its files are complete"
        )
    return words


def _words_for(length: int, count: Callable[[int], int]) -> int:
    first, second, third = (count(words) for words in _PROBES)
    step = (second - first) // (_PROBES[1] - _PROBES[0])
    if step and (third - second, second - first) == (step * (_PROBES[2] - _PROBES[1]), step * _PROBES[0]):
        return max(_PROBES[0] + (length - first) // step, 1)
    return _searched(length, count)


def _searched(length: int, count: Callable[[int], int]) -> int:
    least, most = 1, 2 * length
    while least < most:
        middle = (least + most + 1) // 2
        if count(middle) <= length:
            least = middle
        else:
            most = middle - 1
    return least
