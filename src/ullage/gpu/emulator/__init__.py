"""The emulated GPU: PyTorch's own CUDA build runs on ullage's CUDA libraries, which run no kernels."""

from ullage.gpu.emulator.emulate import Emulation, emulate

__all__ = ["Emulation", "emulate"]
