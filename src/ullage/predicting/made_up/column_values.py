"""Generate the values of columns, as the library `datasets` stores them."""

import io
import wave
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from ullage.predicting.made_up.columns import DataColumn
from ullage.predicting.made_up.pictures import encoded, encoded_video
from ullage.predicting.made_up.rows import text_of_length

_RATE: Final = 16_000
_MOST_INT: Final = 1 << 30


def feature_of(column: DataColumn) -> Any:
    """Return the feature of the library `datasets` for a column with sizes."""
    import datasets

    if column.kind == "int" and column.size is not None:
        return datasets.ClassLabel(names=[f"class_{number}" for number in range(column.size)])
    if column.kind == "list":
        assert column.item is not None, "a list has items"
        return datasets.Sequence(feature_of(column.item))
    if column.kind == "answers":  # as in SQuAD
        texts, numbers = datasets.Value("string"), datasets.Value("int32")
        return {"text": datasets.Sequence(texts), "answer_start": datasets.Sequence(numbers)}
    if column.kind == "audio":
        return datasets.Audio(sampling_rate=_RATE)
    if column.kind == "video":
        return datasets.Video()
    if column.kind == "image":
        return datasets.Image()
    if column.kind == "tokens":
        return datasets.Sequence(datasets.Value("int64"))
    return datasets.Value({"text": "string", "int": "int64", "float": "float32"}[column.kind])


def values_of(column: DataColumn, lengths: list[int], tokenizer: Any) -> list[Any]:
    """Return the values of a column, one per row.

    Args:
        column: the column, with sizes.
        lengths: the number of tokens of each row.
        tokenizer: counts the tokens of a text. None: a word counts as a token.

    Raises:
        RowLengthError: the tokenizer does not split texts into tokens.
    """
    makers = {length: _maker(column, column.size or length, tokenizer) for length in set(lengths)}
    return [makers[length](number) for number, length in enumerate(lengths)]


def _maker(column: DataColumn, size: int, tokenizer: Any) -> Callable[[int], Any]:
    if column.kind == "int":
        return lambda number: number % (column.size or _MOST_INT)
    if column.kind == "float":
        return lambda number: float(number % 5)
    if column.kind == "list":
        assert column.item is not None, "a list has items"
        item = _maker(column.item, column.item.size or 1, None)
        return lambda number: [item(number + place) for place in range(size)]
    value = _constant(column, size, tokenizer)
    return lambda number: value


# All rows have the same value.
def _constant(column: DataColumn, size: int, tokenizer: Any) -> Any:
    match column.kind:
        case "text":
            return text_of_length(size, tokenizer)
        case "tokens":
            return [1] * size
        case "answers":
            return {"text": ["the"], "answer_start": [0]}
        case "image":
            return {"bytes": encoded(column.width or size, size), "path": None}
        case "audio":
            return {"bytes": _wave_file(size), "path": None}
        case _:
            return {"bytes": encoded_video(size), "path": None}


@cache
def _wave_file(seconds: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, _RATE, 0, "NONE", ""))
        writer.writeframes(bytes(2 * _RATE * seconds))
    return file.getvalue()
