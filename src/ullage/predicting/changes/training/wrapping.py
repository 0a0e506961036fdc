"""Replace functions of torch and of training libraries by wrappers that observe their calls."""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

from ullage.gpu.tracing.source import is_users
from ullage.gpu.tracing.torch_import import ImportWatch

WhenCalled = Callable[[Any, dict[str, Any]], None]
"""A function that takes an object and its constructor's keyword arguments, and may change these arguments."""
TRAINERS: Final = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
PLACES: Final = {
    "transformers": (("transformers.training_args",), "TrainingArguments", "__post_init__"),
    "lightning": (TRAINERS, "Trainer", "__init__"),
    "accelerate": (("accelerate.accelerator",), "Accelerator", "__init__"),
}

# Newer and older versions of PEFT define the function in different modules.
_ADAPTERS: Final = "get_peft_model"
_ADAPTER_MODULES: Final = ("peft.mapping_func", "peft.mapping")


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function or a method, so that each call becomes `around(original, *arguments, **keywords)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return around(original, *arguments, **keywords)

    setattr(owner, name, wrapper)


def when_imported(module: str, act: Callable[[Any], None]) -> None:
    """Call a function with a module as soon as the module is imported. If it is already imported, call it now."""
    if module in sys.modules:
        act(sys.modules[module])
    else:
        ImportWatch(module, before=lambda: None, after=act).install()


def watch_calls(library: str, when_called: WhenCalled, *, only_users: bool = True) -> None:
    """Call a function right before an object of a library's configuration class is created.

    By default, objects that the library creates for itself do not count.
    """
    modules, name, method = PLACES[library]

    def made(original: Any, this: Any, *arguments: Any, **keywords: Any) -> Any:
        if not only_users or _is_called_by_user():
            when_called(this, keywords)
        return original(this, *arguments, **keywords)

    for module in modules:
        when_imported(module, lambda there: wrap(getattr(there, name), method, made))


def adapter_calls(act: Callable[[dict[str, Any]], None]) -> None:
    """Call a function with the keyword arguments of each call of `get_peft_model`, before the call."""

    def around(original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        act(keywords)
        return original(*arguments, **keywords)

    def install(module: Any) -> None:
        if getattr(getattr(module, _ADAPTERS, None), "__module__", None) == module.__name__:
            wrap(module, _ADAPTERS, around)

    for name in _ADAPTER_MODULES:
        when_imported(name, install)


# Between the user's line and the constructor, there may be stack frames of the library's decorators and of `__init__`
# of derived classes.
def _is_called_by_user() -> bool:
    frame = sys._getframe(3)
    for _ in range(8):
        if is_users(frame.f_code.co_filename):
            return True
        name = frame.f_code.co_name
        is_between = name in ("__init__", "__post_init__", "insert_env_defaults", "wrapper", "inner")
        if not is_between or frame.f_back is None:
            return False
        frame = frame.f_back
    return False
