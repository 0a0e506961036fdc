"""The GPU-memory toolkit for PyTorch. Importing it starts nothing and needs no torch.

PYTEST_DONT_REWRITE: pytest would warn of a package with a plugin that was imported before, by an emulated card.
"""

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
    from ullage.monitor.monitor import Monitor
    from ullage.ownership.certificate import Certificate
    from ullage.ownership.holding import Holding, Holdings
    from ullage.ownership.isolated import isolated
    from ullage.ownership.owners import owners
    from ullage.ownership.release import release

__version__ = "0.1.0"

_HOMES = {
    "Certificate": "ullage.ownership.certificate",
    "Emulation": "ullage.emulator",
    "EmulationError": "ullage._errors",
    "Guard": "ullage.guard.guard",
    "Holding": "ullage.ownership.holding",
    "Holdings": "ullage.ownership.holding",
    "IsolationError": "ullage._errors",
    "Monitor": "ullage.monitor.monitor",
    "ScriptError": "ullage._errors",
    "TokenBudgetBatchSampler": "ullage.guard.sampler",
    "TorchMissingError": "ullage._errors",
    "UllageError": "ullage._errors",
    "UnknownGpuError": "ullage._errors",
    "UsageError": "ullage._errors",
    "emulate": "ullage.emulator",
    "isolated": "ullage.ownership.isolated",
    "load_ipython_extension": "ullage.integrations.notebook",
    "owners": "ullage.ownership.owners",
    "release": "ullage.ownership.release",
    "unload_ipython_extension": "ullage.integrations.notebook",
}
__all__ = [
    "Certificate",
    "Emulation",
    "EmulationError",
    "Guard",
    "Holding",
    "Holdings",
    "IsolationError",
    "Monitor",
    "ScriptError",
    "TokenBudgetBatchSampler",
    "TorchMissingError",
    "UllageError",
    "UnknownGpuError",
    "UsageError",
    "emulate",
    "isolated",
    "owners",
    "release",
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
