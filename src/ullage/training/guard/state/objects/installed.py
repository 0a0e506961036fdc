"""Finds out whether code is from an installed package, and not the user's."""

import sys
from functools import lru_cache
from types import ModuleType
from typing import Any


def is_installed(thing: Any) -> bool:
    """Return whether a function, class or module is from an installed package or the standard library."""
    return _is_installed(thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or "")


@lru_cache(maxsize=4096)
def _is_installed(home: str) -> bool:
    if home == "__main__":
        return False
    where = getattr(sys.modules.get(home), "__file__", None) or ""
    return "site-packages" in where or home.partition(".")[0] in sys.stdlib_module_names or not where
