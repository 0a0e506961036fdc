"""The forms that a snapshot has in files of others: a pickle, a page of PyTorch's viewer, or JSON; and what is none."""

import base64
import binascii
import json
import pickle
import re
from collections.abc import Callable
from typing import Any, Final

from ullage.base.foreign_files import is_far_larger_in_memory

_PAGE: Final = re.compile(rb"\s{0,40}<!DOCTYPE html>[^\0]{0,1000}MemoryViz\.js")
_IN_PAGE: Final = b'"base64": "'
_JSON: Final = re.compile(
    rb'\s{0,40}(?:\{\s{0,40}"(?:segments|device_traces|allocator_settings|external_annotations)"'
    rb'|\[\s{0,40}\{\s{0,40}"(?:device|address|total_size|blocks)")'
)
_FRAME: Final = {"name", "filename", "line"}
_DUMP: Final = "expected what torch.cuda.memory._dump_snapshot() writes"
_UNPACK: Final = "unpack it, and give the snapshot that is in it"
_RECORD: Final = (
    "it says what ran, and not what held memory; record that with torch.cuda.memory._record_memory_history() and "
    "_dump_snapshot()"
)
_OTHERS: Final = (
    (re.compile(rb"PK\x05\x06"), "an empty zip archive", _DUMP),
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive", _UNPACK),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "packed by zstd", _UNPACK),
    (re.compile(rb"\xfd7zXZ\x00"), "packed by xz", _UNPACK),
    (re.compile(rb"BZh"), "packed by bzip2", _UNPACK),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7z archive", _UNPACK),
    (re.compile(rb"version https://git-lfs"), "a pointer of Git LFS, not the file itself", "fetch it: git lfs pull"),
    (re.compile(rb"SQLite format 3\x00"), "a database of SQLite", _DUMP),
)
"""Beginnings of other formats, the name of each, and what to do."""
_OTHER_JSON: Final = (
    (re.compile(rb'\s{0,40}\{\s{0,40}"(?:schemaVersion|deviceProperties|traceEvents)"'), "a profiler's trace", _RECORD),
    (re.compile(rb"\s{0,40}\[\s{0,40}\[\s{0,40}\d{12}"), "a profiler's timeline of memory, in JSON", _RECORD),
    (
        re.compile(rb'\s{0,40}\{\s{0,40}"(?:active|allocated_bytes|allocation|active_bytes)\.'),
        "what torch.cuda.memory_stats() gives, in JSON",
        "it counts, and does not say what held memory; give a snapshot or the error's text",
    ),
)
"""The same of texts, which could be logs."""
_TEXTS: Final = (
    (re.compile(rb"<"), "a page, or other text with tags", _DUMP),
    (re.compile(rb"\{[\"\n]"), "JSON", _DUMP),
)


def is_no_log(beginning: bytes) -> bool:
    """Return whether what looks like text is a snapshot in another form, or something else that no program logs."""
    forms = (_PAGE, _JSON, *(pattern for pattern, _, _ in (*_OTHERS, *_OTHER_JSON)))
    return any(pattern.match(beginning) for pattern in forms)


def is_archive(beginning: bytes) -> bool:
    """Return whether a file is packed in a way that nothing here unpacks."""
    return any(pattern.match(beginning) for pattern, _, to_do in _OTHERS if to_do == _UNPACK)


def other_form(data: bytes) -> str:
    """Return what a file is that is plainly no snapshot, and what to do with it; an empty text for all others."""
    beginning = data[:4096]
    if _JSON.match(beginning) or _PAGE.match(beginning):
        return ""
    for pattern, what, to_do in (*_OTHERS, *_OTHER_JSON, *_TEXTS):
        if pattern.match(beginning):
            return f"it is {what}; {to_do}"
    return ""


def _once() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Give out each frame of code once: a pickle names it again where JSON has written it for every block anew."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def frame(found: dict[str, Any]) -> dict[str, Any]:
        return known.setdefault(tuple(found.values()), found) if found.keys() == _FRAME else found

    return frame


def as_pickle(data: bytes) -> bytes:
    """Return the pickle of a snapshot that is in a page of PyTorch's viewer, or is written as JSON; others as they are.

    Raises:
        ValueError: it is damaged; the text says how.
    """
    beginning = data[:4096]
    if _PAGE.match(beginning):
        begin = data.find(_IN_PAGE) + len(_IN_PAGE)
        end = data.find(b'"', begin)
        if begin < len(_IN_PAGE) or end < 0:
            raise ValueError("the page of PyTorch's viewer has no whole snapshot in it: it was cut off, or changed")
        try:
            return base64.b64decode(data[begin:end], validate=True)
        except binascii.Error as error:
            raise ValueError(f"the page of PyTorch's viewer is damaged: {error}") from None
    if _JSON.match(beginning):
        if is_far_larger_in_memory(data):
            raise ValueError("it would take many times its own size in memory, as no snapshot does")
        try:
            return pickle.dumps(json.loads(data, object_hook=_once()))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is JSON that is damaged or cut off: {error}") from None
    return data
