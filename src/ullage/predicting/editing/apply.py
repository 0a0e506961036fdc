"""Apply edits to the source code of a file."""

import ast
import io
import tokenize
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ullage.predicting.editing.edit import (
    AddImport,
    AddKeyword,
    InsertAfter,
    InsertBefore,
    NotCertain,
    RemoveStatement,
    ReplaceCall,
    ReplaceExpression,
    SourceEdit,
    WrapStatements,
)
from ullage.predicting.editing.scope import blocks_of, calls_at, end_line, holds, start_line

_STEP: Final = "    "


def edited(source: str, edits: Sequence[SourceEdit], *, file: str = "") -> str:
    """Return the source code of a file with edits applied. Line numbers are those before any edit.

    Args:
        source: the text of a Python file.
        edits: the edits, in any order; several edits may concern one line.
        file: the name of the file, for error messages.

    Raises:
        NotCertain: the file cannot be parsed, or the place of an edit is uncertain.
    """
    page = _EditedPage(source, file)
    for edit in sorted(
        edits, key=lambda each: not isinstance(each, WrapStatements)
    ):  # the other imports are inside blocks
        page.add(edit)
    text = page.text()
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except SyntaxError as error:
        raise NotCertain(f"the edits would make {file or 'the file'} invalid Python: {error.msg}") from None
    return text


@dataclass(slots=True)
class _EditedLine:
    text: str
    before: list[str] = field(default_factory=list)
    # Each header to insert has the number of the last line in its block.
    headers: list[tuple[int, str]] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    # Each inserted header whose block contains this line adds one level of indentation.
    inside: int = 0
    # Each replaced part has a start column and an end column in bytes, and the new text.
    replaced: list[tuple[int, int, str]] = field(default_factory=list)
    is_removed: bool = False


