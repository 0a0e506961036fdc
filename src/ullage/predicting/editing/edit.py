"""The kinds of edit, and a recipe that is made of them. Line numbers are those of the file before any edit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ullage.base.errors import UllageError


class NotCertain(UllageError):
    """Nobody can be certain of an edit; the text is one sentence without a full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEdit:
    """What is to be done to the text of a file."""

    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEdit(SourceEdit):
    """What is to be done to what stands at a line."""

    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertAfter(LineEdit):
    """Put lines behind the statement that ends or begins at a line, with its indentation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBefore(LineEdit):
    """Put lines before the statement at a line, with its indentation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapStatements(SourceEdit):
    """Indent the statements from one line to another, which stand in one block, under a header such as `with ...:`."""

    first_line: int
    last_line: int
    header: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddKeyword(LineEdit):
    """Give the call that begins at or spans a line, of a function whose name ends as said, a keyword argument."""

    function: str
    """The last part of the called name, such as "AdamW" or "from_pretrained"."""
    keyword: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceCall(LineEdit):
    """Have the call at a line, of a function whose name ends as said, call another one with the same arguments."""

    function: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStatement(LineEdit):
    """Take away the statement that ends or begins at a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceExpression(LineEdit):
    """Write another expression in place of one of the statement at a line."""

    column: int
    """The column at which the expression begins, in bytes of UTF-8 as syntax trees count them, from 0."""
    old: str
    """The expression as it stands there."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddImport(SourceEdit):
    """Import a name at the top of a file, unless the file does so already."""

    text: str
    """The import statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a change is written by hand."""

    snippet: str
    """A few lines of code, or a line of the shell, which show the change."""
    edits: tuple[SourceEdit, ...] = ()
    """The edits that make it in the user's files; empty where nobody can be certain of their places."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script that make it, put behind its own."""
    environment: str = ""
    """A line of the shell that makes it: "export NAME=value"."""
    why_not: str = ""
    """Why there are no edits: one sentence without a full stop."""

    @classmethod
    def placed(cls, snippet: str, edits: Callable[[], Sequence[SourceEdit]]) -> "Recipe":
        """Return a recipe with the edits that a function makes, or with its reason why none are certain."""
        try:
            return cls(snippet=snippet, edits=tuple(edits()))
        except NotCertain as error:
            return cls(snippet=snippet, why_not=str(error))
