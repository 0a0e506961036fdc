"""What threads and guides advise against running out of memory, each as a change to a loop, and what is said of it.

What is said is said by hand, and `holds` is what must have been measured for it to be true.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import habits
from loop import Loop, PictureLoop, plain

Step = Callable[[Loop, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a loop came to; bytes."""

    allocated: int
    reserved: int
    driver_calls: float
    """A step."""
    fits: bool
    """On a T4; where it does not, the bytes are those of a card like it with more memory."""
    time_ratio: float | None
    """Of a small loop's seconds on the CPU beside the plain one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One advice; `changes` are fields of `Loop`."""

    name: str
    verdict: str
    changes: dict[str, Any] = field(default_factory=dict)
    holds: Callable[[Measured, Measured], bool] = lambda own, none: True
    is_timed: bool = False
    """Whether time on a CPU says something of time on a card: the same work is done, or more, or less."""
    length: int | None = None
    card: str = habits.CARD
    environment: dict[str, str] = field(default_factory=dict)
    of: type[Loop] = Loop
    after: Callable[[Loop], None] | None = None
    """What is done after the steps; then the bytes are those that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """An advice that `make habits` has measured: a row of docs/habits.md."""

    name: str
    section: str
    verdict: str
    shown: str = ""
    """Another name, where that of the row needs the words around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """A text for PYTORCH_ALLOC_CONF."""

    text: str
    verdict: str
    name: str = ""
    lengths: str = "random"
    holds: Callable[[habits.Measured], bool] = lambda own: True


def is_same(own: Measured, none: Measured) -> bool:
    """Whether nothing that counts is saved or lost."""
    return abs(own.allocated / none.allocated - 1) < 0.005


def less(share: float) -> Callable[[Measured, Measured], bool]:
    """Whether what is allocated at most is below a share of what the plain loop allocates."""
    return lambda own, none: own.allocated < share * none.allocated


def in_parts(parts: int) -> Step:
    def step(loop: Loop, tokens: Any) -> None:
        for part in tokens.chunk(parts):
            loop.forward(part)
            (loop.loss / parts).backward()
        loop.update()

    return step


def zeroed_late(loop: Loop, tokens: Any) -> None:
    """Set gradients to None right before backward, as many tutorials do."""
    loop.forward(tokens)
    loop.optimizer.zero_grad()
    loop.loss.backward()
    loop.optimizer.step()


def summed(loop: Loop, tokens: Any) -> None:
    plain(loop, tokens)
    loop.kept = loop.loss if loop.kept is None else loop.kept + loop.loss


def loss_on_host(loop: Loop, tokens: Any) -> None:
    """Move the loss to the host, and expect that backward leaves the card."""
    loop.forward(tokens)
    loop.loss.cpu().backward()
    loop.update()


def deleted_before_update(loop: Loop, tokens: Any) -> None:
    loop.forward(tokens)
    loop.loss.backward()
    loop.output = loop.loss = None
    loop.update()


def stepping_in_backward(loop: Loop, tokens: Any) -> None:
    """Update each parameter as soon as its gradient is there, and give the gradient up."""
    import torch

    if loop.kept is None:
        loop.kept = {p: torch.optim.AdamW([p]) for p in loop.model.parameters()}

        def update(parameter: Any) -> None:
            loop.kept[parameter].step()
            loop.kept[parameter].zero_grad()

        for parameter in loop.model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
    loop.forward(tokens)
    loop.loss.backward()


def loss_in_parts(loop: Loop, tokens: Any) -> None:
    """Compute logits and loss for some items at a time, and again in backward."""
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    model = loop.model

    def loss_of(x: Any, target: Any) -> Any:
        return F.cross_entropy(model.head(x).flatten(0, 1), target.flatten(), reduction="sum")

    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with loop.casting():
        x = model.tokens(inputs) + model.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for block in model.blocks:
            x = block(x)
        x = model.norm(x)
        parts = zip(x.split(1), targets.split(1), strict=True)
        loop.loss = sum(checkpoint(loss_of, *part, use_reentrant=False) for part in parts) / targets.numel()
    loop.loss.backward()
    loop.update()