class _EditedPage:
    def __init__(self, source: str, file: str) -> None:
        self._file = file or "the file"
        try:
            with warnings.catch_warnings(action="ignore"):  # invalid escapes in the user's strings
                self._tree = ast.parse(source)
            tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        except (SyntaxError, ValueError, tokenize.TokenError) as error:
            raise NotCertain(f"{self._file} cannot be parsed: {error}") from None
        self._lines = [
            _EditedLine(text) for text in source.split("\n")
        ]  # splitlines() splits at more characters than Python does
        blocks = [block for node in ast.walk(self._tree) for block in blocks_of(node) if block]
        self._blocks = [block for block in blocks if not self._is_behind_colon(block[0])]
        self._in_strings = _lines_in_strings(tokens)
        self._step = "\t" if any(line.text.startswith("\t") for line in self._lines) else _STEP
        self._imports: dict[str, None] = {}

    def add(self, edit: SourceEdit) -> None:
        doing: dict[type[SourceEdit], Callable[..., None]] = {
            InsertAfter: self._insert_after,
            InsertBefore: self._insert_before,
            WrapStatements: self._wrap,
            AddKeyword: self._add_keyword,
            ReplaceCall: self._replace_call,
            ReplaceExpression: self._replace_expression,
            RemoveStatement: self._remove,
            AddImport: self._add_import,
        }
        doing[type(edit)](edit)

    def text(self) -> str:
        place = self._place_of_imports()
        found: list[str] = []
        if place == 0:
            found += self._imports
        for number, line in enumerate(self._lines, 1):
            outer = self._step * (line.inside - len(line.headers))
            found += [outer + text for text in line.before]
            for depth, (_, header) in enumerate(sorted(line.headers, key=lambda each: -each[0])):
                found.append(outer + self._step * depth + _indent(line.text) + header)
            if not line.is_removed:
                found.append(self._rendered(number, line))
            found += line.after
            if number == place:
                found += self._imports
        end = "\r\n" if self._lines[0].text.endswith("\r") else "\n"
        return end.join(each.removesuffix("\r") for each in found)

    def _rendered(self, number: int, line: _EditedLine) -> str:
        encoded = line.text.encode()
        # Replace from the end of the line to its beginning. Insertions at one column are applied last first, to keep
        # their order.
        in_order = sorted(enumerate(line.replaced), key=lambda one: (one[1][:2], one[0]))
        for _, (start, end, text) in reversed(in_order):
            encoded = encoded[:start] + text.encode() + encoded[end:]
        indent = "" if number in self._in_strings or not line.text.strip() else self._step * line.inside
        return indent + encoded.decode()

    # ---- kinds of edit

    def _insert_after(self, edit: InsertAfter) -> None:
        _, statement = self._statement(edit.line)
        last = self._lines[end_line(statement) - 1]
        # Text inserted after the last line of a wrapped block goes after the block.
        depth = sum(first <= statement.lineno and end_line(statement) < end for first, end in self._wraps())
        indent = self._step * depth + _indent(self._lines[statement.lineno - 1].text)
        last.after += self._indented(indent, edit.text)

    def _insert_before(self, edit: InsertBefore) -> None:
        _, statement = self._statement(edit.line)
        line = self._lines[start_line(statement) - 1]
        line.before += self._indented(_indent(line.text), edit.text)

    def _indented(self, indent: str, text: str) -> list[str]:
        found = []
        for line in text.splitlines():
            words = line.lstrip(" ")
            depth, rest = divmod(len(line) - len(words), len(_STEP))
            found.append(indent + self._step * depth + " " * rest + words if words else line)
        return found

    def _wrap(self, edit: WrapStatements) -> None:
        block, first, last = self._common_block(edit.first_line, edit.last_line)
        start, end = start_line(block[first]), end_line(block[last])
        for other_start, other_end in self._wraps():
            if other_start < start <= other_end < end or start < other_start <= end < other_end:
                raise NotCertain(f"two edits of {self._file} would put lines {start} to {end} into overlapping blocks")
        self._lines[start - 1].headers.append((end, edit.header))
        for number in range(start, end + 1):
            self._lines[number - 1].inside += 1

    def _add_keyword(self, edit: AddKeyword) -> None:
        call = self._call(edit.line, edit.function)
        known = next((each for each in call.keywords if each.arg == edit.keyword), None)
        if known is not None:
            self._replace(known.value, edit.value)
            return
        position = (call.end_lineno or call.lineno) - 1, (call.end_col_offset or 1) - 1
        parts = [*call.args, *(keyword.value for keyword in call.keywords)]
        separator = "" if not parts or self._has_comma(parts, position) else ", "
        line, column = position
        is_alone = not self._lines[line].text.encode()[:column].strip()
        if (
            parts and not separator and is_alone
        ):  # the call has one argument per line, so the new argument gets its own line
            last = max([*(each.lineno for each in call.args), *(each.lineno for each in call.keywords)])
            self._lines[line].before.append(f"{_indent(self._lines[last - 1].text)}{edit.keyword}={edit.value},")
            return
        if parts and not separator:
            separator = " "
        if any(
            each[:2] == (column, column) for each in self._lines[line].replaced
        ):  # another edit added an argument already
            separator = ", "
        self._lines[line].replaced.append((column, column, f"{separator}{edit.keyword}={edit.value}"))

    def _replace_call(self, edit: ReplaceCall) -> None:
        self._replace(self._call(edit.line, edit.function).func, edit.replacement)

    def _replace_expression(self, edit: ReplaceExpression) -> None:
        line = self._lines[edit.line - 1]
        end = edit.column + len(edit.old.encode())
        if line.text.encode()[edit.column : end] != edit.old.encode():
            raise NotCertain(f"line {edit.line} of {self._file} does not contain {edit.old} at the expected column")
        line.replaced.append((edit.column, end, edit.new))

    def _remove(self, edit: RemoveStatement) -> None:
        block, statement = self._statement(edit.line)
        if len(block) == 1:
            raise NotCertain(f"line {edit.line} of {self._file} is the only statement of its block")
        for number in range(start_line(statement), end_line(statement) + 1):
            self._lines[number - 1].is_removed = True

    def _add_import(self, edit: AddImport) -> None:
        [wanted] = ast.parse(edit.text).body
        if not any(_imports(each, wanted) for each in self._tree.body):
            self._imports[edit.text] = None

    # ---- places

    def _statement(self, line: int) -> tuple[list[ast.stmt], ast.stmt]:
        found = [(block, statement) for block in self._blocks for statement in block if holds(statement, line)]
        if not found:
            raise NotCertain(f"line {line} of {self._file} does not belong to a statement")
        block, statement = sorted(found, key=lambda each: each[1].lineno)[-1]
        self._check_lines(block, statement)
        return block, statement

    def _check_lines(self, block: list[ast.stmt], statement: ast.stmt) -> None:
        for other in block:
            shares = start_line(other) <= end_line(statement) and start_line(statement) <= end_line(other)
            if other is not statement and shares:
                raise NotCertain(f"line {statement.lineno} of {self._file} contains several statements")

    def _is_behind_colon(self, statement: ast.stmt) -> bool:
        return bool(self._lines[start_line(statement) - 1].text.encode()[: statement.col_offset].strip(b" \t\x0c@"))

    def _common_block(self, first_line: int, last_line: int) -> tuple[list[ast.stmt], int, int]:
        found = []
        for block in self._blocks:
            first, last = _index_of(block, first_line), _index_of(block, last_line)
            if first is not None and last is not None and first <= last:
                found.append((block, first, last))
        if not found:
            raise NotCertain(f"lines {first_line} and {last_line} of {self._file} are not in one block")
        block, first, last = sorted(found, key=lambda each: each[0][each[1]].col_offset)[-1]
        for statement in block[first : last + 1]:
            self._check_lines(block, statement)
        return block, first, last

    def _call(self, line: int, function: str) -> ast.Call:
        calls = calls_at(self._tree, line, function)
        if len(calls) != 1:
            count = "no call" if not calls else f"{len(calls)} calls"
            raise NotCertain(f"line {line} of {self._file} has {count} of {function}; expected one call")
        return calls[0]

    def _replace(self, node: ast.expr, text: str) -> None:
        if node.lineno != node.end_lineno:
            raise NotCertain(f"line {node.lineno} of {self._file} begins an expression of several lines")
        self._lines[node.lineno - 1].replaced.append((node.col_offset, node.end_col_offset or 0, text))

    def _has_comma(self, parts: Sequence[ast.expr], position: tuple[int, int]) -> bool:
        last = max(parts, key=lambda part: (part.end_lineno or 0, part.end_col_offset or 0))
        line, column = (last.end_lineno or 1) - 1, last.end_col_offset or 0
        between = b"".join(
            self._lines[number]
            .text.encode()[column if number == line else 0 : position[1] if number == position[0] else None]
            .partition(b"#")[0]
            for number in range(line, position[0] + 1)
        )
        return b"," in between

    def _wraps(self) -> list[tuple[int, int]]:
        return [(number, end) for number, line in enumerate(self._lines, 1) for end, _ in line.headers]

    # New imports belong after the last import at the top of the file, or after the docstring if the file has no import.
    def _place_of_imports(self) -> int:
        place = 0
        for index, statement in enumerate(self._tree.body):
            is_docstring = index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_docstring and not isinstance(statement, ast.Import | ast.ImportFrom):
                break
            place = end_line(statement)
        while place < len(self._lines) and self._lines[place].text.startswith("#!"):
            place += 1
        return place


def _imports(statement: ast.stmt, wanted: ast.stmt) -> bool:
    if isinstance(statement, ast.Import) and isinstance(wanted, ast.Import):
        known = [ast.dump(each) for each in statement.names]
        return all(ast.dump(each) in known for each in wanted.names)
    return ast.dump(statement) == ast.dump(wanted)


# Edits must not change the indentation of lines that begin inside a multi-line string.
def _lines_in_strings(tokens: Sequence[tokenize.TokenInfo]) -> set[int]:
    found: set[int] = set()
    begun: list[int] = []
    for token in tokens:
        name = tokenize.tok_name[token.type]
        if name == "STRING":
            found.update(range(token.start[0] + 1, token.end[0] + 1))
        elif name.endswith("STRING_START"):  # Python 3.12 and newer split an f-string into several tokens
            begun.append(token.start[0])
        elif name.endswith("STRING_END") and begun:
            found.update(range(begun.pop() + 1, token.end[0] + 1))
    return found


def _index_of(block: Sequence[ast.stmt], line: int) -> int | None:
    return next((index for index, each in enumerate(block) if holds(each, line)), None)


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]
