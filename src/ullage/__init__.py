"""The GPU memory toolkit for PyTorch. Importing it does not start anything and does not need torch.

Each public name is imported when it is first used. `__init__.pyi` lists the public names, for type checkers too. All
other modules are internal.

PYTEST_DONT_REWRITE: without this word, pytest warns about a package with a plugin that is already imported, as it is
in a process with an emulated GPU.
"""

from typing import Any

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """Return the module of every public name."""
    with open(f"{__file__.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        words = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in words}


_HOMES = _homes()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ullage' has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ullage.base.errors import TorchMissingError

        raise TorchMissingError(f"ullage.{name} needs PyTorch, which is not installed: pip install torch") from None


def __dir__() -> list[str]:
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """Add the magics of ullage to IPython, for `%load_ext ullage`."""
    from ullage.integrations.notebook import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics of ullage from IPython, for `%unload_ext ullage`."""
    from ullage.integrations.notebook import unload_ipython_extension as unload

    unload(shell)
