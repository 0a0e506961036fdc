"""Explain which states of an 8-bit optimizer are not stored in 8 bits.

bitsandbytes and torchao store the states of some parameters in full precision, so they save less than expected.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from ullage.base.units import text_of_bytes
from ullage.training.ownership.safe_inspection import instance_dict, mro_of
from ullage.training.ownership.storage import parts_of_tensor

_LIBRARIES: Final = ("bitsandbytes", "torchao")
# This number is in the code of torchao's `_AdamBase._new_buffer`. In bitsandbytes it is the argument `min_8bit_size`.
_LEAST_ELEMENTS: Final = 4096
# The smallest fraction of the states in full precision for which the report has a note.
_LEAST_SHARE: Final = 0.01


@dataclass(slots=True)
class _FullStates:
    parameters: int = 0
    elements: int = 0
    bytes: int = 0


def notes_on_states(optimizers: Iterable[Optimizer]) -> list[str]:
    """Return a note for each 8-bit optimizer that stores some of its states in full precision.

    The rules are those of bitsandbytes 0.50 (`Optimizer1State.init_state`, `Optimizer2State.init_state`) and of torchao
    0.18 (`_AdamBase._new_buffer`).
    """
    return [note for optimizer in optimizers if (note := _note_on(optimizer))]


def _note_on(optimizer: Optimizer) -> str:
    library = _library_of(optimizer)
    if library is None:
        return ""
    groups: dict[str, _FullStates] = defaultdict(_FullStates)
    total_bytes = 0
    for parameter, states in _states_of(optimizer):
        total_bytes += sum(_bytes_of(state) for state in states)
        full = [state for state in states if _is_full(state, parameter)]
        if full:
            group = groups[_reason(optimizer, library, parameter.numel())]
            group.parameters += 1
            group.elements += parameter.numel()
            group.bytes += sum(_bytes_of(state) for state in full)
    full_bytes = sum(group.bytes for group in groups.values())
    if full_bytes < max(1, _LEAST_SHARE * total_bytes):
        return ""
    rows = "; ".join(_text_of(reason, group) for reason, group in groups.items())
    return (
        f"{type(optimizer).__name__} of {library} does not store {text_of_bytes(full_bytes)} of its "
        f"{text_of_bytes(total_bytes)} of states in low precision: {rows}"
    )


def _library_of(optimizer: Optimizer) -> str | None:
    names = {kind.__module__.partition(".")[0] for kind in mro_of(type(optimizer))}
    library = next((name for name in _LIBRARIES if name in names), None)
    if library == "bitsandbytes" and _argument(optimizer, "optim_bits") != 8:
        return None
    if library == "torchao" and not hasattr(type(optimizer), "_subclass_zeros"):
        return None
    return library


def _argument(optimizer: Optimizer, name: str) -> Any:
    return getattr((instance_dict(optimizer) or {}).get("args"), name, None)


def _states_of(optimizer: Optimizer) -> Iterator[tuple[Tensor, list[Tensor]]]:
    for parameter, states in optimizer.state.items():
        if isinstance(parameter, Tensor) and isinstance(states, dict):
            yield parameter, [state for state in states.values() if isinstance(state, Tensor)]


# The states of the other parameters are integers with scales, or a tensor subclass that contains both.
def _is_full(state: Tensor, parameter: Tensor) -> bool:
    is_whole = state.numel() == parameter.numel() > 1 and state.dtype.is_floating_point
    return is_whole and state.itemsize > 1 and not parts_of_tensor(state)


def _bytes_of(state: Tensor) -> int:
    return sum(part.numel() * part.itemsize for part in parts_of_tensor(state) or (state,))


def _reason(optimizer: Optimizer, library: str, elements: int) -> str:
    least = _LEAST_ELEMENTS if library == "torchao" else _argument(optimizer, "min_8bit_size") or 0
    if elements < least:
        return f"with fewer than {least:,} elements"
    if library == "torchao":
        return f"whose number of elements is not a multiple of {(instance_dict(optimizer) or {}).get('block_size')}"
    return "that GlobalOptimManager keeps in 32 bits (transformers' Trainer does so for nn.Embedding)"


def _text_of(reason: str, group: _FullStates) -> str:
    many = f"{group.parameters:,} parameter{'s' if group.parameters > 1 else ''}"
    return f"{text_of_bytes(group.bytes)} for {many} {reason}, {group.bytes / group.elements:.1f} bytes per element"
