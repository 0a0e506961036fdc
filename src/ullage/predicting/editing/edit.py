"""The kinds of edit, and a recipe that is made of them. Line numbers are those of the file before any edit."""

from dataclasses import dataclass, field

from ullage.base.errors import UllageError


class NotCertain(UllageError):
    """Nobody can be certain of an edit; the text is one sentence without a full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertAfter:
    """Put lines behind the statement that ends or begins at a line, with its indentation."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertBefore:
    """Put lines before the statement at a line, with its indentation."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapStatements:
    """Indent the statements from one line to another, which stand in one block, under a header such as `with ...:`."""

    file: str
    first_line: int
    last_line: int
    header: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddKeyword:
    """Give the call that begins at or spans a line, of a function whose name ends as said, a keyword argument."""

    file: str
    line: int
    function: str
    """The last part of the called name, such as "AdamW" or "from_pretrained"."""
    keyword: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceCall:
    """Have the call at a line, of a function whose name ends as said, call another one with the same arguments."""

    file: str
    line: int
    function: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveStatement:
    """Take away the statement that ends or begins at a line."""

    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceExpression:
    """Write another expression in place of one of the statement at a line."""

    file: str
    line: int
    """The line at which the expression begins."""
    column: int
    """The column at which it begins, in bytes of UTF-8 as syntax trees count them, from 0."""
    old: str
    """The expression as it stands there."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddImport:
    """Import a name at the top of a file, unless the file does so already."""

    file: str
    text: str
    """The import statement."""


SourceEdit = (
    InsertAfter
    | InsertBefore
    | WrapStatements
    | AddKeyword
    | ReplaceCall
    | RemoveStatement
    | ReplaceExpression
    | AddImport
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a change is written by hand."""

    snippet: str
    """A few lines of code, or a line of the shell, which show the change."""
    edits: tuple[SourceEdit, ...] = ()
    """The edits that make it in the user's files; empty where nobody can be certain of their places."""
    arguments: tuple[str, ...] = field(default=())
    """Arguments of the script that make it, put behind its own."""
    environment: str = ""
    """A line of the shell that makes it: "export NAME=value"."""
    why_not: str = ""
    """Why there are no edits: one sentence without a full stop."""
