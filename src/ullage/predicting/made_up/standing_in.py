"""Replace functions of libraries by wrappers. A wrapper may generate what the original function does not find."""

import functools
from collections.abc import Callable
from typing import Any, Final

from ullage.gpu.tracing.torch_import import ImportWatch

HINT: Final = "__ullage_hint__"
"""The name of an error's attribute that holds the hint to show with the error."""
_WHAT: Final = (
    *("pretrained_model_name_or_path", "pretrained_model_name", "path", "dataset_path"),
    *("f", "filename", "url", "root"),
)
"""The keyword arguments with which library functions receive the name of the object to load."""


def when_imported(name: str, act: Callable[[Any], None]) -> None:
    """Call a function with a module, right after the script or a library has imported this module."""
    ImportWatch(name, before=lambda: None, after=act).install()


def stand_in(module: str, path: str, instead: Callable[..., Any]) -> None:
    """Redirect calls of a module's function or method, such as "Model.load", to `instead` as soon as the module is
    imported.
    """
    *owners, name = path.split(".")
    when_imported(module, lambda there: around(functools.reduce(getattr, owners, there), name, instead))


def around(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Replace a function, method or class method. Each call then becomes `instead(original, *arguments, **keywords)`.

    `arguments` always contains the name of the object to load, even if the caller passes it as a keyword.
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
    """Return the error with a hint added. The hint is shown when the run ends."""
    setattr(error, HINT, text)
    return error
