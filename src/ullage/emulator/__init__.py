"""A GPU that is not there: PyTorch's own CUDA build over a CUDA of ours that launches nothing."""

from ullage.emulator.emulate import Emulation, current_emulation, emulate

__all__ = ["Emulation", "current_emulation", "emulate"]
