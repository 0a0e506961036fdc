"""What threads and guides advise against running out of memory, each as a change to a loop, and what is said of it.

What is said is said by hand, and `holds` is what must have been measured for it to be true.
"""

from benchmarks.common_advice.advice import Advice, Conf, is_same, less
from benchmarks.common_advice.change import (
    all_data_on_card,
    all_gone,
    attention_by_hand,
    channels_last,
    collected,
    compiled,
    deleted_before_update,
    detached,
    frozen,
    in_parts,
    loss_in_parts,
    loss_on_host,
    model_gone,
    moved_to_host,
    not_in_place,
    on_host,
    optimizer,
    optimizer_gone,
    released,
    stepping_in_backward,
    summed,
    with_benchmark,
    workers_and_pinned,
    zeroed_late,
)
from benchmarks.common_advice.loop import PictureLoop, plain

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
        verdict="**Works**, with the gradient of the whole batch; mind the weights where parts have unequal numbers "
        "of tokens.",
        changes={"step": in_parts(2)},
        holds=less(0.65),
        is_timed=True,
    ),
    Advice(
        name="accumulate over 4 parts",
        verdict="**Works.** Saves half of the rest again. As few parts as fit are the fastest.",
        changes={"step": in_parts(4)},
        holds=less(0.45),
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
        verdict="The tensors are the same. What cuDNN takes while it tries things is known "
        "[where it is installed](cudnn_plans.md).",
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
        verdict="**Works**, and reserves hardly more than was allocated. The one to try first; it has to be in "
        "the environment before the process begins.",
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
