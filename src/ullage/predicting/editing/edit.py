"""The kinds of edit of a source file, and the class `Recipe`. Line numbers are those of the file before any edit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ullage.base.errors import UllageError


class NotCertain(UllageError):
    """ullage is not certain where an edit belongs in a source file, or what its effect is. The message is one sentence
    without a full stop.
    """


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
    """An edit that inserts lines after the statement at a line. The inserted lines get the statement's indentation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBefore(LineEdit):
    """An edit that inserts lines before the statement at a line. The inserted lines get the statement's indentation."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapStatements(SourceEdit):
    """An edit that puts the statements between two lines of one block under a header such as `with ...:`."""

    first_line: int
    last_line: int
    header: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddKeyword(LineEdit):
    """An edit that adds a keyword argument to a call at a line. The name of the called function must end with
    `function`.
    """

    function: str
    """The last part of the name of the called function, such as "AdamW" or "from_pretrained"."""
    keyword: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceCall(LineEdit):
    """An edit that replaces the function in a call at a line by another function. The name of the called function must
    end with `function`.
    """

    function: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStatement(LineEdit):
    """An edit that removes the statement that begins or ends at a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceExpression(LineEdit):
    """An edit that replaces an expression in the statement at a line."""

    column: int
    """The column at which the expression begins, in bytes of UTF-8 from 0, as in Python's syntax trees."""
    old: str
    """The source code of the expression before the edit."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddImport(SourceEdit):
    """An edit that adds an import statement at the top of a file, unless the file already has the statement."""

    text: str
    """The import statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The source code of a change."""

    snippet: str
    """A few lines of Python code, or a shell line, that show the user how to make the change."""
    edits: tuple[SourceEdit, ...] = ()
    """The edits that apply the change to the user's files. Empty if ullage is not certain where they belong."""
    arguments: tuple[str, ...] = ()
    """Script arguments that apply the change. ullage adds them after the user's arguments."""
    environment: str = ""
    """A shell line that applies the change, such as "export NAME=value"."""
    why_not: str = ""
    """A short text that shows the user how to make the change: lines of Python code, or a shell line."""

    @classmethod
    def placed(cls, snippet: str, edits: Callable[[], Sequence[SourceEdit]]) -> "Recipe":
        """Return a recipe with the edits that a function returns. If the function raises NotCertain, the recipe has the
        reason instead.
        """
        try:
            return cls(snippet=snippet, edits=tuple(edits()))
        except NotCertain as error:
            return cls(snippet=snippet, why_not=str(error))
