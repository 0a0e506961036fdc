"""Finds the variables that a loss function or a module's forward may change.

These are closure variables, global variables, attributes of classes, and the object of a method.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from ullage.training.guard.state.objects.graph import FoundIn, Graph
from ullage.training.guard.state.objects.installed import is_installed
from ullage.training.guard.state.objects.node import attributes_of

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


def record_function(graph: Graph, function: Any, place: FoundIn) -> None:
    """Record the variables that a function may change, including those of user functions that it calls."""
    seen: set[int] = set()
    waiting = [(function, 0)]
    while waiting:
        one, depth = waiting.pop()
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        if isinstance(one, partial):
            graph.add("an argument of the loss function", [one.args, one.keywords], place)
            waiting.append((one.func, depth))
        elif isinstance(one, MethodType):
            graph.add("self", one.__self__, place)
            waiting.append((one.__func__, depth))
        elif isinstance(one, FunctionType):
            waiting += [(inner, depth + by) for inner, by in _record_variables(graph, one, place)]
        elif isinstance(one, nn.Module):
            graph.add("the loss function", one, place)
            waiting.append((type(one).forward, depth))
        elif not isinstance(one, type) and callable(one):
            graph.add("the loss function", one, place)
            waiting.append((getattr(type(one), "__call__", None), depth + 1))  # noqa: B004


def record_methods(graph: Graph, kinds: Iterable[type]) -> None:
    """Record the global variables and classes that the methods of the user's modules may change."""
    for kind in kinds:
        for one in kind.__mro__:
            if issubclass(one, nn.Module) and not is_installed(one):
                _record_methods_of(graph, one)


def record_autograd_functions(graph: Graph) -> None:
    """Record what the user's subclasses of `torch.autograd.Function` may change, in backward too."""
    for kind in _subclasses_of(torch.autograd.Function):
        if not is_installed(kind):
            graph.add_class(kind.__qualname__, kind, FoundIn.FORWARD)
            _record_methods_of(graph, kind)


def _record_methods_of(graph: Graph, kind: type) -> None:
    for method in vars(kind).values():
        function = getattr(method, "__func__", method)
        if isinstance(function, FunctionType):
            record_function(graph, function, FoundIn.FORWARD)


def _subclasses_of(kind: type) -> Iterator[type]:
    one: type
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses_of(one)


def _record_variables(graph: Graph, function: FunctionType, place: FoundIn) -> Iterator[tuple[Any, int]]:
    # Each function comes with the number of call levels that it adds: 0 for a function in a closure, otherwise 1.
    for path, attributes in attributes_of(function.__name__, function):
        graph.add(path, attributes, place)
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        graph.add(name, cell, place)
        try:
            content = cell.cell_contents
        except ValueError:
            continue
        if isinstance(content, FunctionType | MethodType | partial):
            yield content, 0
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        graph.add("a default of the loss function", default, place)
    namespace = function.__globals__
    graph.watch_size(namespace)
    names = _names_of(code)
    for name in names:
        if name not in namespace:
            continue
        value = namespace[name]
        graph.add_variable(name, namespace, name, place)
        if not isinstance(value, ModuleType):
            yield from ((one, 1) for one in _record_name(graph, namespace, name, place))
        elif not is_installed(value):
            inside = vars(value)
            graph.watch_size(inside)
            of_module = [one for one in names if one in inside and not isinstance(inside[one], ModuleType)]
            yield from ((one, 1) for inner in of_module for one in _record_name(graph, inside, inner, place))
    called = _BY_SYNTAX.union(names)
    for kind in graph.classes:
        for name in vars(kind).keys() & called:
            method = vars(kind)[name]
            method = getattr(method, "__func__", None) or getattr(method, "fget", None) or method
            if isinstance(method, FunctionType):
                yield method, 1


def _record_name(graph: Graph, namespace: dict[str, Any], name: str, place: FoundIn) -> Iterator[Any]:
    graph.add_variable(name, namespace, name, place)
    value = namespace[name]
    if isinstance(value, type):
        if not is_installed(value):
            graph.add_class(name, value, place)
    elif isinstance(value, FunctionType | MethodType | partial):
        if not is_installed(value.func if isinstance(value, partial) else value):
            yield value
    else:
        graph.add(name, value, place)


def version_of_autograd_functions() -> str:
    """Return a text that changes when a subclass of `torch.autograd.Function` is defined."""
    counter = getattr(torch.autograd.function, "AUTOGRAD_FUNCTION_COUNTER", None)  # since torch 2.1
    return repr(counter) if counter is not None else str(len(torch.autograd.Function.__subclasses__()))


@lru_cache(maxsize=1024)
def _names_of(code: CodeType) -> tuple[str, ...]:
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names_of(one)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))
