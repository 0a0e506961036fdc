"""A GPU that is not there: PyTorch's own CUDA build over a CUDA of ours that launches nothing."""

from ullage.emulator.emulate import Emulation, emulate

__all__ = ["Emulation", "emulate"]
