"""Functions of libraries with another way in front of them."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ullage.tracing.torch_import import ImportWatch

HINT: Final = "__ullage_hint__"
"""The attribute of an error with what is to be said beside it."""


def when_imported(name: str, act: Callable[[Any], None]) -> None:
    """Act on a module right after the script, or a library of its, has imported it."""

    def after(module: ModuleType) -> None:
        act(module)

    ImportWatch(name, before=lambda: None, after=after).install()


def around(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Have a call of a function, method or class method become `instead(original, *arguments, **keywords)`."""
    found = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
    is_class_method = isinstance(found, classmethod)
    original = found.__func__ if is_class_method else found

    @functools.wraps(original)
    def standing_in(*arguments: Any, **keywords: Any) -> Any:
        return instead(original, *arguments, **keywords)

    setattr(owner, name, classmethod(standing_in) if is_class_method else standing_in)


def with_hint(error: BaseException, text: str) -> BaseException:
    """Return an error that says, at the end of the run, a sentence more."""
    setattr(error, HINT, text)
    return error
