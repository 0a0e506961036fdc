"""Leave out the middle of a long text that another program has written."""

from typing import Final

from ullage.base.units import text_of_bytes

_BEGINNING_CHARACTERS: Final = 12_000
_END_CHARACTERS: Final = 4_000


def without_middle(text: str) -> str:
    """Return the beginning and the end of a text, and the size of the part between them.

    A text of at most 16,000 characters stays as it is.
    """
    if len(text) <= _BEGINNING_CHARACTERS + _END_CHARACTERS:
        return text
    left_out = len(text[_BEGINNING_CHARACTERS:-_END_CHARACTERS].encode(errors="replace"))
    return (
        f"{text[:_BEGINNING_CHARACTERS]}\n[... {text_of_bytes(left_out)} of the text left out ...]\n"
        f"{text[-_END_CHARACTERS:]}"
    )
