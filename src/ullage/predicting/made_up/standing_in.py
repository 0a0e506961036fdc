"""Redirect library functions that load models or data, so that ullage can generate missing ones."""

import functools
from collections.abc import Callable
from typing import Any, Final

from ullage.gpu.tracing.torch_import import ImportWatch

HINT: Final = "__ullage_hint__"
"""The name of an attribute that is set on errors, and contains advice for the user."""
# Library functions receive the name of the object to load in one of these keyword arguments.
_WHAT: Final = (
    *("pretrained_model_name_or_path", "pretrained_model_name", "path", "dataset_path"),
    *("f", "filename", "url", "root"),
)


def when_imported(name: str, act: Callable[[Any], None]) -> None:
    """Call a function with a module, right after this module is imported."""
    ImportWatch(name, before=lambda: None, after=act).install()


def stand_in(module: str, path: str, instead: Callable[..., Any]) -> None:
    """Redirect calls of a module's function or method to `instead`, as soon as the module is imported.

    `path` is the name in the module, such as "Model.load". A version of the library without that name is unchanged.
    """
    *owners, name = path.split(".")

    def act(there: Any) -> None:
        owner = functools.reduce(lambda found, each: getattr(found, each, None), owners, there)
        if hasattr(owner, name):
            around(owner, name, instead)

    when_imported(module, act)


def around(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Redirect the calls of a library function that loads a model or data set by name.

    Each call becomes `instead(original, *arguments, **keywords)`. The name is always in `arguments`, even if the caller
    passes it as a keyword.
    """
    found = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
    is_class_method = isinstance(found, classmethod)
    original = found.__func__ if is_class_method else found
    at = 1 if is_class_method or name == "__init__" else 0

    @functools.wraps(original)
    def standing_in(*arguments: Any, **keywords: Any) -> Any:
        for word in _WHAT if len(arguments) == at else ():
            if word in keywords:
                return instead(original, *arguments, keywords.pop(word), **keywords)
        return instead(original, *arguments, **keywords)

    setattr(owner, name, classmethod(standing_in) if is_class_method else standing_in)


def with_hint(error: BaseException, text: str) -> BaseException:
    """Attach advice to an error. ullage shows the advice when the run ends."""
    setattr(error, HINT, text)
    return error
