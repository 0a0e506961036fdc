"""Reconstruction of a program from a history."""

from ullage.rebuild.operation import UNBOUNDED_BYTES
from ullage.rebuild.rebuild import Rebuilt, program_of
from ullage.rebuild.unrecorded import Unrecorded

__all__ = ["UNBOUNDED_BYTES", "Rebuilt", "Unrecorded", "program_of"]
