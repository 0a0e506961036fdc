"""Tensors on their way to another library, in a DLPack capsule."""

import ctypes
import datetime
from typing import Any, Final

import torch

CAPSULE: Final[type] = type(datetime.datetime_CAPI)  # types.CapsuleType, from 3.13 on
_OFFSETS: Final = {b"dltensor": 0, b"dltensor_versioned": 32}
"""The offset of the DLTensor in a capsule, by the capsule's name before its tensor is taken out (dlpack.h)."""

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def address_in(capsule: Any) -> int | None:
    """Return the address of the tensor in a capsule; None if the capsule is empty."""
    name = _name_of(capsule)
    if name not in _OFFSETS:
        return None
    start = _pointer_of(capsule, name) + _OFFSETS[name]
    return ctypes.c_void_p.from_address(start).value


def take_out(capsule: Any) -> torch.Tensor | None:
    """Take the tensor out of a capsule, as the other library would; it is freed with its last reference."""
    return torch._C._from_dlpack(capsule) if address_in(capsule) is not None else None
