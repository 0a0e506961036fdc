"""Finds the variables that a loss function or a module's forward may change.

These are closure variables, global variables, attributes of classes, and the object of a method.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from ullage.training.guard.state.objects.content_node import attributes_of
from ullage.training.guard.state.objects.contents import Contents
from ullage.training.guard.state.objects.node_of import is_installed

# The maximum depth of function calls. The variables of functions called at a greater depth are not recorded.
_DEEPEST: Final = 3


# The methods that Python syntax calls, such as `__getitem__` for `x[0]`. Their names do not occur in the code.
_BY_SYNTAX: Final = frozenset(
    f"__{name}__"
    for name in (
        *("call", "getitem", "setitem", "getattr", "enter", "exit", "iter", "next", "len", "contains", "float", "bool"),
        *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "iadd", "imul"),
    )
)


def record_function(contents: Contents, function: Any) -> None:
    """Record the variables that a function may change, including those of user functions that it calls."""
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
            waiting += [(inner, depth + by) for inner, by in _record_variables(contents, one)]
        elif isinstance(one, nn.Module):
            contents.add("the loss function", one)
            waiting.append((type(one).forward, depth))
        elif not isinstance(one, type) and callable(one):
            contents.add("the loss function", one)
            waiting.append((getattr(type(one), "__call__", None), depth + 1))  # noqa: B004


def record_methods(contents: Contents, kinds: Iterable[type]) -> None:
    """Record the global variables and classes that the methods of the user's modules may change."""
    for kind in kinds:
        for one in kind.__mro__:
            if issubclass(one, nn.Module) and not is_installed(one):
                for method in vars(one).values():
                    if isinstance(method, FunctionType):
                        record_function(contents, method)


def record_autograd_functions(contents: Contents) -> None:
    """Record what the user's subclasses of `torch.autograd.Function` may change, in backward too."""
    for kind in _subclasses_of(torch.autograd.Function):
        if is_installed(kind):
            continue
        contents.add_class(kind.__qualname__, kind)
        for method in vars(kind).values():
            function = getattr(method, "__func__", method)
            if isinstance(function, FunctionType):
                record_function(contents, function)


def _subclasses_of(kind: type) -> Iterator[type]:
    one: type
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses_of(one)


def _record_variables(contents: Contents, function: FunctionType) -> Iterator[tuple[Any, int]]:
    # Each function comes with the number of call levels that it adds: 0 for a function in a closure, otherwise 1.
    for path, attributes in attributes_of(function.__name__, function):
        contents.add(path, attributes)
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        contents.add(name, cell)
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if isinstance(content, FunctionType | MethodType | partial):
            yield content, 0
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        contents.add("a default of the loss function", default)
    namespace = function.__globals__
    names = _names_of(code)
    for name in names:
        if name not in namespace:
            continue
        value = namespace[name]
        if not isinstance(value, ModuleType):
            yield from ((one, 1) for one in _record_name(contents, namespace, name))
        elif not is_installed(value):
            inside = vars(value)
            of_module = [one for one in names if one in inside and not isinstance(inside[one], ModuleType)]
            yield from ((one, 1) for inner in of_module for one in _record_name(contents, inside, inner))
    called = _BY_SYNTAX.union(names)
    for kind in contents.classes:
        for name in vars(kind).keys() & called:
            method = vars(kind)[name]
            method = getattr(method, "__func__", None) or getattr(method, "fget", None) or method
            if isinstance(method, FunctionType):
                yield method, 1


def _record_name(contents: Contents, namespace: dict[str, Any], name: str) -> Iterator[Any]:
    value = namespace[name]
    if isinstance(value, type):
        if not is_installed(value):
            contents.add_class(name, value)
    elif isinstance(value, FunctionType | MethodType | partial):
        if not is_installed(value.func if isinstance(value, partial) else value):
            yield value
    else:
        contents.add_name(name, namespace, name)


@lru_cache(maxsize=1024)
def _names_of(code: CodeType) -> tuple[str, ...]:
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names_of(one)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))
