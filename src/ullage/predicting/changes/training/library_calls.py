"""The calls by which a script tells a library how to train: they are watched, and may get an argument more.

`TrainingArguments(...)` of transformers, Lightning's `Trainer(...)` and accelerate's `Accelerator(...)`.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

from ullage.gpu.tracing.source import is_users
from ullage.gpu.tracing.torch_import import ImportWatch

WhenCalled = Callable[[Any, dict[str, Any]], None]
"""Called with the object that is being made and the keyword arguments, which it may change."""

_PLACES: Final = {
    "transformers": (("transformers.training_args", "TrainingArguments", "__post_init__"),),
    "lightning": (
        ("lightning.pytorch.trainer.trainer", "Trainer", "__init__"),
        ("pytorch_lightning.trainer.trainer", "Trainer", "__init__"),
    ),
    "accelerate": (("accelerate.accelerator", "Accelerator", "__init__"),),
}


def watch_calls(library: str, when_called: WhenCalled) -> None:
    """Call a function right before an object of a library's is made by a line of the user's.

    Of `TrainingArguments` the object has its arguments as attributes by then, which may still be changed.
    """
    for module, name, method in _PLACES[library]:
        _after_import(module, functools.partial(_wrap, name=name, method=method, when_called=when_called))


def _after_import(module: str, call: Callable[[Any], None]) -> None:
    known = sys.modules.get(module)
    if known is not None:
        call(known)
    else:
        ImportWatch(module, before=lambda: None, after=call).install()


def _wrap(module: Any, name: str, method: str, when_called: WhenCalled) -> None:
    kind = getattr(module, name)
    original = getattr(kind, method)

    @functools.wraps(original)
    def made(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if _is_called_by_user():
            when_called(self, keywords)
        return original(self, *arguments, **keywords)

    setattr(kind, method, made)


def _is_called_by_user() -> bool:
    """Tell whether the user's own line makes the object, and not a library for itself.

    Between the two stand decorators of the library's, and `__init__` of classes that are derived.
    """
    frame = sys._getframe(2)
    for _ in range(8):
        if is_users(frame.f_code.co_filename):
            return True
        name = frame.f_code.co_name
        if name not in ("__init__", "__post_init__", "insert_env_defaults", "wrapper", "inner"):
            return False
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
