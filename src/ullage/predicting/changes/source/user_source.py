"""The user's own source, for recipes that are placed in it."""

import io
import tokenize
from pathlib import Path
from typing import Final

from ullage.base.foreign_files import read_regular
from ullage.predicting.editing.edit import NotCertain

_MOST_BYTES: Final = 1 << 24


def source_of(file: str) -> str:
    """Return the text of a Python file.

    Raises:
        NotCertain: it cannot be read.
    """
    try:
        content = read_regular(Path(file), most_bytes=_MOST_BYTES)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError):
        raise NotCertain(f"{Path(file).name} cannot be read") from None
