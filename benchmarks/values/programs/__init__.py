"""Small programs in which values decide sizes, each the same on the host's CPU and on a card.

A program gets the device, and notes the sizes that its values decide. Weights are freshly initialised, data made up.
"""

from programs import choices, detection, generation, graphs, mixtures, tokens
from programs.registry import PROGRAMS, Note, Program

__all__ = ["PROGRAMS", "Note", "Program", "choices", "detection", "generation", "graphs", "mixtures", "tokens"]
