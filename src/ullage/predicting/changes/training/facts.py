"""Facts about how a script trains: its model, loop and optimizers. This module does not import torch."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

IGNORED: Final = -100
"""The target value that `cross_entropy` ignores by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlace:
    """A line of the user's code that was executed, and the function that contains it."""

    file: str
    """The absolute path of the file."""
    line: int
    function: str
    """The qualified name of the function, or "<module>" for code outside functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObject:
    """An expression in the user's code that refers to an object, such as "self.model"."""

    name: str
    place: CodePlace
    """The line of the user's code that uses the expression."""
    assigned: CodePlace | None = None
    """The line that last assigned the expression in the same function, or None if uncertain.

    For an attribute of `self`, this is the only line of the class that assigns it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockList:
    """The repeated blocks of a model: modules of one class in a `ModuleList` or `Sequential`."""

    path: str
    """The path of the list of blocks in the model, such as "transformer.h"."""
    kind: str
    """The class name of the blocks."""
    count: int
    parameter_bytes: int
    """The size of one block's parameters, in bytes."""
    saved_bytes: int = 0
    """The average number of bytes that one block saves for the backward pass."""
    forward_flops: int = 0
    """The floating-point operations of one block's forward pass, or 0 if they were not counted."""
    saved_by_block: list[int] = field(default_factory=list)
    """The bytes that each block saves for the backward pass. Empty if they were not measured."""
    flops_by_block: list[int] = field(default_factory=list)
    """The floating-point operations of each block's forward pass. Empty if they were not counted."""
    has_switch: bool = False
    """Whether every block in the list has transformers' own switch for activation checkpointing."""
    has_statistics: bool = False
    """Whether the forward pass of a block updates running statistics, as BatchNorm does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHead:
    """A linear layer of a model that may compute the logits."""

    path: str
    """The path of the layer in the model, such as "lm_head"."""
    width: int
    """The size of the layer's input."""
    classes: int
    """The size of the layer's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The trained model: the module whose call starts the forward pass."""

    kind: str
    """The class name of the model."""
    library: str
    """The package that defines the model's class, such as "transformers". Empty if the user's code defines it."""
    names: list[NamedObject]
    block_lists: list[BlockList]
    parameter_bytes: int
    dtypes: list[str]
    """The data types of the model's parameters, such as "float32". The type with the most bytes is first."""
    attention: str | None = None
    """The attention implementation of a transformers model, such as "eager" or "sdpa", or None for other models."""
    has_sdpa: bool = False
    """Whether the transformers model supports scaled_dot_product_attention."""
    transformers_path: str | None = None
    """The path of the transformers model inside the trained model.

    Empty if they are the same model. None if no transformers model exists.
    """
    model_type: str = ""
    """The `model_type` of the transformers model, such as "llama". Empty for models of other libraries."""
    scores: CodePlace | None = None
    """The line of the user's code that computes the largest softmax of the model.

    None if every softmax saves little memory.
    """
    is_compiled: bool = False
    batch_norms: int = 0
    """The number of modules that use statistics of the whole batch in training, such as BatchNorm."""
    heads: list[LinearHead] = field(default_factory=list)
    """The linear layers whose output is wider than their input, if PyTorch has `linear_cross_entropy` with options."""
    repeated_effect: str = ""
    """Why a second forward pass of a block is not the same as the first: one sentence without a full stop.

    Empty if it is the same, apart from running statistics.
    """
    wrapper: str = ""
    """The class name of the wrapper around the model, such as "DistributedDataParallel"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """An optimizer that took a step."""

    kind: str
    """The class name of the optimizer, such as "AdamW"."""
    module: str
    """The module that defines the optimizer's class, such as "torch.optim.adamw"."""
    names: list[NamedObject]
    made: CodePlace | None
    """The line of the user's code that creates the optimizer. None if unknown."""
    says_implementation: bool = False
    """Whether the script passes `foreach` or `fused` to the optimizer."""
    implementations: list[str] = field(default_factory=lambda: ["foreach", "fused"])
    """The arguments that the optimizer's class accepts: "foreach", "fused" or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTensor:
    """A tensor that is an input of the forward pass or of the loss."""

    name: str
    """The variable of the tensor in the function that calls the model. Empty if it has no variable there."""
    shape: list[int]
    dtype: str


class LossForm(StrEnum):
    """The way in which a loss is reduced over the batch, such as a mean or a sum."""

    MEAN = "mean"
    """The loss is a mean over the batch items. If all items have equal size, a mean over all elements is the same."""
    COUNTED = "counted"
    """The loss is a mean over the targets that are not ignored."""
    SUM = "sum"
    OTHER = "other"
    """The loss is neither a sum nor a mean over all batch items. An example is a mean over selected elements."""
    UNSEEN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """A call of `torch.nn.functional.cross_entropy` in training."""

    place: CodePlace
    is_users: bool
    """Whether the user's code calls `cross_entropy` itself, not through a module or a library."""
    rows: int
    classes: int
    dtype: str
    ignore_index: int = IGNORED
    is_smoothed: bool = False
    """Whether the call has label smoothing or weights of classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    """A call in the user's code that configures a training library, such as `Trainer(...)`."""

    function: str
    """The class that is created: "TrainingArguments", "Trainer" or "Accelerator"."""
    place: CodePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFacts:
    """A forward pass and its backward pass. A training step has one or more of these pairs."""

    forward: CodePlace
    """The line that runs the forward pass, in the function that also calls backward."""
    backward: CodePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFacts:
    """Facts about the training loop."""

    library: str = ""
    """The library that runs the training loop, such as "lightning". Empty if the user's code runs it."""
    library_call: LibraryCall | None = None
    """The call that configures the training library, such as `TrainingArguments(...)`."""
    forward: CodePlace | None = None
    """The innermost line of the user's code that calls the model."""
    forward_in_loop: CodePlace | None = None
    """The line that runs the forward pass, in the function that also calls backward.

    None if another function runs the forward pass.
    """
    backward: CodePlace | None = None
    passes: list[PassFacts] = field(default_factory=list)
    """The pairs of forward and backward passes in a step.

    Empty if one function runs the forward pass and another calls backward.
    """
    step: CodePlace | None = None
    zero_grad: CodePlace | None = None
    passes_per_step: int = 1
    """The number of backward passes per optimizer step."""
    autocast: str | None = None
    """The data type of `torch.autocast` in the forward pass, such as "bfloat16", or None without autocast."""
    autocast_entered: CodePlace | None = None
    """The line of the user's code that first enters `torch.autocast`, or calls the library that does."""
    autocast_caches: bool = True
    """Whether autocast keeps cast weights until its context ends."""
    adapters_made: CodePlace | None = None
    """The line of the user's code that calls PEFT's `get_peft_model`."""
    has_wide_adapters: bool = False
    """Whether the model has trained adapters of PEFT in float32, and frozen weights mostly of 16 bits."""
    has_scaler: bool = False
    clips_gradients: bool = False
    clip: CodePlace | None = None
    """The line that clips gradients."""
    checkpoints: bool = False
    """Whether the script already uses activation checkpointing."""
    keeps_zeroed: bool = False
    """Whether the script calls `zero_grad` with `set_to_none=False`."""
    loss: LossForm = LossForm.UNSEEN
    """The way in which the loss of the first backward pass is reduced over the batch."""
    ignores_targets: bool = False
    """Whether the loss is known to ignore some targets."""
    share: str = ""
    """The divisor of the loss in transformers with gradient accumulation.

    "counts" is the number of targets, "parts" the number of batches per step. Empty if the loss is not divided.
    """
    uses_loader: bool = False
    """Whether the training batches come from a `torch.utils.data.DataLoader`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVariable:
    """A variable of the user's code that keeps GPU memory alive after its last use."""

    name: str
    place: CodePlace
    """The line that assigns the variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """All facts about how a script trains."""

    model: ModelFacts | None = None
    """Facts about the trained model, or None if no module was called in training mode with gradients."""
    loop: LoopFacts = field(default_factory=LoopFacts)
    optimizers: list[OptimizerFacts] = field(default_factory=list)
    batch: list[BatchTensor] = field(default_factory=list)
    items: int | None = None
    """The batch size, or None if the tensors of a batch differ in their first dimension."""
    losses: list[LossFacts] = field(default_factory=list)
    compute_capability: tuple[int, int] = (0, 0)
    """The compute capability of the GPU, or (0, 0) if the run did not use a GPU."""
    step_flops: int = 0
    """The floating-point operations of one step, or 0 if they were not counted."""

    held: list[HeldVariable] = field(default_factory=list)
    """The variables that keep memory of the previous step alive at the run's memory peak."""
    held_elsewhere: list[str] = field(default_factory=list)
    """Attributes and container entries that keep memory of the previous step alive at the run's memory peak."""

    def with_counts(self, counted: "TrainingFacts") -> "TrainingFacts":
        """Return a copy in which the counts of floating-point operations come from another run."""
        model = self.model
        if model is not None and counted.model is not None:
            known = {each.path: each for each in counted.model.block_lists}
            pairs = [(each, known.get(each.path, each)) for each in model.block_lists]
            lists = [
                replace(each, forward_flops=other.forward_flops, flops_by_block=other.flops_by_block)
                for each, other in pairs
            ]
            model = replace(model, block_lists=lists)
        return replace(self, model=model, step_flops=counted.step_flops)
