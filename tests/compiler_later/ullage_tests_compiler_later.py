"""Torch's compiler is imported by who uses it, in most processes that predict in tests.

The first optimizer of a process imports torch._dynamo, only to keep it from tracing: a second of work, a third of a
small prediction, of which nothing comes in a script that compiles nothing. Here a module of its name stands in its
place until anything else of it is asked for. tests/truth, whose figures are those of unobserved runs, the tests of
torch.compile, and all of `make slow` go without this file.
"""

import sys
from types import FunctionType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

_NAME = "torch._dynamo"
_MARK = "__dynamo_disable"
"""The attribute in which torch/_compile.py keeps what it calls in place of a function."""
_marked: "list[FunctionType]" = []


class _StandIn(ModuleType):
    """What an optimizer asks of torch._dynamo; whatever else is asked for is the real one's, which is imported then."""

    @staticmethod
    def graph_break() -> None:
        """Do what it does where nothing is traced."""

    def __getattr__(self, name: str) -> "Any":
        if name == "__path__" and isinstance(sys.modules.get(_NAME), _StandIn):
            return []  # so an import of what is in the package comes to the finder
        # Such names are asked for by what looks through all modules; the path, also by an import of what is in it.
        if name.startswith("__") and (name != "__path__" or _NAME not in sys.modules):
            raise AttributeError(name)
        return getattr(_real(), name)


def _real() -> ModuleType:
    from importlib import import_module

    if isinstance(sys.modules.get(_NAME), _StandIn):
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        for function in _marked:
            vars(function).pop(_MARK, None)
        del sys.modules[_NAME]
    return import_module(_NAME)


class _Again:
    """Loads a module that has been imported since somebody began to look for it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: "ModuleSpec") -> ModuleType:
        """Give the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it was."""
        if module.__spec__ is not self._spec:  # a module of settings lets nobody set it
            module.__spec__ = self._spec


def _inside(name: str) -> "ModuleSpec | None":
    """Import the package for somebody who asks for a module in it, and return where that is.

    Most of them come with the package, and none may be loaded twice: what counts graphs would count in one of the two.
    Python takes what lies in `sys.modules` for something to be loaded from its file, so it is not left there.
    """
    from importlib.machinery import ModuleSpec, PathFinder

    package = _real()
    module = sys.modules.pop(name, None)
    if module is None:
        return PathFinder.find_spec(name, package.__path__)
    return ModuleSpec(name, _Again(module))  # type: ignore[arg-type]  # has the two methods of a loader, not its class


class _Finder:
    """Finds the stand-in and what is in its package, and waits for torch/_compile.py."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        """Return a spec for these alone."""
        if name == _NAME:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, self)  # type: ignore[arg-type]
        if name.startswith(f"{_NAME}.") and isinstance(sys.modules.get(_NAME), _StandIn):
            return _inside(name)
        if name != "torch._compile":
            return None
        others = (finder.find_spec(name, path) for finder in sys.meta_path if finder is not self)
        spec = next(found for found in others if found is not None)
        execute = spec.loader.exec_module

        def execute_and_mark(module: ModuleType) -> None:
            execute(module)
            _mark_what_is_not_traced(module)

        spec.loader.exec_module = execute_and_mark
        return spec

    def create_module(self, spec: "ModuleSpec") -> ModuleType:
        """Make the stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it is."""


def _mark_what_is_not_traced(module: ModuleType) -> None:
    """Have torch/_compile.py call a function that nothing is to trace as it is, without a frame more."""
    original = module._disable_dynamo

    def disable(fn: "Any" = None, recursive: bool = True) -> "Any":  # noqa: FBT002  # as torch has it
        if fn is None:
            return lambda function: disable(function, recursive)
        if isinstance(fn, FunctionType):
            setattr(fn, _MARK, fn)
            _marked.append(fn)
        return original(fn, recursive)

    module._disable_dynamo = disable  # type: ignore[attr-defined]


sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
