"""The GPU memory toolkit for PyTorch. Importing it does not start anything and does not need torch.

Each public name is imported when it is first used. `__init__.pyi` lists the public names, and type checkers read this
list. All other modules are internal.

PYTEST_DONT_REWRITE: without this word, pytest warns about a package with a plugin that is already imported. In a
process with an emulated GPU, this package is already imported.
"""

from typing import Any

from ullage.base.lazy_names import loaded, modules_of_names

__version__ = "0.1.0"
_MODULES = modules_of_names(f"{__file__.removesuffix('.py')}.pyi")
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    return loaded(name, _MODULES, globals())


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """Add ullage's magic commands to IPython. IPython calls this function for `%load_ext ullage`."""
    from ullage.integrations.notebook import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove ullage's magic commands from IPython. IPython calls this function for `%unload_ext ullage`."""
    from ullage.integrations.notebook import unload_ipython_extension as unload

    unload(shell)
