"""Which record an object gets."""

import random
import sys
from collections import deque
from collections.abc import Callable, MutableMapping
from queue import SimpleQueue
from types import CellType
from typing import Any, Final

import torch
from torch import nn

from ullage.training.guard.state.objects.content_node import (
    FEW,
    ContentNode,
    DictNode,
    ElementsNode,
    LargeNode,
    ProgressNode,
    SlotsNode,
    StateNode,
    reference_of_cell,
    slots_of,
)

_ARRAY_BYTES: Final = 64 << 20
_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module())) - {"training", "_parameters", "_modules", "_buffers"}
"""Attributes that every module has for its hooks, which `flags` puts back."""


def node_of(path: str, value: Any, is_opened: Callable[[Any], bool]) -> ContentNode | None:
    """Return the record of an object that can change; None for all others."""
    stateful = _stateful_of(path, value)
    if stateful is not None:
        return stateful
    if isinstance(value, list | tuple | deque | set | bytearray | MutableMapping):
        if isinstance(value, MutableMapping) and not isinstance(value, dict):
            return _opened(path, value, is_opened)
        if len(value) > FEW:
            return LargeNode(path, value)
        if isinstance(value, dict):
            return DictNode(path, value)
        return ElementsNode(path, value)
    if hasattr(type(value), "__next__") or type(value) is SimpleQueue:
        return ProgressNode(path, value)
    return _opened(path, value, is_opened)


def _opened(path: str, value: Any, is_opened: Callable[[Any], bool]) -> ContentNode | None:
    if not is_opened(value):
        return None
    if isinstance(getattr(value, "__dict__", None), dict):
        left_out = _OF_EVERY_MODULE if isinstance(value, nn.Module) else frozenset[str]()
        return DictNode(
            path,
            vars(value),
            is_of_attributes=True,
            left_out=left_out,
            always_counts=isinstance(value, nn.Module) or type(value).__module__.startswith("torch."),
        )
    return SlotsNode(path, value) if any(map(slots_of, type(value).__mro__)) else None


def _stateful_of(path: str, value: Any) -> ContentNode | None:
    if isinstance(value, CellType):
        return reference_of_cell(path, value)
    if isinstance(value, torch.Generator):
        return StateNode(path, value, value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return None if value is random._inst else StateNode(path, value, value.getstate, value.setstate)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.ndarray):
        if value.dtype.hasobject or value.nbytes > _ARRAY_BYTES:
            return None
        return StateNode(path, value, value.copy, lambda saved: numpy.copyto(value, saved))
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return StateNode(path, value, lambda: bits.state, lambda saved: setattr(bits, "state", saved))
    if isinstance(value, numpy.random.RandomState):
        return StateNode(path, value, lambda: value.get_state(legacy=False), value.set_state)
    return None
