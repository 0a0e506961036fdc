"""Reconstruction of a program from a history."""

from ullage.rebuild.rebuild import UNBOUNDED_BYTES, Rebuilt, program_of

__all__ = ["UNBOUNDED_BYTES", "Rebuilt", "program_of"]
