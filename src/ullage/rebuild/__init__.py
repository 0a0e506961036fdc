"""Reconstruction of a program from a history."""

from ullage.rebuild.operation import UNBOUNDED_BYTES
from ullage.rebuild.rebuild import Rebuilder, Rebuilt, program_of
from ullage.rebuild.unrecorded import Unrecorded

__all__ = ["UNBOUNDED_BYTES", "Rebuilder", "Rebuilt", "Unrecorded", "program_of"]
