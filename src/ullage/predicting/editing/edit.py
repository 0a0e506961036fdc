"""The kinds of edits of a source file. Line numbers are those before any edit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ullage.base.errors import UllageError


class NotCertain(UllageError):
    """Raised if it is uncertain where an edit belongs in a source file, or what its effect is.

    The message is one sentence without a full stop.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEdit:
    """The base class for an edit of a source file."""

    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEdit(SourceEdit):
    """The base class for an edit of the statement at a line."""

    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertAfter(LineEdit):
    """Inserts lines after the statement at a line, with the indentation of that statement."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBefore(LineEdit):
    """Inserts lines before the statement at a line, with the indentation of that statement."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapStatements(SourceEdit):
    """Puts the statements between two lines of a block under a header such as `with ...:`."""

    first_line: int
    last_line: int
    header: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddKeyword(LineEdit):
    """Adds a keyword argument to the call of a given function at a given line."""

    function: str
    """The last part of the called function's name, such as "AdamW" or "from_pretrained"."""
    keyword: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceCall(LineEdit):
    """Replaces the function that is called at a given line with another function."""

    function: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStatement(LineEdit):
    """Removes the statement that begins or ends at a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceExpression(LineEdit):
    """Replaces an expression in the statement at a line."""

    column: int
    """The column at which the expression begins, in bytes of UTF-8 from 0, as in Python's `ast` module."""
    old: str
    """The source code of the expression before the edit."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddImport(SourceEdit):
    """Adds an import statement at the top of a file, unless the file already has it."""

    text: str
    """The import statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A change as source code: edits, script arguments, an environment variable, or example code."""

    snippet: str
    """A few lines of Python code, or a shell line, that show how to make the change."""
    edits: tuple[SourceEdit, ...] = ()
    """The edits of the user's files. Empty if it is uncertain where they belong."""
    arguments: tuple[str, ...] = ()
    """The script arguments that make the change. They are added after the user's arguments."""
    environment: str = ""
    """The shell line that makes the change, such as "export NAME=value"."""
    why_not: str = ""
    """The reason why `edits` is empty: one sentence without a full stop."""

    @classmethod
    def placed(cls, snippet: str, edits: Callable[[], Sequence[SourceEdit]]) -> "Recipe":
        """Return the result of `edits()` as a suggested change of the user's code.

        If `edits()` raises NotCertain, the change contains only example code and the reason.
        """
        try:
            return cls(snippet=snippet, edits=tuple(edits()))
        except NotCertain as error:
            return cls(snippet=snippet, why_not=str(error))
