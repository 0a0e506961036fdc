"""Wrappers around functions and classes of libraries, and around the calls that configure a training library.

These calls are `TrainingArguments(...)` of transformers, Lightning's `Trainer(...)` and accelerate's
`Accelerator(...)`. They are observed, and may get an additional argument.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

from ullage.gpu.tracing.source import is_users
from ullage.gpu.tracing.torch_import import ImportWatch

WhenCalled = Callable[[Any, dict[str, Any]], None]
"""A function that takes an object and the keyword arguments with which it is being created. It may change these
arguments.
"""
TRAINERS: Final = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
PLACES: Final = {
    "transformers": (("transformers.training_args",), "TrainingArguments", "__post_init__"),
    "lightning": (TRAINERS, "Trainer", "__init__"),
    "accelerate": (("accelerate.accelerator",), "Accelerator", "__init__"),
}


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function or a method. Each call then becomes `around(original, *arguments, **keywords)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return around(original, *arguments, **keywords)

    setattr(owner, name, wrapper)


def when_imported(module: str, act: Callable[[Any], None]) -> None:
    """Call a function with a module: now if the module is already imported, otherwise right after its import."""
    if module in sys.modules:
        act(sys.modules[module])
    else:
        ImportWatch(module, before=lambda: None, after=act).install()


def watch_calls(library: str, when_called: WhenCalled, *, only_users: bool = True) -> None:
    """Call a function right before an object of a library is created. By default, only objects that the user's code
    creates count.

    For a `TrainingArguments` object, its attributes already have the values of its arguments and can still be changed.
    """
    modules, name, method = PLACES[library]

    def made(original: Any, this: Any, *arguments: Any, **keywords: Any) -> Any:
        if not only_users or _is_called_by_user():
            when_called(this, keywords)
        return original(this, *arguments, **keywords)

    for module in modules:
        when_imported(module, lambda there: wrap(getattr(there, name), method, made))


def _is_called_by_user() -> bool:
    """Return whether the user's code creates the object, rather than the library for its internal use. Between the line
    of the user's code and the constructor there may be stack frames of the library's decorators and of `__init__` of
    derived classes.
    """
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
