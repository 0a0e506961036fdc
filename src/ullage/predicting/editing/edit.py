"""The kinds of source edit, and the recipe that contains them. Line numbers are those of the file before any edit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ullage.base.errors import UllageError


class NotCertain(UllageError):
    """The place or effect of an edit is uncertain. The message is one sentence without a full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEdit:
    """An edit of the text of a file."""

    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEdit(SourceEdit):
    """An edit of the statement at a line."""

    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertAfter(LineEdit):
    """An insertion of lines after the statement that begins or ends at a line, with the statement's indentation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBefore(LineEdit):
    """An insertion of lines before the statement at a line, with the statement's indentation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapStatements(SourceEdit):
    """An indentation of the statements between two lines of one block, under a header such as `with ...:`."""

    first_line: int
    last_line: int
    header: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddKeyword(LineEdit):
    """A new keyword argument of the call that begins at or spans a line, if the function's name ends as given."""

    function: str
    """The last part of the called name, such as "AdamW" or "from_pretrained"."""
    keyword: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceCall(LineEdit):
    """Another function in place of the called function at a line, if its name ends with the given name."""

    function: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStatement(LineEdit):
    """The removal of the statement that begins or ends at a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceExpression(LineEdit):
    """The replacement of an expression in the statement at a line."""

    column: int
    """The column at which the expression begins, from 0, in bytes of UTF-8 as in Python's syntax trees."""
    old: str
    """The present source code of the expression."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddImport(SourceEdit):
    """An import statement to add at the top of a file, unless the file has it already."""

    text: str
    """The import statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The source code of a change."""

    snippet: str
    """A few lines of code, or a shell line, that show the change."""
    edits: tuple[SourceEdit, ...] = ()
    """The edits that apply the change to the user's files; empty if their places are uncertain."""
    arguments: tuple[str, ...] = ()
    """Script arguments that apply the change; they are added after the user's arguments."""
    environment: str = ""
    """A shell line that applies the change: "export NAME=value"."""
    why_not: str = ""
    """The reason why the edits are missing: one sentence without a full stop."""

    @classmethod
    def placed(cls, snippet: str, edits: Callable[[], Sequence[SourceEdit]]) -> "Recipe":
        """Return a recipe with the edits that a function returns, or with the reason that it raises as NotCertain."""
        try:
            return cls(snippet=snippet, edits=tuple(edits()))
        except NotCertain as error:
            return cls(snippet=snippet, why_not=str(error))
