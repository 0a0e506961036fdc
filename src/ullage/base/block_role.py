"""The roles of GPU memory blocks, such as weights or gradients."""

from enum import StrEnum


class Role(StrEnum):
    """The kind of data in a block of GPU memory, such as weights or gradients."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    BUFFERS = "buffers"
    ACTIVATIONS = "activations"
    INPUTS = "inputs"
    TEMPORARIES = "temporaries"
    WORKSPACES = "workspaces"
    ROUNDING = "rounding"
    UNKNOWN = "unknown"

    @property
    def label(self) -> str:
        """The role as reports print it, for example "optimizer state"."""
        return self.value.replace("_", " ")
