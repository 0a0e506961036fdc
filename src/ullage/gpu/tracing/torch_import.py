"""Call functions right before and right after a module is first imported.

`ullage predict` uses this for torch. A script may set environment variables before `import torch`, so ullage must not
import torch first.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch(MetaPathFinder):
    """A finder on `sys.meta_path` that waits for the import of one module, and then removes itself."""

    def __init__(self, name: str, *, before: Callable[[], None], after: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._before = before
        self._after = after
        self._looking = False
        self._wrapped: Any = None

    def install(self) -> None:
        """Put this finder before all others on `sys.meta_path`."""
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the watched module with Python's usual finders, and make its import call `before` and `after`."""
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
        own = getattr(loader, "__dict__", {}).get("exec_module")  # only if set on the instance, not on its class
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

        # Named like frames that Python leaves out of tracebacks, so that an exception of the module looks as without
        # ullage.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
        )
        try:
            loader.exec_module = (
                exec_module  # set on the instance, so that its class stays unchanged for packages that check it
            )
        except AttributeError:  # A loader with slots: the module is imported without the calls.
            return
        self._wrapped = loader
