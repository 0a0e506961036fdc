"""The types of the values inside ullage's results, for type annotations: `from ullage.result_types import Remedy`.

Results such as `ullage.Explanation` are exported by `ullage` itself. `result_types.pyi` lists the names of this module.
"""

from typing import Any

from ullage.base.lazy_names import loaded, modules_of_names

_MODULES = modules_of_names(f"{__file__.removesuffix('.py')}.pyi")
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    return loaded(name, _MODULES, globals())


def __dir__() -> list[str]:
    return sorted(__all__)
