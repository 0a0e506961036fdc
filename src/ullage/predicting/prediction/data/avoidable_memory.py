"""Memory of the peak that a run could do without, as data; sizes in bytes. It knows no torch."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class AvoidableKind(StrEnum):
    """The kind of memory that a run could do without."""

    HELD_OVER = "held_over"
    """Blocks of an earlier step that nothing uses any more, kept by a variable."""
    OPTIMIZER_TEMPORARIES = "optimizer_temporaries"
    """Lists that the optimizer's step makes of all parameters at once (`foreach`)."""
    GRADIENTS_KEPT_ZEROED = "gradients_kept_zeroed"
    """Gradients that are set to zero and kept during the forward pass."""
    GRADIENTS_BESIDE_COPIES = "gradients_beside_copies"
    """Gradients beside copies of them in another type, for the optimizer's own weights."""
    SECOND_COPY_OF_WEIGHTS = "second_copy_of_weights"
    """A further copy of the trained weights: an average, a `deepcopy`, a `state_dict` that was copied."""
    LOGITS_IN_FP32 = "logits_in_fp32"
    """The scores of a whole vocabulary, and what a loss makes of them."""
    ATTENTION_SCORES = "attention_scores"
    """Matrices of every token against every other, kept for the backward pass."""
    SAVED_ACTIVATIONS = "saved_activations"
    """The results that a module has saved for the backward pass."""
    WORKSPACES = "workspaces"
    """Scratch memory of libraries."""
    FRAGMENTATION = "fragmentation"
    """Memory that the allocator has reserved and that nothing lies in."""


_TITLES: Final = {
    AvoidableKind.HELD_OVER: "held over from an earlier step",
    AvoidableKind.OPTIMIZER_TEMPORARIES: "the optimizer's temporaries",
    AvoidableKind.GRADIENTS_KEPT_ZEROED: "gradients kept during the forward pass",
    AvoidableKind.GRADIENTS_BESIDE_COPIES: "gradients beside copies of them",
    AvoidableKind.SECOND_COPY_OF_WEIGHTS: "a second copy of the weights",
    AvoidableKind.LOGITS_IN_FP32: "scores of the vocabulary in float32",
    AvoidableKind.ATTENTION_SCORES: "attention scores",
    AvoidableKind.SAVED_ACTIVATIONS: "activations saved",
    AvoidableKind.WORKSPACES: "workspaces of libraries",
    AvoidableKind.FRAGMENTATION: "reserved and not used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidable:
    """Memory that is alive at the allocated peak and could be avoided, with what makes it sure."""

    kind: AvoidableKind
    """The kind of memory that it is."""
    peak_bytes: int
    """The bytes that it takes at the peak; rows of different kinds share no block."""
    gain_bytes: int | None
    """The bytes by which the peak of allocated memory becomes lower without it; None if nobody can say."""
    gain_reserved_bytes: int | None = None
    """The bytes by which the peak of reserved memory becomes lower; None if no replay could say."""
    blocks: int = 0
    """The number of blocks at the peak."""
    names: tuple[str, ...] = ()
    """The variables that hold it; all have to let go of it."""
    file: str | None = None
    """The file of the user's line that allocated most of it."""
    line: int | None = None
    function: str | None = None
    """The function in which that line is."""
    module: str = ""
    """The module that ran when it was allocated, by its dotted name."""
    hold_file: str | None = None
    """The file of the line that assigns the variable, or puts something into it."""
    hold_line: int | None = None
    hold_function: str = ""
    """The function whose variables hold it."""
    variables: tuple[str, ...] = ()
    """The variables of that function from which `names` begin."""
    evidence: str = ""
    """A sentence that says why it is sure."""
    remedy: str = ""
    """A sentence that says what to write."""

    @property
    def title(self) -> str:
        """What it is, in a few words, with the variable or the module if there is one."""
        of = ", ".join(self.names) or self.module
        return f"{_TITLES[self.kind]}: {of}" if of else _TITLES[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return {**asdict(self), "kind": self.kind.value, "names": list(self.names)}
