"""Plain data about memory that a run could avoid at its memory peak. Sizes are in bytes. This module does not import
torch.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class AvoidableKind(StrEnum):
    """The kind of GPU memory that a run could avoid, such as logits or optimizer temporaries."""

    HELD_OVER = "held_over"
    """Memory blocks of an earlier step that no operator uses any more, but that a variable still holds."""
    OPTIMIZER_TEMPORARIES = "optimizer_temporaries"
    """Temporary tensors that the optimizer's step allocates for all parameters at once (`foreach`)."""
    GRADIENTS_KEPT_ZEROED = "gradients_kept_zeroed"
    """Gradients that are set to zero but stay allocated during the forward pass."""
    GRADIENTS_BESIDE_COPIES = "gradients_beside_copies"
    """Gradients that stay allocated next to a copy in another data type. The optimizer uses the copy for its own
    weights.
    """
    SECOND_COPY_OF_WEIGHTS = "second_copy_of_weights"
    """A second copy of the trained weights, such as a moving average, a `deepcopy`, or a copied `state_dict`."""
    LOGITS_IN_FP32 = "logits_in_fp32"
    """The logits (one score per vocabulary entry), and the tensors that a loss function computes from them."""
    ATTENTION_SCORES = "attention_scores"
    """Attention matrices, with one score for each pair of tokens, that are kept for the backward pass."""
    SAVED_ACTIVATIONS = "saved_activations"
    """The activations that a module saves for the backward pass."""
    WORKSPACES = "workspaces"
    """Scratch memory of libraries such as cuBLAS and cuDNN."""
    FRAGMENTATION = "fragmentation"
    """Memory that the allocator has reserved but that no memory block uses."""


_TITLES: Final = {
    AvoidableKind.HELD_OVER: "kept from an earlier step",
    AvoidableKind.OPTIMIZER_TEMPORARIES: "temporary tensors of the optimizer",
    AvoidableKind.GRADIENTS_KEPT_ZEROED: "gradients kept during the forward pass",
    AvoidableKind.GRADIENTS_BESIDE_COPIES: "gradients next to copies of them",
    AvoidableKind.SECOND_COPY_OF_WEIGHTS: "a second copy of the weights",
    AvoidableKind.LOGITS_IN_FP32: "logits in float32",
    AvoidableKind.ATTENTION_SCORES: "attention scores",
    AvoidableKind.SAVED_ACTIVATIONS: "activations saved",
    AvoidableKind.WORKSPACES: "workspaces of libraries",
    AvoidableKind.FRAGMENTATION: "reserved but not used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidable:
    """Memory that the script could avoid and that is in use at the peak of allocated memory, with the evidence for
    this.
    """

    kind: AvoidableKind
    """The kind of the memory."""
    peak_bytes: int
    """The size of the avoidable memory at the memory peak, in bytes. Each memory block is counted in only one row."""
    gain_bytes: int | None
    """The number of bytes by which the peak of allocated memory falls if the script avoids this memory; None if ullage
    cannot compute the number.
    """
    gain_reserved_bytes: int | None = None
    """The number of bytes by which the peak of reserved memory falls if the script avoids this memory; None if a replay
    of the allocations cannot show it.
    """
    blocks: int = 0
    """The number of avoidable memory blocks at the memory peak."""
    names: tuple[str, ...] = ()
    """The variables that hold the avoidable memory. PyTorch frees it only when all of these variables release it."""
    file: str | None = None
    """The file of the user's source line that allocated most of the avoidable memory."""
    line: int | None = None
    function: str | None = None
    """The name of the function that contains the allocating source line."""
    module: str = ""
    """The dotted name of the module whose forward pass allocated the avoidable memory; empty if it is not known."""
    hold_file: str | None = None
    """The file of the source line that assigns the variable which holds the memory. If the memory is in a container, it
    is the line that puts the memory there.
    """
    hold_line: int | None = None
    hold_function: str = ""
    """The name of the function whose local variables hold the avoidable memory."""
    variables: tuple[str, ...] = ()
    """The local variables through which the function holds the avoidable memory, such as `losses` for the object path
    `losses[3]`.
    """
    evidence: str = ""
    """A sentence that gives the evidence that the script can avoid this memory."""
    remedy: str = ""
    """A sentence that says what to change in the source code to avoid this memory."""

    @property
    def title(self) -> str:
        """A short title for a row about avoidable memory. It names the kind of memory, and the variable or the module
        if one is known.
        """
        of = ", ".join(self.names) or self.module
        return f"{_TITLES[self.kind]}: {of}" if of else _TITLES[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {**asdict(self), "kind": self.kind.value, "names": list(self.names)}
