"""Hides secrets in commands and environments, because the files of a run are shown to others."""

import re
from collections.abc import Sequence
from typing import Final

_NAMES: Final = re.compile(
    r"(API|ACCESS|PRIVATE|SECRET).?KEY|TOKEN(?!S|IZ)|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|AUTH", re.IGNORECASE
)
_IN_ADDRESS: Final = re.compile(r"://[^/@\s]+@")
_HIDDEN: Final = "***"


def is_secret(name: str) -> bool:
    """Tell by its name whether a variable or an option has a secret value."""
    return _NAMES.search(name) is not None


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command with the values of secret options, and user names and passwords in URLs, hidden."""
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
