"""Read the user's source files, and put the forward passes of a script into a `with` statement."""

import io
import tokenize
from pathlib import Path
from typing import Final

from ullage.base.foreign_files import read_regular
from ullage.predicting.changes.training.facts import PassFacts, TrainingFacts
from ullage.predicting.editing.edit import AddImport, NotCertain, SourceEdit, WrapStatements
from ullage.predicting.editing.scope import common_level, end_line, levels_to, parse, scope_of

_MOST_BYTES: Final = 1 << 24


def source_of(file: str) -> str:
    """Return the text of a Python file.

    Raises:
        NotCertain: the file cannot be read.
    """
    try:
        content = read_regular(Path(file), most_bytes=_MOST_BYTES)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError):
        raise NotCertain(f"{Path(file).name} cannot be read") from None


def around_forward(facts: TrainingFacts, header: str) -> list[SourceEdit]:
    """Return the edits that put each forward pass of a step under `header`, such as a `with` statement.

    The header uses torch, which the edits import.

    Raises:
        NotCertain: the forward and the backward pass are not two successive statements of one function.
    """
    if not facts.loop.passes:
        raise NotCertain("the forward and the backward pass are not in one function")
    wraps = [_around(one, header) for one in facts.loop.passes]
    return [*wraps, AddImport(file=wraps[0].file, text="import torch")]


def _around(one: PassFacts, header: str) -> WrapStatements:
    scope = scope_of(parse(source_of(one.backward.file)), one.backward.function)
    _, first, last = common_level(levels_to(scope, one.forward.line), levels_to(scope, one.backward.line))
    if one.forward.line == one.backward.line:
        raise NotCertain(f"line {one.backward.line} contains both the forward and the backward pass")
    if first.index >= last.index:
        raise NotCertain("one statement runs both the forward and the backward pass")
    before = last.block[last.index - 1]
    return WrapStatements(
        file=one.backward.file,
        first_line=first.statement.lineno,
        last_line=end_line(before),
        header=header,
    )
