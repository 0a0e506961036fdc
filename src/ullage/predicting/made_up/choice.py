"""The options that make ullage generate model weights or data sets that are missing on this machine."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from ullage.base.errors import UsageError, quoted
from ullage.base.foreign_files import read_regular
from ullage.predicting.made_up.columns import GRAMMAR, DataColumn

FORMS: Final = ("text", "chat", "preference", "image", "columns")
_MOST_LENGTH: Final = 10_000_000
_MOST_ROWS: Final = 100_000_000
_MOST_FILE_BYTES: Final = 256 << 20
_EXAMPLE: Final = (
    "text:length=2048,rows=64, chat:..., preference:..., image:224,rows=64,classes=10 or "
    "columns=sentence:text,label:int:2"
)
_WORDS: Final = {
    "text": ("classes", "length", "rows"),
    "chat": ("length", "rows"),
    "preference": ("length", "rows"),
    "image": ("classes", "height", "rows", "width"),
    "columns": ("classes", "height", "length", "rows", "width"),
}
_IMAGE_CLASSES: Final = 10
_TEXT_CLASSES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpData:
    """The kind, number and size of the rows in a generated data set."""

    form: str
    """The kind of the generated rows, one of FORMS."""
    length: int = 512
    """The number of tokens per row, if the user gave no file of lengths."""
    rows: int | None = None
    """The number of rows to generate.

    If None, one row is generated per entry in the file of lengths, or 64 rows without a file.
    """
    height: int = 224
    width: int = 224
    classes: int | None = None
    """The number of classes of labels. None: 10 for images, 2 for other rows."""
    column: str | None = None
    """The name of the column that contains the generated data. None: the usual name for the kind of data."""
    columns: tuple[DataColumn, ...] = ()
    """The columns of the form "columns"."""

    @property
    def class_count(self) -> int:
        """The number of classes of labels."""
        return self.classes or (_IMAGE_CLASSES if self.form == "image" else _TEXT_CLASSES)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a description of the rows to generate, such as "text:length=2048,rows=64".

        Raises:
            UsageError: the text is not a description of rows.
        """
        if text.startswith("columns="):
            return cls._with_columns(text)
        form, _, rest = text.partition(":")
        if form not in FORMS[:-1]:
            raise UsageError(
                f"made_up_data={quoted(text)} does not begin with {', '.join(FORMS)}; expected for example {_EXAMPLE}"
            )
        data = cls(form=form)
        for number, part in enumerate(filter(None, rest.split(","))):
            name, equals, value = part.partition("=")
            if not equals and not number:
                data = data._sized(text, name)
            else:
                data = data._with(text, name.strip(), value.strip())
        return data

    @classmethod
    def _with_columns(cls, text: str) -> Self:
        data = cls(form="columns")
        columns: dict[str, DataColumn] = {}
        for part in text.removeprefix("columns=").split(","):
            name, equals, value = part.partition("=")
            if equals and ":" not in name:
                data = data._with(text, name.strip(), value.strip())
                continue
            column = DataColumn.parse(part.strip())
            if column.name in columns:
                raise UsageError(f"made_up_data={quoted(text)} has the column {quoted(column.name)} twice")
            columns[column.name] = column
        if not columns:
            raise UsageError(f"made_up_data={quoted(text)} has no column; expected {GRAMMAR}")
        return replace(data, columns=tuple(columns.values()))

    # The first value of the description has no name. It is an image size or a number of tokens.
    def _sized(self, text: str, size: str) -> Self:
        if self.form != "image":
            return self._with(text, "length", size)
        height, _, width = size.partition("x")
        return self._with(text, "height", height)._with(text, "width", width or height)

    def _with(self, text: str, name: str, value: str) -> Self:
        if name == "column" and value and self.form != "columns":
            return replace(self, column=value)
        words = _WORDS[self.form]
        if name not in words:
            column = "" if self.form == "columns" else " or column"
            raise UsageError(f"made_up_data={quoted(text)} has {quoted(name)}; expected {', '.join(words)}{column}")
        most = _MOST_ROWS if name == "rows" else _MOST_LENGTH
        if not value.isdecimal() or not 1 <= int(value[:12]) <= most:
            raise UsageError(f"made_up_data={quoted(text)} has {name}={value}; expected a number from 1 to {most:,}")
        changes: dict[str, Any] = {name: int(value)}
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpChoice:
    """The options for generating missing model weights and data sets. By default, ullage generates nothing."""

    random_weights: bool = False
    config: str | None = None
    """The absolute path of a config.json file, or of a folder with the configurations of several models."""
    data: str | None = None
    """A description of the rows to generate, such as "text:length=2048,rows=64"."""
    lengths: str | None = None
    """The absolute path of a file with the number of tokens of each row."""
    folder: str | None = None
    """The folder for generated files, which is removed after the run."""

    @property
    def is_asked(self) -> bool:
        """Whether anything may be generated."""
        return self.random_weights or self.data is not None

    def check(self) -> None:
        """Raise UsageError if the options contradict each other, or name missing files."""
        if self.config is not None:
            if not self.random_weights:
                raise UsageError("config= gives the configuration for random_weights=; give random_weights=True too")
            if not Path(self.config).exists():
                raise UsageError(f"config={self.config} does not exist; expected a folder with a config.json")
        if self.data is not None:
            MadeUpData.parse(self.data)
        if self.lengths is not None:
            if self.data is None:
                raise UsageError(
                    "lengths= gives the lengths of rows for made_up_data=; give made_up_data= text, chat, preference "
                    "or columns= too"
                )
            if MadeUpData.parse(self.data).form == "image":
                raise UsageError(
                    "lengths= gives lengths of texts, but made_up_data= is for images; expected text, chat, "
                    "preference or columns="
                )
            read_lengths(Path(self.lengths))


def read_lengths(path: Path) -> list[int]:
    """Read the lengths of rows from a file with lines such as "512" or "512,100" (100 rows of length 512).

    Raises:
        UsageError: the file cannot be read, or contains no lengths.
    """
    try:
        text = read_regular(path, most_bytes=_MOST_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"lengths={path} cannot be read: {error.strerror or error}") from None
    lengths: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or not all(word.isdecimal() and len(word) <= 9 for word in words) or not int(words[0]):
            raise UsageError(
                f"lengths={path} has {quoted(line)} in line {number}; expected a length, or a length and the number of "
                "rows with that length"
            )
        lengths += [int(words[0])] * (int(words[1]) if len(words) > 1 else 1)
        if len(lengths) > _MOST_ROWS:
            raise UsageError(f"lengths={path} has more than {_MOST_ROWS:,} rows")
    if not lengths:
        raise UsageError(f"lengths={path} contains no length; expected one length per line")
    return lengths