def workers_and_pinned(loop: Loop, tokens: Any) -> None:
    """Load by two worker processes, into pinned memory."""
    import torch

    if loop.kept is None:
        data = torch.zeros(1000 * loop.items, tokens.shape[1], dtype=torch.long)
        loader = torch.utils.data.DataLoader(data, loop.items, num_workers=2, pin_memory=True)
        loop.kept = iter(loader)
    plain(loop, next(loop.kept).to("cuda", non_blocking=True))


def all_data_on_card(loop: Loop, tokens: Any) -> None:
    """Have the whole data set on the card: 50,000 pictures of 32 x 32 pixels, as floats."""
    import torch

    if loop.kept is None:
        loop.kept = torch.zeros(50_000, 3, 32, 32, device="cuda")
    plain(loop, tokens)


def on_host() -> Any:
    import torch

    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def attention_by_hand() -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


def frozen(model: Any) -> Any:
    """Train the upper half of the blocks alone."""
    for module in (model.tokens, model.positions, *model.blocks[: len(model.blocks) // 2]):
        module.requires_grad_(requires_grad=False)
    return model


def channels_last(model: Any) -> Any:
    import torch

    return model.to(memory_format=torch.channels_last)


def with_benchmark(model: Any) -> Any:
    import torch

    torch.backends.cudnn.benchmark = True
    return model


def not_in_place(model: Any) -> Any:
    for module in model.modules():
        if type(module).__name__ == "ReLU":
            module.inplace = False
    return model


def compiled(model: Any) -> Any:
    import torch

    return torch.compile(model)


def optimizer(name: str, **options: Any) -> Callable[[Any], Any]:
    def make(parameters: Any) -> Any:
        import torch

        return getattr(torch.optim, name)(parameters, lr=1e-3, **options)

    return make


def model_gone(loop: Loop) -> None:
    loop.model = None
    collected()


def optimizer_gone(loop: Loop) -> None:
    loop.optimizer = None
    model_gone(loop)


def detached(loop: Loop) -> None:
    """Detach the parameters first, as a guide says."""
    import torch

    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.detach_()
    optimizer_gone(loop)


def all_gone(loop: Loop) -> None:
    loop.output = loop.loss = None
    optimizer_gone(loop)


def released(loop: Loop) -> None:
    import ullage

    ullage.release(loop.model, loop.optimizer, loop.output, loop.loss)


def moved_to_host(loop: Loop) -> None:
    loop.model.cpu()
    collected()


def collected() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


PLAIN = Advice(name="the loop without any", verdict="", changes={"step": plain})
PLAIN_PICTURES = Advice(name="ResNet-50 without any", verdict="", of=PictureLoop, changes={"step": plain})
SIZE = (
    Advice(
        name="a smaller batch: 6 instead of 12",
        verdict="**Works.** What goes by items is halved, as is the work of a step; parameters, "
        "gradients and states stay.",
        changes={"items": 6},
        holds=less(0.65),
        is_timed=True,
    ),
    Advice(
        name="accumulate over 2 parts",
        verdict="**Works**, with the gradient of the whole batch.",
        changes={"step": in_parts(2)},
        holds=less(0.65),
        is_timed=True,
    ),
    Advice(
        name="accumulate over 12 parts",
        verdict="**Works.** Less cannot be had this way, and it costs most time.",
        changes={"step": in_parts(12)},
        holds=less(0.4),
        is_timed=True,
    ),
    Advice(
        name="shorter sequences: 512 instead of 1,024",
        verdict="**Works**, as half the batch does: attention here does not keep its square.",
        length=512,
        holds=less(0.65),
    ),
)
PRECISION = (
    Advice(
        name="fp16 weights, `model.half()`",
        verdict="**Works**: all is halved, states too. What it does to values is not measured here.",
        changes={"prepare": lambda model: model.half(), "autocast": False},
        holds=less(0.75),
    ),
    Advice(
        name="no autocast, all in fp32",
        verdict="**What autocast saves**: without it the loop does not fit.",
        changes={"autocast": False},
        holds=lambda own, none: not own.fits,
    ),
    Advice(
        name="bf16 weights, `model.bfloat16()`",
        verdict="**Harms on a T4**: attention keeps its square here, as where it is written out (see below).",
        changes={"prepare": lambda model: model.bfloat16(), "autocast": False},
        holds=lambda own, none: not own.fits,
    ),
    Advice(
        name="bf16 weights, on an A10",
        verdict="**Works** where PyTorch has a kernel for attention in bf16, as fp16 does. The fit is that on an A10.",
        changes={"prepare": lambda model: model.bfloat16(), "autocast": False},
        card="A10",
        holds=less(0.75),
    ),
)
OPTIMIZER = (
    Advice(
        name="SGD instead of AdamW",
        verdict="Saves the two states. It is another optimizer, with other results.",
        changes={"optimizer_of": optimizer("SGD")},
        holds=lambda own, none: own.allocated < none.allocated,
        is_timed=True,
    ),
    Advice(
        name="SGD with momentum",
        verdict="Saves one of the two.",
        changes={"optimizer_of": optimizer("SGD", momentum=0.9)},
        holds=lambda own, none: own.allocated < none.allocated,
        is_timed=True,
    ),
    Advice(
        name="Adafactor",
        verdict="Saves both states, as SGD does. Another optimizer too.",
        changes={"optimizer_of": optimizer("Adafactor")},
        holds=lambda own, none: own.allocated < none.allocated,
        is_timed=True,
    ),
    Advice(
        name="`AdamW(foreach=False)`",
        verdict="Nothing here: the step is not the fullest moment. Where it is, lists take a copy of the parameters.",
        changes={"optimizer_of": optimizer("AdamW", foreach=False)},
        holds=is_same,
    ),
    Advice(
        name="`AdamW(fused=True)`",
        verdict="The same.",
        changes={"optimizer_of": optimizer("AdamW", fused=True)},
        holds=is_same,
    ),
    Advice(
        name="step in backward, by hooks",
        verdict="Nothing here: the fullest moment is when backward begins, before there are "
        "gradients. No clipping, no scaler.",
        changes={"step": stepping_in_backward},
        holds=is_same,
        is_timed=True,
    ),
)
ACTIVATIONS = (
    Advice(
        name="checkpoint every block",
        verdict="**Works.** Forward is computed twice.",
        changes={"checkpointing": True},
        holds=less(0.75),
        is_timed=True,
    ),
    Advice(
        name="logits and loss for one item at a time",
        verdict="**Works** where the vocabulary is large: logits are the largest tensors.",
        changes={"step": loss_in_parts},
        holds=less(0.8),
        is_timed=True,
    ),
    Advice(
        name="`save_on_cpu()` around forward",
        verdict="**Works**; all that forward keeps crosses the bus twice, which only a real card can time.",
        changes={"forward_in": on_host},
        holds=less(0.75),
    ),
    Advice(
        name="attention written out, not `scaled_dot_product_attention`",
        verdict="**What that function saves**: the square of the length, in every block.",
        changes={"forward_in": attention_by_hand},
        holds=lambda own, none: own.allocated > 1.5 * none.allocated,
    ),
    Advice(
        name="freeze the lower half",
        verdict="**Works**: what lies below the first trained block keeps nothing.",
        changes={"prepare": frozen},
        holds=less(0.85),
        is_timed=True,
    ),
)
LOOP = (
    Advice(
        name="`del loss, output` before the optimizer's step",
        verdict="Nothing: the step is not the fullest moment.",
        changes={"step": deleted_before_update},
        holds=is_same,
    ),
    Advice(
        name="`zero_grad()` right before backward",
        verdict="Nothing here: gradients stay through forward, but are gone when memory is fullest. "
        "Right after the step is safer.",
        changes={"step": zeroed_late},
        holds=is_same,
    ),
    Advice(
        name="`total = total + loss`",
        verdict="No bytes that count: backward has given up what it needed. `total += loss.detach()` is as good.",
        changes={"step": summed},
        holds=is_same,
    ),
    Advice(
        name="`loss.cpu().backward()`",
        verdict="Nothing: one number is moved, and backward runs where forward ran.",
        changes={"step": loss_on_host},
        holds=is_same,
    ),
    Advice(
        name="`pin_memory=True`, `num_workers=2`",
        verdict="Nothing on the card: they are about the host's memory and time.",
        changes={"step": workers_and_pinned},
        holds=is_same,
    ),
    Advice(
        name="the data set on the card (50,000 x 3 x 32 x 32)",
        verdict="**Harms** by its size.",
        changes={"step": all_data_on_card},
        holds=lambda own, none: own.allocated - none.allocated >= 50_000 * 3 * 32 * 32 * 4,
    ),
    Advice(
        name="`CUDA_LAUNCH_BLOCKING=1`",
        verdict="Nothing: it is for finding the line of an error.",
        environment={"CUDA_LAUNCH_BLOCKING": "1"},
        holds=is_same,
    ),
    Advice(
        name="`torch.compile(model)`",
        verdict="Nothing here: as much is kept for backward. `ullage predict` runs a compiled script with and without.",
        changes={"prepare": compiled},
        holds=is_same,
    ),
)
PICTURES = (
    Advice(
        name="`inplace=False` in every ReLU",
        verdict="So in-place saves nothing here: what BatchNorm hands on is not kept for backward, "
        "only what ReLU makes of it.",
        of=PictureLoop,
        changes={"prepare": not_in_place},
        holds=is_same,
    ),
    Advice(
        name="`channels_last`",
        verdict="Not about bytes. Whether it is faster, only a real card can tell.",
        of=PictureLoop,
        changes={"prepare": channels_last},
        holds=lambda own, none: abs(own.allocated / none.allocated - 1) < 0.05,
    ),
    Advice(
        name="`cudnn.benchmark = True`",
        verdict="The tensors are the same. What cuDNN takes while it tries things, only a real card can tell.",
        of=PictureLoop,
        changes={"prepare": with_benchmark},
        holds=is_same,
    ),
)
AFTER = (
    Advice(
        name="`empty_cache()` alone",
        verdict="Gives back what nobody holds: the cache. Nothing that is allocated.",
        after=lambda loop: collected(),
    ),
    Advice(
        name="`del model`",
        verdict="Nothing more: the optimizer holds the parameters.",
        holds=lambda own, none: own.allocated == none.allocated,
        after=model_gone,
    ),
    Advice(
        name="`del model, optimizer`",
        verdict="The last output and the loss are left.",
        holds=lambda own, none: 0 < own.allocated < none.allocated,
        after=optimizer_gone,
    ),
    Advice(
        name="detach all parameters under `no_grad`, then `del model, optimizer`",
        verdict="The same to the byte: detaching frees nothing.",
        after=detached,
    ),
    Advice(
        name="`del model, optimizer, output, loss`",
        verdict="cuBLAS's workspace is left.",
        holds=lambda own, none: own.allocated < 32 << 20,
        after=all_gone,
    ),
    Advice(
        name="`model.cpu()`",
        verdict="Moves parameters; gradients are none, the optimizer's state stays.",
        holds=lambda own, none: own.allocated < none.allocated,
        after=moved_to_host,
    ),
    Advice(
        name="`ullage.release(model, optimizer, output, loss)`",
        verdict="All of it, with the variables still there.",
        holds=lambda own, none: own.allocated == own.reserved == 0,
        after=released,
    ),
)
"""What is done after training, each with `gc.collect()` and `empty_cache()` after it."""
GROUPS = {
    "Less to do at once": SIZE,
    "Fewer bits": PRECISION,
    "The optimizer": OPTIMIZER,
    "Less kept for backward": ACTIVATIONS,
    "In and around the loop": LOOP,
    "ResNet-50, 96 pictures": PICTURES,
}
CONFS = (
    Conf(
        text="",
        name="none set",
        verdict="Runs out: there is memory, in pieces.",
        holds=lambda own: own.failed_at is not None,
    ),
    Conf(
        text="expandable_segments:True",
        verdict="**Works**, and reserves hardly more than was allocated. The one to try first.",
        holds=lambda own: own.failed_at is None and own.reserved < 1.05 * own.allocated and own.driver_calls < 5,
    ),
    Conf(
        text="max_split_size_mb:32",
        verdict="Gets through with the card full to the brim; what is large goes to the driver again and again.",
        holds=lambda own: own.failed_at is None and own.driver_calls > 20,
    ),
    Conf(
        text="max_split_size_mb:128",
        verdict="The same with fewer calls.",
        holds=lambda own: own.failed_at is None and own.driver_calls > 10,
    ),
    Conf(
        text="max_split_size_mb:512",
        verdict="The same with fewer still. Where no tensor is as large it [does nothing](settings.md).",
        holds=lambda own: own.failed_at is None and own.driver_calls > 5,
    ),
    Conf(
        text="garbage_collection_threshold:0.6",
        verdict="**Nothing**: without a limit for the process PyTorch collects nothing.",
        holds=lambda own: own.failed_at is not None,
    ),
    Conf(
        text="garbage_collection_threshold:0.6,per_process_memory_fraction:0.95",
        verdict="**Harms here**: it collects now, and the limit it needs is a smaller card.",
        holds=lambda own: own.failed_at is not None,
    ),
    Conf(
        text="roundup_power2_divisions:8",
        verdict="Not enough here; it was for [another run](settings.md).",
        holds=lambda own: own.failed_at is not None,
    ),
)
"""With batches of 64 to 1,024 tokens an item, no two alike."""
ONE, EVALUATION, VARIED = (group.title for group in habits.GROUPS)
HABITS = (
    Habit(name="none", section=ONE, verdict=""),
    Habit(name="`del loss, output` after each batch", section=ONE, verdict="Nothing."),
    Habit(name="`gc.collect()` after each batch", section=ONE, verdict="Nothing, and is slow."),
    Habit(
        name="`empty_cache()` after each batch",
        section=ONE,
        verdict="Allocates as much; the driver is asked for all of it again in each step.",
    ),
    Habit(name="`zero_grad(set_to_none=False)`", section=ONE, verdict="**Harms.** None is the default."),
    Habit(name="`losses.append(loss)`", section=ONE, verdict="512 bytes a step: it does not run out by this."),
    Habit(name="`losses.append(loss.item())`", section=ONE, verdict="Keeps nothing; waits for the card in each step."),
    Habit(name="`outputs.append(output.detach())`", section=ONE, verdict="**Harms**: runs out."),
    Habit(
        name="under `torch.no_grad()`",
        shown="evaluation under `torch.no_grad()`",
        section=EVALUATION,
        verdict="**Works**: without it the same loop runs out.",
    ),
    Habit(
        name="without `torch.no_grad()`",
        shown="evaluation without, `model.eval()` or not",
        section=EVALUATION,
        verdict="**Harms**: runs out.",
    ),
    Habit(
        name="the longest first",
        shown="lengths that vary, the longest first",
        section=VARIED,
        verdict="**Works**, where the same in random order runs out.",
    ),
    Habit(
        name="`empty_cache()` after each batch",
        shown="lengths that vary, `empty_cache()` after each batch",
        section=VARIED,
        verdict="Gets through; the setting above does it without those calls.",
    ),
)
