"""A GPU that is not there: PyTorch's own CUDA build on top of our CUDA libraries, which launch nothing."""

from ullage.gpu.emulator.emulate import Emulation, emulate

__all__ = ["Emulation", "emulate"]
