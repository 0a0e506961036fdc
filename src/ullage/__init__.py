"""The GPU-memory toolkit for PyTorch. Importing it starts nothing and needs no torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage._errors import (
        EmulationError,
        IsolationError,
        ScriptError,
        TorchMissingError,
        UllageError,
        UnknownGpuError,
        UsageError,
    )
    from ullage.emulator import Emulation, emulate
    from ullage.guard.guard import Guard
    from ullage.guard.sampler import TokenBudgetBatchSampler
    from ullage.ownership.isolated import isolated

__version__ = "0.1.0"

_HOMES = {
    "Emulation": "ullage.emulator",
    "EmulationError": "ullage._errors",
    "Guard": "ullage.guard.guard",
    "IsolationError": "ullage._errors",
    "ScriptError": "ullage._errors",
    "TokenBudgetBatchSampler": "ullage.guard.sampler",
    "TorchMissingError": "ullage._errors",
    "UllageError": "ullage._errors",
    "UnknownGpuError": "ullage._errors",
    "UsageError": "ullage._errors",
    "emulate": "ullage.emulator",
    "isolated": "ullage.ownership.isolated",
}
__all__ = [
    "Emulation",
    "EmulationError",
    "Guard",
    "IsolationError",
    "ScriptError",
    "TokenBudgetBatchSampler",
    "TorchMissingError",
    "UllageError",
    "UnknownGpuError",
    "UsageError",
    "emulate",
    "isolated",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ullage' has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ullage._errors import TorchMissingError

        raise TorchMissingError(
            f"ullage.{name} needs PyTorch, which is not installed here: pip install torch"
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
