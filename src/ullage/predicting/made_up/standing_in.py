"""Functions of libraries with another way in front of them."""

import functools
from collections.abc import Callable
from typing import Any, Final

from ullage.gpu.tracing.torch_import import ImportWatch

HINT: Final = "__ullage_hint__"
"""The attribute of an error with what is to be said beside it."""
_WHAT: Final = (
    *("pretrained_model_name_or_path", "pretrained_model_name", "path", "dataset_path"),
    *("f", "filename", "url", "root"),
)
"""The words for what is to be loaded, in the functions that are stood in for."""


def when_imported(name: str, act: Callable[[Any], None]) -> None:
    """Act on a module right after the script, or a library of its, has imported it."""
    ImportWatch(name, before=lambda: None, after=act).install()


def stand_in(module: str, path: str, instead: Callable[..., Any]) -> None:
    """Put `instead` around a function or a method ("Model.load") of a module as soon as that is imported."""
    *owners, name = path.split(".")
    when_imported(module, lambda there: around(functools.reduce(getattr, owners, there), name, instead))


def around(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Have a call of a function, method or class method become `instead(original, *arguments, **keywords)`.

    What is to be loaded, such as a model's name, is then an argument by place, however the caller has given it.
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
    """Return an error that says, at the end of the run, a sentence more."""
    setattr(error, HINT, text)
    return error
