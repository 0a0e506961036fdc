"""Lightning's precision plugins: which of them step the optimizer in a way that a guard can, and their scalers."""

from typing import Any, Final

from ullage.base.errors import UsageError
from ullage.integrations.framework import OwnScaling

_STEP_AS_WE_DO: Final = ("Precision", "MixedPrecision")


def scaler_of(plugin: Any) -> Any:
    """Return the scaler of a precision plugin.

    Raises:
        UsageError: the plugin steps the optimizer in a way that a guard does not.
    """
    home = next(kind for kind in type(plugin).__mro__ if "optimizer_step" in vars(kind))
    if home.__name__ not in _STEP_AS_WE_DO:
        raise UsageError(
            f"the precision plugin {type(plugin).__name__} steps the optimizer in a way of its own, which cannot be "
            "guarded; expected precision '32-true', '64-true', 'bf16-mixed', '16-mixed' or another without one"
        )
    scaler = getattr(plugin, "scaler", None)
    return None if scaler is None else OwnScaling(scaler)
