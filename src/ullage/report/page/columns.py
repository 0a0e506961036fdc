"""Columns of numbers as one compressed text inside a page, which its script reads back (columns.js)."""

import base64
import json
import zlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ullage.report.blocks import Column

_WIDTHS = (1, 2, 4, 8)
_RISING = ("born", "event", "time_us")
"""Columns that never fall: their differences are small, and small numbers compress well."""


def packed(thing: Any) -> str:
    """Return a dataclass of columns, texts and numbers as compressed text.

    It is the length of a JSON text (four bytes), that text, and the bytes of the columns. The JSON has a column as
    `{"at": its first byte, "n": its length, "width": bytes of a number, "unit": what each is multiplied with, "low":
    what is then added, "sums": whether each is the difference from the one before}`. The lowest bytes of all numbers
    come first, then the next higher ones, and so on: what changes little lies together.
    """
    pieces: list[bytes] = []
    text = json.dumps(_plain(thing, pieces), separators=(",", ":")).encode()
    whole = len(text).to_bytes(4, "little") + text + b"".join(pieces)
    return base64.b64encode(zlib.compress(whole, 6)).decode()


def _plain(thing: Any, pieces: list[bytes], name: str = "") -> Any:
    if isinstance(thing, np.ndarray):
        return _column(thing, pieces, is_rising=name in _RISING)
    if is_dataclass(thing):
        return {field.name: _plain(getattr(thing, field.name), pieces, field.name) for field in fields(thing)}
    if isinstance(thing, tuple):
        return [_plain(each, pieces) for each in thing]
    return thing


def _column(values: Column, pieces: list[bytes], *, is_rising: bool) -> dict[str, Any]:
    if is_rising:
        values = np.diff(values, prepend=0)
    low = int(values.min(initial=0))
    numbers = (values - low).astype(np.uint64)
    unit = 512 if len(numbers) and not (numbers & 511).any() else 1
    numbers //= np.uint64(unit)
    most = int(numbers.max(initial=0))
    width = next(width for width in _WIDTHS if most < 1 << (8 * width))
    planes = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    at = sum(map(len, pieces))
    pieces.append(np.ascontiguousarray(planes.T).tobytes())
    return {"at": at, "n": len(values), "width": width, "unit": unit, "low": low, "sums": is_rising}
