"""Describes the path from a variable to an object, such as "train.py:41 local 'losses' -> list[3]".

None of the user's code runs: names are never read with `getattr` or `repr`.
"""

import types
from collections import deque
from collections.abc import Container, Mapping
from typing import Any, Final

import numpy as np
from torch import nn

from ullage.base.source_location import short_place
from ullage.training.ownership.root import variables_of
from ullage.training.ownership.safe_inspection import (
    class_dict,
    closure_of,
    instance_dict,
    is_of,
    name_of,
    slots,
    table_of,
)

_LONGEST_KEY: Final = 40
_SEQUENCES: Final = (list, tuple, deque)
_ANY: Final = "[*]"


def path_of(text: str, chain: list[Any], graphs: Container[int] = (), *, is_general: bool = False) -> str:
    """Return the text of a path along a chain of objects. Each object refers to the next one.

    Args:
        text: the text for the first object of the chain.
        chain: the objects, from the first one to the object that holds the memory.
        graphs: the indices of objects in the chain that an autograd graph keeps alive.
        is_general: whether indices are replaced by a star, "list[*]", so that all elements have the same path.
    """
    parts = [text]
    place = 0
    is_dotted = False
    while place < len(chain) - 1:
        holder = chain[place]
        place += 1
        while place < len(chain) - 1 and _is_between(holder, chain[place]):
            place += 1
        if place in graphs:
            parts.append("grad_fn graph")
            continue
        label = label_of(holder, chain[place], is_general=is_general)
        if label is None:
            continue
        was_dotted, is_dotted = is_dotted, is_of(holder, (nn.Module,)) and label[:1] == "."
        if was_dotted and is_dotted:
            parts[-1] += label  # submodules: their names are joined
        elif is_of(holder, (dict, *_SEQUENCES)) and len(parts) > 1 and parts[-1][-1:] not in ("'", ")"):
            parts[-1] += label  # an attribute of an object
        elif label[:1] in (".", "["):
            parts.append(name_of(type(holder)) + label)
        else:
            parts.append(label or name_of(type(holder)))
    return " -> ".join(parts)


def _is_between(holder: Any, one: Any) -> bool:
    if is_of(one, (types.CellType, types.MappingProxyType)):
        return True
    if is_of(holder, (types.FunctionType,)):
        return any(one is part for part in (holder.__closure__, holder.__defaults__, holder.__kwdefaults__))
    if type(one) is not dict:
        return False
    if is_of(holder, (nn.Module,)) and any(one is table for table in _tables_of(holder)):
        return True
    if is_of(holder, (type,)):
        return "__module__" in one  # `__dict__` of a class is only a view of this dictionary
    return instance_dict(holder) is one


def label_of(holder: Any, child: Any, *, is_general: bool) -> str | None:
    """Return the text for the reference from `holder` to `child`, such as ".name" or "[3]".

    Return None if paths do not show `holder`, for example a traceback.
    """
    if is_of(holder, (types.TracebackType, types.CellType, types.MethodType)):
        return None
    if is_of(holder, (types.FunctionType,)):
        return _of_function(holder, child)
    if is_of(holder, (dict,)):
        return _of_dict(holder, child, is_general=is_general)
    for kind in _SEQUENCES:
        if is_of(holder, (kind,)):
            index = next((index for index, value in enumerate(kind.__iter__(holder)) if value is child), None)
            if index is not None:
                return _ANY if is_general else f"[{index}]"
    frame = _frame_of(holder)
    if frame is not None:
        name = _key_of(variables_of(frame), child)
        place = short_place(frame.f_code.co_filename, frame.f_lineno).rpartition("/")[2]
        return f"{place} {frame.f_code.co_name}() local '{name}'" if name else ""
    if is_of(holder, (type,)):
        name = _key_of(class_dict(holder), child)
        return f"class {name_of(holder)}.{name}" if name else ""
    if is_of(holder, (nn.Module,)):
        for table in _tables_of(holder):
            name = _key_of(table, child)
            if name:
                return f".{name}"
    if type(holder) is np.ndarray:
        index = next((index for index, value in enumerate(holder.flat) if value is child), None)
        return f"[{index}]" if index is not None and not is_general else _ANY
    name = _key_of((instance_dict(holder) or {}) | dict(slots(holder)), child)
    return f".{name}" if name else ""


def _tables_of(module: nn.Module) -> list[dict[str, Any]]:
    return [table_of(module, name) for name in ("_modules", "_parameters", "_buffers")]


def _of_function(function: types.FunctionType, child: Any) -> str:
    for name, content in closure_of(function):
        if content is child:
            return f"{function.__name__}() closure '{name}'"
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = dict(zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False))
    default = _key_of(defaults | (function.__kwdefaults__ or {}), child)
    if default:
        return f"{function.__name__}() default of '{default}'"
    own = _key_of(function.__dict__, child)
    return f"{function.__name__}.{own}" if own else f"{function.__name__}()"


def _of_dict(holder: Any, child: Any, *, is_general: bool) -> str:
    for key, value in dict.items(holder):
        if value is child:
            return _ANY if is_general and type(key) is not str else f"[{_key_text(key)}]"
        if key is child:
            return _ANY if is_general else "[a key]"
    return ""


def _frame_of(holder: Any) -> types.FrameType | None:
    if is_of(holder, (types.FrameType,)):
        return holder  # type: ignore[no-any-return]  # is_of does not narrow
    for kind, name in (
        (types.GeneratorType, "gi_frame"),
        (types.CoroutineType, "cr_frame"),
        (types.AsyncGeneratorType, "ag_frame"),
    ):
        if is_of(holder, (kind,)):
            return getattr(holder, name)  # type: ignore[no-any-return]  # the same
    return None


def _key_of(variables: Mapping[Any, Any], child: Any) -> str | None:
    return next((str(name) for name, value in variables.items() if value is child and type(name) is str), None)


def _key_text(key: Any) -> str:
    if type(key) is str:
        return repr(key if len(key) <= _LONGEST_KEY else key[:_LONGEST_KEY] + "...")
    if type(key) in (int, float, bool, type(None)):
        return repr(key)
    return f"a {name_of(type(key))}"
