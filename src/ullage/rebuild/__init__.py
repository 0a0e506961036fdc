"""A history becomes a program."""

from ullage.rebuild.rebuild import UNBOUNDED_BYTES, Rebuilt, program_of, settings_of

__all__ = ["UNBOUNDED_BYTES", "Rebuilt", "program_of", "settings_of"]
