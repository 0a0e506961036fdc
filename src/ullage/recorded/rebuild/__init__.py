"""Reconstructs the allocator operations of a run (`Program`) from the recording of one device (`History`)."""

from ullage.recorded.rebuild.before import Unrecorded
from ullage.recorded.rebuild.operation import UNBOUNDED_BYTES
from ullage.recorded.rebuild.rebuild import Rebuilder, Rebuilt, program_of

__all__ = ["UNBOUNDED_BYTES", "Rebuilder", "Rebuilt", "Unrecorded", "program_of"]
