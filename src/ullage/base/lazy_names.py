"""Import public names only when they are first used, so that `import ullage` is fast.

A stub file (`__init__.pyi` or `result_types.pyi`) lists the names. Type checkers read the same stub.
"""

import importlib
from typing import Any


def modules_of_names(stub: str) -> dict[str, str]:
    """Map each name in a stub file to the module that defines it.

    Args:
        stub: path of a stub with lines of the form `from MODULE import NAME as NAME`.
    """
    with open(stub, encoding="utf-8") as file:
        words = [line.split() for line in file if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in words}


def loaded(name: str, modules: dict[str, str], namespace: dict[str, Any]) -> Any:
    """Import a public name when it is first used, and store its value in `namespace`.

    The value is stored because `typing.get_type_hints` looks names up in the namespace.

    Args:
        name: the public name.
        modules: maps each public name to the module that defines it.
        namespace: the `__dict__` of the module from which users import the name.

    Raises:
        AttributeError: `modules` does not contain the name.
        TorchMissingError: the name needs PyTorch, which is not installed.
    """
    if name not in modules:
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(modules[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ullage.base.errors import TorchMissingError

        raise TorchMissingError(
            f"{namespace['__name__']}.{name} needs PyTorch, which is not installed: pip install torch"
        ) from None
    namespace[name] = value
    return value
