"""A question to a GPU, and the GPU that answers: the real one, or an emulated one in a dry run and a comparison."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Answer = dict[str, Any]
"""What a question's process returns: JSON data. Sizes are in bytes, durations in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One measurement, made in a process of its own."""

    name: str
    """FAMILY/WHAT[/VARIANT]; the family names the module in `families/`."""
    about: str
    """What is measured, in a few words, for the plan."""
    seconds: float
    """How long it takes on an H100, with the imports; the plan adds these up."""
    limit_seconds: float = 0.0
    """After how long it is ended; 0: after a few times `seconds`."""
    alone: bool = False
    """No other question may use the GPU meanwhile: it reads what the driver counts of the whole GPU, fills the GPU, or
    measures time."""
    needs: tuple[str, ...] = ()
    """What has to be installed: names of modules."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its process gets, such as PYTORCH_CUDA_ALLOC_CONF."""

    @property
    def parts(self) -> list[str]:
        """What the name says after the family."""
        return self.name.split("/")[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUnderTest:
    """The GPU that is asked. `emulated` is the name of the emulated GPU, or empty for a real one."""

    emulated: str = ""
    total_memory_bytes: int | None = None
    """The total memory of an emulated GPU; None: as in ullage's table of GPUs."""

    def emulate_here(self) -> None:
        """Emulate the GPU in this process, before torch is imported. Does nothing for a real GPU."""
        if self.emulated:
            import ullage

            ullage.emulate(self.emulated, total_memory_bytes=self.total_memory_bytes)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a process that uses this GPU."""
        made = {**os.environ, **variables}
        if self.emulated:
            from ullage.gpu.emulator.emulate import emulate_in

            emulate_in(made, self.emulated, total_memory_bytes=self.total_memory_bytes)
        return made
