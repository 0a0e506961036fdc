"""Changes the optimizers' default implementation (foreach, fused), where a script leaves the choice to PyTorch."""

import functools
import inspect
from types import ModuleType
from typing import Any, Final

OPTIMIZER_DEFAULTS: Final = {"fused": {"fused": True}, "foreach=False": {"foreach": False}}


def set_default(torch: ModuleType, **default: bool) -> list[str]:
    """Give every optimizer of torch.optim a keyword argument, unless the script passes it or its alternative.

    Returns:
        A list to which the class name of each optimizer that got the argument is added.
    """
    taken: list[str] = []
    for kind in vars(torch.optim).values():
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            continue
        original = vars(kind).get("__init__")
        if original is not None and default.keys() <= inspect.signature(original).parameters.keys():
            setattr(kind, "__init__", _with_default(original, kind, default, taken))  # noqa: B010  mypy is right otherwise
    return taken


def _with_default(original: Any, kind: type, default: dict[str, bool], taken: list[str]) -> Any:
    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        # AdamW hands its choice on to Adam, whose __init__ then sees a choice made.
        if not {"fused", "foreach"} & {name for name, value in keywords.items() if value is not None}:
            keywords |= default
            taken.append(kind.__name__)
        original(self, *arguments, **keywords)

    return init
