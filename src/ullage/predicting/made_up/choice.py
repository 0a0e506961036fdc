"""What is to be made up, as options say it. It knows no torch."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from ullage.base.errors import UsageError, quoted
from ullage.base.foreign_files import read_regular

FORMS: Final = ("text", "chat", "preference", "image")
_MOST_LENGTH: Final = 10_000_000
_MOST_ROWS: Final = 100_000_000
_MOST_FILE_BYTES: Final = 256 << 20
_EXAMPLE: Final = "text:length=2048,rows=64, chat:..., preference:... or image:224,rows=64,classes=10"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpData:
    """The rows of a data set that is not there."""

    form: str
    """The kind of row: "text", "chat", "preference" or "image"."""
    length: int = 512
    """The number of tokens of each row, where no lengths are given."""
    rows: int | None = None
    """The number of rows; None: as many as lengths are given, else 64."""
    height: int = 224
    width: int = 224
    classes: int = 10
    column: str | None = None
    """The name of the column in place of "text", "messages" or "image"."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "text:length=2048,rows=64".

        Raises:
            UsageError: it is no description of data.
        """
        form, _, rest = text.partition(":")
        if form not in FORMS:
            raise UsageError(f"--made-up-data {quoted(text)} begins with none of {', '.join(FORMS)}: {_EXAMPLE}")
        data = cls(form=form)
        for number, part in enumerate(filter(None, rest.split(","))):
            name, equals, value = part.partition("=")
            if not equals and not number:
                data = data._sized(text, name)
            else:
                data = data._with(text, name.strip(), value.strip())
        return data

    def _sized(self, text: str, size: str) -> Self:
        """Take the first word, which has no name: pixels of a picture, tokens of a text."""
        if self.form != "image":
            return self._with(text, "length", size)
        height, _, width = size.partition("x")
        return self._with(text, "height", height)._with(text, "width", width or height)

    def _with(self, text: str, name: str, value: str) -> Self:
        if name == "column" and value:
            return replace(self, column=value)
        words = {each.name for each in fields(self)} - {"form", "column"}
        if self.form == "image":
            words -= {"length"}
        else:
            words -= {"height", "width", "classes"}
        if name not in words:
            raise UsageError(
                f"--made-up-data {quoted(text)} has {quoted(name)}; expected {', '.join(sorted(words))} or column"
            )
        most = _MOST_ROWS if name == "rows" else _MOST_LENGTH
        if not value.isdecimal() or not 1 <= int(value[:12]) <= most:
            raise UsageError(f"--made-up-data {quoted(text)} has {name}={value}; expected a number from 1 to {most:,}")
        changes: dict[str, Any] = {name: int(value)}
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpChoice:
    """What is made up where it is not there: nothing, unless it is asked for."""

    random_weights: bool = False
    config: str | None = None
    """The absolute path of a folder (or of its config.json) with the configuration of models that are not known."""
    data: str | None = None
    """A description of rows, as `MadeUpData.parse` reads it."""
    lengths: str | None = None
    """The absolute path of a file with the lengths of rows."""
    folder: str | None = None
    """The folder for what has to be a file; whoever starts the script makes it, and removes it in the end."""

    @property
    def is_asked(self) -> bool:
        """Whether anything may be made up."""
        return self.random_weights or self.data is not None

    def check(self) -> None:
        """Raise UsageError where there is no such choice."""
        if self.config is not None:
            if not self.random_weights:
                raise UsageError("--config says what --random-weights makes; give --random-weights too")
            if not Path(self.config).exists():
                raise UsageError(f"--config {self.config} does not exist; expected a folder with a config.json")
        if self.data is not None:
            MadeUpData.parse(self.data)
        if self.lengths is not None:
            if self.data is None:
                raise UsageError("--lengths are those of --made-up-data; give --made-up-data text, chat or preference")
            if MadeUpData.parse(self.data).form == "image":
                raise UsageError("--lengths are of texts, and --made-up-data asks for pictures")
            read_lengths(Path(self.lengths))


def read_lengths(path: Path) -> list[int]:
    """Read the lengths of rows: one a line, or "LENGTH,COUNT" for a histogram.

    Raises:
        UsageError: it cannot be read, or has no lengths.
    """
    try:
        text = read_regular(path, most_bytes=_MOST_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"--lengths {path} cannot be read: {error.strerror or error}") from None
    lengths: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or not all(word.isdecimal() and len(word) <= 9 for word in words) or not int(words[0]):
            raise UsageError(
                f"--lengths {path} has {quoted(line)} in line {number}; expected a length, or a length and how many "
                "rows have it"
            )
        lengths += [int(words[0])] * (int(words[1]) if len(words) > 1 else 1)
        if len(lengths) > _MOST_ROWS:
            raise UsageError(f"--lengths {path} has more than {_MOST_ROWS:,} rows")
    if not lengths:
        raise UsageError(f"--lengths {path} has no length; expected one a line")
    return lengths
