"""What a run tells about how it trains: its model, its loop, its optimizers. It knows no torch.

A change reads here whether it can be made, and where it would be written. Lines are those of the user's own files.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

IGNORED: Final = -100
"""The target that cross entropy ignores where nobody names another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlace:
    """A line of the user's code that runs."""

    file: str
    """Its absolute path."""
    line: int
    function: str
    """The qualified name of the function; "<module>" at the top of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObject:
    """An expression by which a function of the user's reaches an object."""

    name: str
    """The expression, such as "model" or "self.model"."""
    place: CodePlace
    """The line at which it was used."""
    assigned: CodePlace | None = None
    """The line that gave it this value last, in the same function; of an attribute of `self`, the only line of its
    class that assigns it. None where nobody can be certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockList:
    """The repeated blocks of a model: modules of one class, in one list or sequence."""

    path: str
    """The list's path below the model, such as "transformer.h"."""
    kind: str
    """The class of its blocks."""
    count: int
    parameter_bytes: int
    """The parameters of one block."""
    saved_bytes: int = 0
    """The memory that a forward pass of one block leaves for its backward pass, on average."""
    forward_flops: int = 0
    """The floating-point operations of one block's forward pass, by PyTorch's own counter; 0 where not counted."""
    saved_by_block: list[int] = field(default_factory=list)
    """The same memory of each block, in their order; empty where it was not measured."""
    flops_by_block: list[int] = field(default_factory=list)
    """The same operations of each block; empty where they were not counted."""
    has_switch: bool = False
    """Whether each block can be checkpointed by transformers' own switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The model that is trained: the module whose call begins the forward pass."""

    kind: str
    """Its class."""
    library: str
    """The package of its class: "transformers", "torchvision", ...; "" for the user's own."""
    names: list[NamedObject]
    block_lists: list[BlockList]
    parameter_bytes: int
    dtypes: list[str]
    """The types of its parameters, the one with most bytes first: "float32"."""
    attention: str | None = None
    """The way in which a model of transformers computes attention: "eager", "sdpa", ...; None for others."""
    has_sdpa: bool = False
    """Whether transformers says of the model that it can compute attention by scaled_dot_product_attention."""
    transformers_path: str | None = None
    """The path of the model of transformers below this one, "" where it is this one; None where there is none."""
    model_type: str = ""
    """The type that transformers gives that model: "llama"; "" where there is none."""
    scores: CodePlace | None = None
    """The line whose softmax leaves most memory for the backward pass: attention that is written by hand."""
    is_compiled: bool = False
    batch_norms: int = 0
    """The number of its modules that use statistics of the whole batch in training."""
    wrapper: str = ""
    """The class that is wrapped around the model: "DistributedDataParallel", "FullyShardedDataParallel", ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """An optimizer that took a step."""

    kind: str
    """Its class, such as "AdamW"."""
    module: str
    """The module of its class, such as "torch.optim.adamw"."""
    names: list[NamedObject]
    made: CodePlace | None
    """The user's line that made it."""
    says_implementation: bool = False
    """Whether the script itself passes foreach or fused."""
    implementations: list[str] = field(default_factory=lambda: ["foreach", "fused"])
    """Those of the arguments foreach and fused that the class has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTensor:
    """A tensor that the forward pass is called with, or that the loss is computed from."""

    name: str
    """Its name in the function that calls the model; "" where it has none."""
    shape: list[int]
    dtype: str


class LossForm(StrEnum):
    """How a loss is made of its batch."""

    MEAN = "mean"
    """A mean over items, or over elements of which every item has as many."""
    COUNTED = "counted"
    """A mean over the targets that are not ignored."""
    SUM = "sum"
    OTHER = "other"
    """Something else: a product, a sum over a number that may be any, a mean over selected elements."""
    UNSEEN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFacts:
    """A call of `torch.nn.functional.cross_entropy`."""

    place: CodePlace
    is_users: bool
    """Whether that line calls the function itself, and not through a module or a library."""
    rows: int
    classes: int
    dtype: str
    ignore_index: int = IGNORED


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryCall:
    """A call of the user's by which a library learns how to train."""

    function: str
    """The name of the class: "TrainingArguments", "Trainer", "Accelerator"."""
    place: CodePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class PassFacts:
    """What runs from the first call of a module that trains to the backward pass: one of a step's, or the only one."""

    forward: CodePlace
    """The line of the forward pass in the function that asks for the backward pass."""
    backward: CodePlace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFacts:
    """The loop that trains."""

    library: str = ""
    """The library whose loop it is: "transformers", "lightning", "accelerate"; "" for the user's own."""
    library_call: LibraryCall | None = None
    """The call that tells it how to train: `TrainingArguments(...)`, Lightning's `Trainer(...)`, `Accelerator(...)`."""
    forward: CodePlace | None = None
    """The innermost line of the user's that calls the model."""
    forward_in_loop: CodePlace | None = None
    """The line of the forward pass in the function that asks for the backward pass; None where no line of it leads
    there."""
    backward: CodePlace | None = None
    passes: list[PassFacts] = field(default_factory=list)
    """Every pair of lines that a step runs; empty where one of them is not in one function with its backward pass."""
    step: CodePlace | None = None
    zero_grad: CodePlace | None = None
    passes_per_step: int = 1
    """The number of backward passes between two steps of an optimizer."""
    autocast: str | None = None
    """The type of `torch.autocast` in the forward pass: "bfloat16", "float16"; None where there is none."""
    has_scaler: bool = False
    clips_gradients: bool = False
    clip: CodePlace | None = None
    """The line that clips gradients."""
    checkpoints: bool = False
    """Whether the script uses activation checkpointing itself."""
    keeps_zeroed: bool = False
    """Whether zero_grad is called with set_to_none=False."""
    loss: LossForm = LossForm.UNSEEN
    """The form of what the first backward pass begins at."""
    ignores_targets: bool = False
    """Whether targets are ignored, as far as can be seen: by their values, or since the script says which."""
    share: str = ""
    """The number by which transformers' loop divides the loss of a part: "counts" of targets, "parts"; "" for none."""
    uses_loader: bool = False
    """Whether the batches come from a `torch.utils.data.DataLoader`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVariable:
    """A variable that keeps memory which nothing uses any more."""

    name: str
    place: CodePlace
    """The line that gives it its value, and its function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """How a run trains."""

    model: ModelFacts | None = None
    """None where no module was called that is trained."""
    loop: LoopFacts = field(default_factory=LoopFacts)
    optimizers: list[OptimizerFacts] = field(default_factory=list)
    batch: list[BatchTensor] = field(default_factory=list)
    items: int | None = None
    """The size of the batch; None where the batch's tensors do not agree on one."""
    losses: list[LossFacts] = field(default_factory=list)
    compute_capability: tuple[int, int] = (0, 0)
    """The compute capability of the card; (0, 0) where there is none."""
    step_flops: int = 0
    """The floating-point operations of one step, by PyTorch's own counter; 0 where they were not counted."""

    held: list[HeldVariable] = field(default_factory=list)
    """The variables that keep memory of the step before at the peak."""
    held_elsewhere: list[str] = field(default_factory=list)
    """Other holders of the step before's memory: attributes, entries of containers."""

    def with_counts(self, counted: "TrainingFacts") -> "TrainingFacts":
        """Return these facts with the floating-point operations that another run of the script has counted."""
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
