"""Keep what Python needs to import modules, because a script may clear it."""

import sys
from types import ModuleType
from typing import Any


class KeptImports:
    """A copy of the import state of the interpreter: `sys.modules`, and the lists that the import system searches."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        self._lists: list[tuple[str, list[Any]]] = []

    def keep(self) -> None:
        """Copy the present import state."""
        self._modules = dict(sys.modules)
        self._lists = [(name, list(getattr(sys, name))) for name in ("path", "meta_path", "path_hooks")]

    def restore(self) -> None:
        """Add the modules and list entries that are missing now. What the script has replaced or added stays."""
        for name, module in self._modules.items():
            sys.modules.setdefault(name, module)
        for name, entries in self._lists:
            now = getattr(sys, name)
            now += [entry for entry in entries if not any(entry is other or entry == other for other in now)]
