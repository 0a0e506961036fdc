"""What is not written down of a command and of an environment: files of a run are shown to others."""

import re
from collections.abc import Sequence
from typing import Final

_NAMES: Final = re.compile(
    r"(API|ACCESS|PRIVATE|SECRET).?KEY|TOKEN(?!S|IZ)|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|AUTH", re.IGNORECASE
)
_IN_ADDRESS: Final = re.compile(r"://[^/@\s]+@")
_HIDDEN: Final = "***"


def is_secret(name: str) -> bool:
    """Tell whether a variable or an option is one whose value is nobody's business."""
    return _NAMES.search(name) is not None


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command with the values of such options, and users of addresses, hidden."""
    shown = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = name.startswith("-") and is_secret(name)
        if is_value and not word.startswith("-"):
            shown.append(_HIDDEN)
        elif is_option and equals:
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(_IN_ADDRESS.sub(f"://{_HIDDEN}@", word))
        is_value = is_option and not equals
    return tuple(shown)
