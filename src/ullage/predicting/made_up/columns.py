"""Describe the columns of a generated data set: their names, kinds and sizes.

A description is for example "sentence1:text,sentence2:text,label:int:2". Columns that have no description get their
kind from their names.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Self

from ullage.base.errors import UsageError, quoted

KINDS: Final = ("text", "int", "float", "image", "tokens", "list", "answers", "audio", "video")
GRAMMAR: Final = (
    "NAME:text[:TOKENS], NAME:int[:CLASSES], NAME:float, NAME:image[:HEIGHTxWIDTH], NAME:tokens[:COUNT], "
    "NAME:list[:COUNT]:KIND, NAME:answers, NAME:audio[:SECONDS] or NAME:video[:FRAMES]"
)
"""The descriptions of a column."""
_MOST_SIZE: Final = 10_000_000
_SQUARE: Final = re.compile(r"([0-9]{1,8})(?:x([0-9]{1,8}))?", re.ASCII)
_DEFAULT_SIZES: Final = {"audio": 10, "video": 16}
# Patterns of column names, with the kind of such columns. The first pattern that matches the whole name is valid.
_NAMED: Final = (
    (r"(.*_)?(score|similarity|rating|weight|price)s?", "float"),
    (r"(coarse_|fine_|gold_|.*_)?(label|labels|target|targets|class|category|gold)", "int of classes"),
    (r"(.*_)?(id|ids|idx|ind|index|uid|timestamp)", "int"),
    (r"(.*_)?(ner|pos|chunk)?_?tags?", "list of int"),
    (r"tokens|words", "list of text"),
    (r"(.*_)?(image|img|picture|photo)", "image"),
    (r"audio|speech|wav", "audio"),
    (r"video|clip", "video"),
    (r"answers", "answers"),
)
_TOKEN_NUMBERS: Final = frozenset({"input_ids", "attention_mask", "token_type_ids", "decoder_input_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumn:
    """The kind and the size of the values in a column of a generated data set."""

    name: str
    kind: str
    """One of KINDS."""
    size: int | None = None
    """The number of tokens, classes, list items, seconds or frames; the height of an image in pixels.

    If None, a text and a list have the length of their row, and other columns have the size of the data set.
    """
    width: int | None = None
    """The width of an image in pixels. None: images are square."""
    item: "DataColumn | None" = None
    """The items of a list."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the description of a column, such as "label:int:2".

        Raises:
            UsageError: the text is not a description of a column.
        """
        name, _, rest = text.partition(":")
        kind, _, size = rest.partition(":")
        wrong = UsageError(f"made_up_data= has the column {quoted(text)}; expected {GRAMMAR}")
        if not name or kind not in KINDS or (kind in ("float", "answers") and size):
            raise wrong
        column = cls(name=name, kind=kind)
        if kind == "list":
            count, colon, item = size.partition(":")
            size, item = (count, item) if colon and count.isdecimal() else ("", size)
            try:
                column = replace(column, item=cls.parse(f"{name}:{item}"))
            except UsageError:
                raise wrong from None
        if not size:
            return column
        found = _SQUARE.fullmatch(size)
        if not found or not 1 <= int(found[1]) <= _MOST_SIZE or (found[2] and kind != "image"):
            raise wrong
        return replace(column, size=int(found[1]), width=int(found[2]) if found[2] else None)

    def sized(self, *, classes: int | None, height: int, width: int) -> Self:
        """Return this column with the sizes of the data set in place of missing sizes. The size of a text, of tokens
        and of a list stays None if it is missing: each row has its own length.

        Args:
            classes: the number of classes of whole numbers, or None if they are not classes.
            height: the height of an image in pixels.
            width: the width of an image in pixels.
        """
        if self.item is not None:
            return replace(self, item=self.item.sized(classes=classes, height=height, width=width))
        if self.size is not None or self.kind in ("text", "tokens"):
            return self
        if self.kind == "image":
            return replace(self, size=height, width=width)
        return replace(self, size=classes if self.kind == "int" else _DEFAULT_SIZES.get(self.kind))

    @property
    def has_row_length(self) -> bool:
        """Whether the values have the length of their row."""
        return self.size is None and self.kind in ("text", "tokens", "list")

    def __str__(self) -> str:
        size = "" if self.size is None else f":{self.size}" + (f"x{self.width}" if self.width else "")
        if self.item is not None:
            return f"{self.name}:list{size}{str(self.item).removeprefix(self.name)}"
        return f"{self.name}:{self.kind}{size}"


def column_named(name: str, *, classes: int) -> DataColumn:
    """Return a column whose kind follows from its name: "labels" has whole numbers, "image" has images, and so on. A
    name without a rule has texts.

    Args:
        name: the name of the column.
        classes: the number of classes, if the name is the name of labels.
    """
    if name in _TOKEN_NUMBERS:
        return DataColumn(name=name, kind="tokens")
    kind = next((kind for pattern, kind in _NAMED if re.fullmatch(pattern, name.lower())), "text")
    if kind == "int of classes":
        return DataColumn(name=name, kind="int", size=classes)
    if kind.startswith("list of "):
        item = kind.removeprefix("list of ")
        return DataColumn(
            name=name, kind="list", item=DataColumn(name=name, kind=item, size=1 if item == "text" else classes)
        )
    return DataColumn(name=name, kind=kind)
