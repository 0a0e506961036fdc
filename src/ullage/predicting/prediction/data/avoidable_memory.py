"""Plain data about memory that a run could avoid at its memory peak. Sizes are in bytes."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class AvoidableKind(StrEnum):
    """The kind of GPU memory that a run could avoid, such as logits."""

    HELD_OVER = "held_over"
    """Memory of an earlier step that no operator uses any more but that a variable still holds."""
    OPTIMIZER_TEMPORARIES = "optimizer_temporaries"
    """Temporary tensors for all parameters at once, which the optimizer's step allocates (`foreach`)."""
    GRADIENTS_KEPT_ZEROED = "gradients_kept_zeroed"
    """Gradients that are set to zero but stay allocated during the forward pass."""
    GRADIENTS_BESIDE_COPIES = "gradients_beside_copies"
    """Gradients that stay allocated next to a copy in another data type."""
    SECOND_COPY_OF_WEIGHTS = "second_copy_of_weights"
    """A second copy of the trained weights, such as a moving average, a `deepcopy`, or a copied `state_dict`."""
    LOGITS_IN_FP32 = "logits_in_fp32"
    """Logits in float32, and the tensors that a loss function computes from them."""
    ATTENTION_SCORES = "attention_scores"
    """Attention matrices that are saved for the backward pass."""
    NESTED_PADDING = "nested_padding"
    """Jagged nested tensors that are padded to the sum of their lengths."""
    REPEATED_RESULTS = "repeated_results"
    """Tensors that the forward pass computes several times from the same tensors, by the same operators."""
    EXPANDED_COPIES = "expanded_copies"
    """Copies of tensors that `expand` or broadcasting repeats without memory."""
    SAVED_ACTIVATIONS = "saved_activations"
    """Activations that a module saves for the backward pass."""
    WORKSPACES = "workspaces"
    """Scratch memory of libraries such as cuBLAS and cuDNN."""
    FRAGMENTATION = "fragmentation"
    """Reserved memory that no tensor uses."""


_TITLES: Final = {
    AvoidableKind.HELD_OVER: "kept from an earlier step",
    AvoidableKind.OPTIMIZER_TEMPORARIES: "temporary tensors of the optimizer",
    AvoidableKind.GRADIENTS_KEPT_ZEROED: "gradients kept during the forward pass",
    AvoidableKind.GRADIENTS_BESIDE_COPIES: "gradients next to copies of them",
    AvoidableKind.SECOND_COPY_OF_WEIGHTS: "a second copy of the weights",
    AvoidableKind.LOGITS_IN_FP32: "logits in float32",
    AvoidableKind.ATTENTION_SCORES: "attention scores",
    AvoidableKind.NESTED_PADDING: "padding of nested tensors",
    AvoidableKind.REPEATED_RESULTS: "the same result several times",
    AvoidableKind.EXPANDED_COPIES: "copies of expanded tensors",
    AvoidableKind.SAVED_ACTIVATIONS: "activations saved",
    AvoidableKind.WORKSPACES: "workspaces of libraries",
    AvoidableKind.FRAGMENTATION: "reserved but not used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidable:
    """GPU memory that is in use at the memory peak, and that a change of the script could save."""

    kind: AvoidableKind
    """The kind of memory that could be saved."""
    peak_bytes: int
    """The number of bytes at the memory peak that the script could save."""
    gain_bytes: int | None
    """The bytes by which the suggested change lowers the peak of allocated memory, or None if unknown."""
    gain_reserved_bytes: int | None = None
    """The bytes by which the suggested change lowers the peak of reserved memory, or None if unknown."""
    blocks: int = 0
    """The number of memory blocks at the peak that the script could save."""
    names: tuple[str, ...] = ()
    """The variables that hold the memory that could be saved. PyTorch frees it when no variable holds it."""
    file: str | None = None
    """The file of the user's source line that allocated most of the memory that could be saved."""
    line: int | None = None
    function: str | None = None
    """The function that contains the source line of the allocation."""
    module: str = ""
    """The module whose forward pass allocated the memory that could be saved. It is empty if the module is unknown."""
    hold_file: str | None = None
    """The file of the source line that assigns the variable, or adds the tensor to a container."""
    hold_line: int | None = None
    hold_function: str = ""
    """The function whose local variables hold the memory that could be saved."""
    variables: tuple[str, ...] = ()
    """The local variables that hold the memory that could be saved, such as `losses`."""
    evidence: str = ""
    """A sentence that says why the script could use less memory."""
    remedy: str = ""
    """A sentence that says how to change the source code so that the script uses less memory."""

    @property
    def title(self) -> str:
        """A short title with the kind of memory, and with the variable or the module if it is known."""
        of = ", ".join(self.names) or self.module
        return f"{_TITLES[self.kind]}: {of}" if of else _TITLES[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {**asdict(self), "kind": self.kind.value, "names": list(self.names)}
