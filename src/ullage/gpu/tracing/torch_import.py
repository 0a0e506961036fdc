"""Calls right before and right after the first import of a module, whoever imports it.

`ullage predict` needs it for torch: what a script writes into its environment before `import torch` counts, so torch
cannot be imported on its behalf.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch(MetaPathFinder):
    """Waits on `sys.meta_path` for one module; it removes itself once the module is there."""

    def __init__(self, name: str, *, before: Callable[[], None], after: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._before = before
        self._after = after
        self._looking = False
        self._wrapped: Any = None
        """The loader that waits to execute the module."""

    def install(self) -> None:
        """Put this finder before all others."""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Let the other finders find the module, and wrap its execution in the two calls."""
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and hasattr(spec.loader, "exec_module") and spec.loader is not self._wrapped:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        """Put the two calls around the loader's next execution of a module."""
        own = getattr(loader, "__dict__", {}).get("exec_module")  # not its class's, if there is one
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if own is None:
                del loader.exec_module
            else:
                loader.exec_module = own
            self._wrapped = None
            self._before()
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._after(module)

        # Called like what Python leaves out of tracebacks: an error of the module's looks as it does without us.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
        )
        try:
            loader.exec_module = exec_module  # on the instance: it stays of its own class, which packages look at
        except AttributeError:  # one with slots: the module comes without us
            return
        self._wrapped = loader
