"""What a loss function, and the forward of a module, refer to beside the model and the batch: variables around them,
their object, global names, and classes."""

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from torch import nn

from ullage.guard.contents import Contents

_DEEPEST: Final = 3
"""The number of functions, each called by the one before, that are looked into."""


def record_function(contents: Contents, function: Any) -> None:
    """Record the variables that a function, and the user's functions that it names, can change."""
    seen: set[int] = set()
    waiting = [(function, 0)]
    while waiting:
        one, depth = waiting.pop()
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        if isinstance(one, partial):
            contents.add("an argument of the loss function", [one.args, one.keywords])
            waiting.append((one.func, depth))
        elif isinstance(one, MethodType):
            contents.add("self", one.__self__)
            waiting.append((one.__func__, depth))
        elif isinstance(one, FunctionType):
            waiting += [(inner, depth + 1) for inner in _record_variables(contents, one)]
        elif not isinstance(one, type | nn.Module) and callable(one):
            contents.add("the loss function", one)
            waiting.append((getattr(type(one), "__call__", None), depth + 1))  # noqa: B004


def record_methods(contents: Contents, kinds: Iterable[type]) -> None:
    """Record the global names and classes that the methods of the user's module classes can change."""
    for kind in kinds:
        for one in kind.__mro__:
            if issubclass(one, nn.Module) and not _is_installed(one):
                for method in vars(one).values():
                    if isinstance(method, FunctionType):
                        record_function(contents, method)


def _record_variables(contents: Contents, function: FunctionType) -> Iterator[Any]:
    """Record a function's variables from outside; yield the functions among them."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        contents.add(name, cell)
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if isinstance(content, FunctionType | MethodType | partial):
            yield content
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        contents.add("a default of the loss function", default)
    namespace = function.__globals__
    for name in _names_of(code):
        if name not in namespace or isinstance(value := namespace[name], ModuleType):
            continue
        if isinstance(value, type):
            if not _is_installed(value):
                contents.add_class(name, value)
            continue
        if isinstance(value, FunctionType | MethodType | partial):
            if not _is_installed(value):
                yield value
        else:
            contents.add_name(name, namespace, name)


@lru_cache(maxsize=1024)
def _names_of(code: CodeType) -> tuple[str, ...]:
    """Return the names that a function's code, and that of functions inside it, may look up globally."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names_of(one)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _is_installed(function: Any) -> bool:
    home = getattr(function, "__module__", None) or ""
    if home == "__main__":
        return False
    where = getattr(sys.modules.get(home), "__file__", None) or ""
    return "site-packages" in where or home.partition(".")[0] in sys.stdlib_module_names or not where
