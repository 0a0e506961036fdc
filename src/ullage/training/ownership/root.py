"""Lists the variables and exceptions at which the search for tensors begins."""

import contextvars
import inspect
import signal
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Final

from ullage.base.source_location import is_library, short_place
from ullage.training.ownership.holding import HolderKind
from ullage.training.ownership.safe_inspection import class_dict

_OWN: Final = "ullage.training.ownership"
_OURS: Final = "ullage."
_KEPT_BY_SYS: Final = ("last_exc", "last_value", "last_traceback")
_NOTEBOOK_HISTORY: Final = ("Out", "_", "__", "___", "_oh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A variable or an exception at which the search for tensors begins."""

    value: Any
    kind: HolderKind
    text: str
    variable: str = ""
    """The name of the variable at which the search for tensors begins. Empty if the search begins at an exception."""
    file: str = ""
    """The file that contains the variable."""
    function: str = ""
    """The function that has this local variable. Empty for a global variable."""


def roots_of_user() -> Iterator[Root]:
    """Yield the variables of the user's functions, modules and notebook cells, and exceptions that are kept alive."""
    frames = list(_frames())
    lines = {
        id(frame.f_globals): frame.f_lineno
        for frame in reversed(frames)
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "importlib._bootstrap"
    }
    for frame in frames:
        if _is_of_user(frame):
            yield from _locals_of(frame, HolderKind.LOCAL)
    for module in _modules():
        if is_of_user(module):
            yield from _globals_of(module, lines.get(id(_dict_of(module))))
    for variable, value in contextvars.copy_context().items():
        yield Root(value=value, kind=HolderKind.GLOBAL, text=f"context variable '{variable.name}'")
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler is not None and not isinstance(handler, int):
            yield Root(value=handler, kind=HolderKind.GLOBAL, text=f"handler of signal {int(number)}")
    yield from _exceptions()


def roots_of_libraries() -> Iterator[Root]:
    """Yield the variables of library modules and of running library functions."""
    for frame in _frames():
        if not _is_of_user(frame):
            yield from _locals_of(frame, HolderKind.LIBRARY)
    for module in _modules():
        if not is_of_user(module):
            yield Root(value=_dict_of(module), kind=HolderKind.LIBRARY, text=f"module {_name_of(module)}")


def module_dicts() -> frozenset[int]:
    """Return the `id`s of all Python modules and of their dictionaries, which the search skips."""
    modules = list(_modules())
    return frozenset({id(module) for module in modules} | {id(_dict_of(module)) for module in modules})


def is_of_user(module: ModuleType) -> bool:
    """Return whether a Python module is the user's, and not part of a library."""
    name, variables = _name_of(module), _dict_of(module)
    if name in ("__main__", "__mp_main__"):
        return True
    file = variables.get("__file__")
    return isinstance(file, str) and not is_library(file) and name.partition(".")[0] != "ullage"


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return the local variables of a running function, without leaving a copy of them in its frame.

    Up to Python 3.12, reading `f_locals` leaves a dictionary in the frame, which keeps old values alive. This function
    clears the dictionary, except while a debugger is active.
    """
    found = frame.f_locals
    variables = dict(found)
    is_copy = isinstance(found, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.gettrace() is None:
        found.clear()
    return variables


def _frames() -> Iterator[FrameType]:
    own = threading.get_ident()
    by_thread = sys._current_frames()
    for thread in sorted(by_thread, key=lambda thread: thread != own):
        frame: FrameType | None = by_thread[thread]
        while frame is not None:
            if not _module_of(frame).startswith(_OWN):
                yield frame
            frame = frame.f_back


def _is_of_user(frame: FrameType) -> bool:
    return not is_library(frame.f_code.co_filename) and not _module_of(frame).startswith(_OURS)


def _module_of(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if type(name) is str else ""


def _locals_of(frame: FrameType, kind: HolderKind) -> Iterator[Root]:
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return  # module-level code: the module's variables are separate roots
    place = short_place(frame.f_code.co_filename, frame.f_lineno).rpartition("/")[2]
    for name, value in variables_of(frame).items():
        yield Root(
            value=value,
            kind=kind,
            text=f"{place} local '{name}'",
            variable=name,
            file=frame.f_code.co_filename,
            function=frame.f_code.co_qualname,
        )


def _globals_of(module: ModuleType, line: int | None) -> Iterator[Root]:
    variables = _dict_of(module)
    file = variables.get("__file__")
    name = file.replace("\\", "/").rpartition("/")[2] if isinstance(file, str) else _name_of(module)
    place = f"{name}:{line}" if line is not None else name
    is_notebook = "get_ipython" in variables and _name_of(module) == "__main__"
    late = []
    for key, value in list(variables.items()):
        if not isinstance(key, str) or isinstance(value, ModuleType):
            continue
        if is_notebook and (key in _NOTEBOOK_HISTORY or (key.strip("_0123456789i") == "" and key.startswith("_"))):
            late.append(Root(value=value, kind=HolderKind.NOTEBOOK, text=f"notebook {key}"))
        else:
            text = f"{place} global '{key}'"
            where = file if isinstance(file, str) else ""
            yield Root(value=value, kind=HolderKind.GLOBAL, text=text, variable=key, file=where)
    yield from late


def _exceptions() -> Iterator[Root]:
    for name in _KEPT_BY_SYS:
        value = vars(sys).get(name)
        if value is not None:
            yield Root(value=value, kind=HolderKind.TRACEBACK, text=f"sys.{name}")
    handled = sys.exc_info()[1]
    if handled is not None:
        yield Root(value=handled, kind=HolderKind.TRACEBACK, text="the exception that is being handled")


def _modules() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if issubclass(type(module), ModuleType)]


def _dict_of(module: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = types.ModuleType.__getattribute__(module, "__dict__")
    return found


def _name_of(module: ModuleType) -> str:
    name = _dict_of(module).get("__name__")
    return name if isinstance(name, str) else "?"


def is_of_user_class(kind: type) -> bool:
    """Return whether a class is defined in one of the user's modules."""
    name = class_dict(kind).get("__module__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and issubclass(type(module), ModuleType) and is_of_user(module)
