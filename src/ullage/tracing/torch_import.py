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
        if spec is not None and spec.loader is not None:
            # On the instance: the loader stays of its own class, which packages look at.
            loader: Any = spec.loader
            original = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                self._before()
                original(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self._after(module)

            loader.exec_module = exec_module
        return spec
