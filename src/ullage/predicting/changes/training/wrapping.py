"""Functions and classes of libraries, with something of ours around them."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from ullage.gpu.tracing.torch_import import ImportWatch


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have a call of a function or method become `around(original, *arguments, **keywords)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return around(original, *arguments, **keywords)

    setattr(owner, name, wrapper)


def when_imported(module: str, act: Callable[[Any], None]) -> None:
    """Act on a module now, or as soon as it is imported."""
    if module in sys.modules:
        act(sys.modules[module])
    else:
        ImportWatch(module, before=lambda: None, after=act).install()
