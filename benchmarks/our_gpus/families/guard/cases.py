"""The cases in which `ullage.Guard` is tried on a GPU, what has to come of each, and how far rounding may take it.

All of this was fixed before anything was measured on a real GPU.
"""

from dataclasses import dataclass, field
from typing import Any

EQUAL = "equal to the bit"
PARTS = "in parts, equal within rounding"
REFUSED = "refused, and everything is as before the step"

FLOAT32 = 1e-5
"""24 bits: one rounding is 6e-8, and sums of some thousand numbers in another order differ by about 1e-6."""
CONVOLUTION = 1e-4
"""For another number of items cuDNN may take another algorithm: Winograd's rounding is ten times as large."""
BFLOAT16 = 2e-2
"""8 bits: one rounding is up to 2e-3. Each part's gradient is rounded once more, as is what every layer of the backward
pass hands to the next, about ten roundings one after the other. Wrong weights of the parts would differ by 0.3."""
FLOAT16 = 4e-3
"""11 bits, eight times as fine as bfloat16; what is below its smallest normal number is coarser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An injected error, and what has to come of it."""

    name: str
    training: str
    step: int = 2
    """The call of `Guard.step`, from 1 on."""
    phase: str = "forward"
    operation: str
    """The operation at which the error is raised: a text in its name."""
    share: float = 0.5
    """Which of the phase's operations of that name: the one so far in it."""
    times: int = 1
    in_pieces: bool = False
    expected: str = EQUAL
    tolerance: float = 0.0
    gradients_only: bool = False
    needs_values: bool = False
    """The guard decides by values, which an emulated GPU does not have."""

    @property
    def key(self) -> str:
        """The name of the case among all."""
        return f"{self.training}, {self.name}"


GROUPS: dict[str, tuple[Case, ...]] = {
    "products": (
        Case(name="forward", training="mlp", operation="addmm"),
        Case(name="backward", training="mlp", phase="backward", operation="aten.mm"),
        Case(name="the optimizer's first step", training="mlp", step=1, phase="update", operation="zeros_like"),
        Case(name="the optimizer's later step", training="mlp", step=3, phase="update", operation="addcdiv_"),
        Case(
            name="after empty_cache, in parts",
            training="mlp_plain",
            operation="gelu",
            times=3,
            in_pieces=True,
            expected=PARTS,
            tolerance=FLOAT32,
        ),
    ),
    "tokens": (
        Case(name="backward", training="gpt_bfloat16_fused", step=3, phase="backward", operation="aten.mm"),
        Case(
            name="the fused optimizer's step",
            training="gpt_bfloat16_fused",
            phase="update",
            operation="_fused_adamw_",
        ),
        Case(
            name="in parts, weighted",
            training="gpt_bfloat16_weighted",
            operation="_log_softmax",
            times=2,
            expected=PARTS,
            tolerance=BFLOAT16,
        ),
        Case(
            name="in parts, weighted",
            training="gpt_weighted",
            operation="gelu",
            times=2,
            expected=PARTS,
            tolerance=FLOAT32,
        ),
        Case(
            name="weights left out",
            training="gpt_unweighted",
            operation="gelu",
            times=2,
            expected=REFUSED,
            needs_values=True,
        ),
    ),
    "accumulated": (
        Case(
            name="backward of the second call",
            training="accumulated",
            step=4,
            phase="backward",
            operation="layer_norm_backward",
        ),
        Case(
            name="the second call in parts",
            training="accumulated_bfloat16",
            step=4,
            operation="gelu",
            times=2,
            expected=PARTS,
            tolerance=BFLOAT16,
        ),
        Case(
            name="in what is computed again",
            training="checkpointed_dropout",
            phase="backward",
            operation="gelu.default",
        ),
        Case(
            name="the fused optimizer's first step",
            training="checkpointed_dropout",
            step=1,
            phase="update",
            operation="zeros_like",
        ),
        Case(name="in parts", training="checkpointed", operation="gelu", times=2, expected=PARTS, tolerance=FLOAT32),
    ),
    "mixed": (
        Case(name="forward", training="convolutions", operation="batch_norm"),
        Case(name="backward", training="convolutions_bfloat16", phase="backward", operation="convolution_backward"),
        Case(
            name="in parts",
            training="convolutions_frozen",
            operation="gelu",
            times=2,
            expected=PARTS,
            tolerance=CONVOLUTION,
        ),
        Case(name="unscaling", training="scaled_fused", phase="update", operation="_and_unscale_"),
        Case(name="in parts", training="scaled", operation="_log_softmax", times=2, expected=PARTS, tolerance=FLOAT16),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealCase:
    """An error that PyTorch's allocator raises, and what has to come of it."""

    name: str
    training: str
    share: float = 0.75
    """How much of the undisturbed training's peak of allocated memory there is."""
    garbage_bytes: int = 0
    """Held by a cycle of references when training begins; there is room for the training alone."""
    is_full: bool = False
    """Whether a tensor fills the rest of the GPU, rather than a limit of the process."""
    fills_all: bool = False
    """Whether the training takes all that is left, so that its peak of reserved memory depends on the driver's last
    MiB."""
    options: dict[str, Any] = field(default_factory=dict)
    expected: str = EQUAL
    tolerance: float = 0.0
    gradients_only: bool = False
    needs_values: bool = False

    @property
    def key(self) -> str:
        """The name of the case among all."""
        return f"{self.training}, {self.name}"


REAL: dict[str, tuple[RealCase, ...]] = {
    "limit": (
        RealCase(name="in parts", training="large", expected=PARTS, tolerance=FLOAT32),
        RealCase(
            name="in parts, weighted",
            training="large_bfloat16",
            expected=PARTS,
            tolerance=BFLOAT16,
            gradients_only=True,
        ),
        RealCase(name="garbage in the way", training="large_dropout", garbage_bytes=768 << 20),
    ),
    "full": (
        RealCase(
            name="in parts",
            training="large_adamw",
            is_full=True,
            expected=PARTS,
            tolerance=FLOAT32,
            gradients_only=True,
        ),
        RealCase(
            name="one item",
            training="long",
            is_full=True,
            fills_all=True,
            share=0.76,  # 8 MiB less or 4 MiB more change neither what the guard does nor the peak of allocated memory
            options={"checkpoint": ("blocks.*",)},
        ),
    ),
}
