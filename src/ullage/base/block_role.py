"""What a block of device memory is for: the names that every command uses."""

from enum import StrEnum


class Role(StrEnum):
    """The role of a block of device memory; the order is that of the reports."""

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
        """The role as a report shows it: "optimizer state"."""
        return self.value.replace("_", " ")
