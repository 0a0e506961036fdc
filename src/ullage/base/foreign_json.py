"""JSON that somebody else has written: what would become many times its own size in memory is known beforehand."""

from typing import Final

_LIST_BYTES: Final = 8
_DICTIONARY_BYTES: Final = 24
"""The fewest bytes of a text for each of its lists and dictionaries: a snapshot and a notebook have far more."""


def is_far_larger_in_memory(text: bytes | str) -> bool:
    """Return whether a text has more lists and dictionaries for its size than any snapshot or notebook.

    Python takes 64 bytes for `[],` and 192 for `{"a":1},`.
    """
    lists, dictionaries = (
        (text.count(b"["), text.count(b"{")) if isinstance(text, bytes) else (text.count("["), text.count("{"))
    )
    return lists * _LIST_BYTES + dictionaries * _DICTIONARY_BYTES > len(text) + (1 << 20)
