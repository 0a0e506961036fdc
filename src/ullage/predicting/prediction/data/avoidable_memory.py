"""Plain data about memory that a run could avoid at its peak; sizes in bytes. This module does not import torch."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class AvoidableKind(StrEnum):
    """The kind of memory that a run could avoid."""

    HELD_OVER = "held_over"
    """Blocks of an earlier step that no operation uses any more, and that a variable still holds."""
    OPTIMIZER_TEMPORARIES = "optimizer_temporaries"
    """Temporary tensors that the optimizer's step allocates for all parameters at once (`foreach`)."""
    GRADIENTS_KEPT_ZEROED = "gradients_kept_zeroed"
    """Gradients that are set to zero, and stay allocated during the forward pass."""
    GRADIENTS_BESIDE_COPIES = "gradients_beside_copies"
    """Gradients that stay allocated next to their copies in another data type, which the optimizer uses for its own
    weights.
    """
    SECOND_COPY_OF_WEIGHTS = "second_copy_of_weights"
    """A second copy of the trained weights: an average of them, a `deepcopy`, a copied `state_dict`."""
    LOGITS_IN_FP32 = "logits_in_fp32"
    """The logits (one score per vocabulary entry), and the tensors that a loss function computes from them."""
    ATTENTION_SCORES = "attention_scores"
    """Attention matrices, with one score for each pair of tokens, that are kept for the backward pass."""
    SAVED_ACTIVATIONS = "saved_activations"
    """The activations that a module saves for the backward pass."""
    WORKSPACES = "workspaces"
    """Scratch memory of libraries such as cuBLAS and cuDNN."""
    FRAGMENTATION = "fragmentation"
    """Memory that the allocator has reserved and that holds no block."""


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
    """Memory that is in use at the allocated peak and could be avoided, with the evidence for that."""

    kind: AvoidableKind
    """The kind of the memory."""
    peak_bytes: int
    """The size of the memory at the peak, in bytes. Each block is counted in one row only."""
    gain_bytes: int | None
    """The number of bytes by which the peak of allocated memory falls without this memory; None if it cannot be
    computed.
    """
    gain_reserved_bytes: int | None = None
    """The number of bytes by which the peak of reserved memory falls without this memory; None if a replay cannot
    show it.
    """
    blocks: int = 0
    """The number of blocks of this memory at the peak."""
    names: tuple[str, ...] = ()
    """The variables that hold the memory; it is freed only when all of them release it."""
    file: str | None = None
    """The file of the user's source line that allocated most of the memory."""
    line: int | None = None
    function: str | None = None
    """The function that contains the source line."""
    module: str = ""
    """The dotted name of the module whose forward pass allocated the memory; empty if it is not known."""
    hold_file: str | None = None
    """The file of the source line that assigns the holding variable, or puts the memory into the container."""
    hold_line: int | None = None
    hold_function: str = ""
    """The function whose local variables hold the memory."""
    variables: tuple[str, ...] = ()
    """The local variables of that function at which the paths in `names` begin."""
    evidence: str = ""
    """A sentence with the evidence that the memory can be avoided."""
    remedy: str = ""
    """A sentence with the change to make in the source."""

    @property
    def title(self) -> str:
        """A short title: the kind of memory, and the variable or the module if there is one."""
        of = ", ".join(self.names) or self.module
        return f"{_TITLES[self.kind]}: {of}" if of else _TITLES[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {**asdict(self), "kind": self.kind.value, "names": list(self.names)}
