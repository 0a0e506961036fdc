"""Replace control characters in names, which could change the state of a terminal or imitate a line of a report."""

from typing import Final

_REPLACED: Final = "�"
# Line and paragraph separators, and characters that change the direction of text.
_OF_UNICODE: Final = (*range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROL: Final = dict.fromkeys((*range(32), *range(127, 160), *_OF_UNICODE), _REPLACED)
_CONTROL_IN_TEXT: Final = {code: shown for code, shown in _CONTROL.items() if code not in {ord("\n"), ord("\t")}}


def visible(name: str) -> str:
    """Return a name with every control character replaced, so that it stays on one line."""
    return name.translate(_CONTROL)


def visible_text(text: str) -> str:
    """Return a text with every control character replaced, except for line breaks and tabs."""
    return text.translate(_CONTROL_IN_TEXT)
