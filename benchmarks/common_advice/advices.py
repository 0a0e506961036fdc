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

PLAIN = Advice(name="the loop without changes", verdict="", changes={"step": plain})
PLAIN_PICTURES = Advice(name="ResNet-50 without changes", verdict="", of=PictureLoop, changes={"step": plain})
SIZE = (
    Advice(
        name="a smaller batch: 6 instead of 12",
        verdict=(
            "**Works.** Activations and the computation of a step are halved; parameters, gradients "
            "and optimizer states stay the same."
        ),
        changes={"items": 6},
        holds=less(0.65),
        is_timed=True,
    ),
    Advice(
        name="gradient accumulation over 2 parts",
        verdict=(
            "**Works**, with the gradient of the full batch. If the parts have different numbers of "
            "tokens, weight their losses accordingly."
        ),
        changes={"step": in_parts(2)},
        holds=less(0.65),
        is_timed=True,
    ),
    Advice(
        name="gradient accumulation over 4 parts",
        verdict="**Works.** Halves the activations again. Use as few parts as fit: they are the fastest.",
        changes={"step": in_parts(4)},
        holds=less(0.45),
        is_timed=True,
    ),
    Advice(
        name="gradient accumulation over 12 parts",
        verdict=(
            "**Works.** This is the minimum for accumulation, because each part is one item; it also "
            "takes the most time."
        ),
        changes={"step": in_parts(12)},
        holds=less(0.4),
        is_timed=True,
    ),
    Advice(
        name="shorter sequences: 512 instead of 1,024",
        verdict="**Works** like half the batch: this attention does not store a length x length matrix.",
        length=512,
        holds=less(0.65),
    ),
)
PRECISION = (
    Advice(
        name="fp16 weights, `model.half()`",
        verdict=(
            "**Works**: parameters, gradients and optimizer states are halved. The effect on accuracy "
            "is not measured here."
        ),
        changes={"prepare": lambda model: model.half(), "autocast": False},
        holds=less(0.75),
    ),
    Advice(
        name="no autocast, all in fp32",
        verdict="**Shows what autocast saves**: without it the loop does not fit.",
        changes={"autocast": False},
        holds=lambda own, none: not own.fits,
    ),
    Advice(
        name="bf16 weights, `model.bfloat16()`",
        verdict=(
            "**Harms on a T4**: PyTorch has no bf16 attention kernel for it, so the scores "
            "of all pairs of tokens are stored, as in attention written by hand (see below)."
        ),
        changes={"prepare": lambda model: model.bfloat16(), "autocast": False},
        holds=lambda own, none: not own.fits,
    ),
    Advice(
        name="bf16 weights, on an A10",
        verdict=(
            '**Works** like fp16 on GPUs for which PyTorch has a bf16 attention kernel. "Fits" refers to the A10.'
        ),
        changes={"prepare": lambda model: model.bfloat16(), "autocast": False},
        card="A10",
        holds=less(0.75),
    ),
)
OPTIMIZER = (
    Advice(
        name="SGD instead of AdamW",
        verdict=("Saves both optimizer states of AdamW. Training results differ, because it is a different optimizer."),
        changes={"optimizer_of": optimizer("SGD")},
        holds=lambda own, none: own.allocated < none.allocated,
        is_timed=True,
    ),
    Advice(
        name="SGD with momentum",
        verdict="Saves one of the two optimizer states of AdamW.",
        changes={"optimizer_of": optimizer("SGD", momentum=0.9)},
        holds=lambda own, none: own.allocated < none.allocated,
        is_timed=True,
    ),
    Advice(
        name="Adafactor",
        verdict=(
            "Saves nearly all of both states here, because the parameters of GPT-2 are matrices. For convolutions, "
            "it saves less (see below). It is a different optimizer, too."
        ),
        changes={"optimizer_of": optimizer("Adafactor")},
        holds=lambda own, none: own.allocated < none.allocated,
        is_timed=True,
    ),
    Advice(
        name="`AdamW(foreach=False)`",
        verdict=(
            "No effect here, because the peak is not in the optimizer step. If it is, foreach's lists "
            "of temporary tensors take one copy of the parameters (other optimizers: none to three, see below)."
        ),
        changes={"optimizer_of": optimizer("AdamW", foreach=False)},
        holds=is_same,
    ),
    Advice(
        name="`AdamW(fused=True)`",
        verdict="No effect here, for the same reason.",
        changes={"optimizer_of": optimizer("AdamW", fused=True)},
        holds=is_same,
    ),
    Advice(
        name="optimizer step during backward, by hooks",
        verdict=(
            "No effect here: the peak is at the beginning of backward, before gradients exist. "
            "Excludes gradient clipping and a GradScaler."
        ),
        changes={"step": stepping_in_backward},
        holds=is_same,
        is_timed=True,
    ),
)
ACTIVATIONS = (
    Advice(
        name="checkpoint every block",
        verdict="**Works.** The forward pass is computed twice.",
        changes={"checkpointing": True},
        holds=less(0.75),
        is_timed=True,
    ),
    Advice(
        name="compute logits and loss for one item at a time",
        verdict="**Works** if the vocabulary is large: the logits are then the largest tensors.",
        changes={"step": loss_in_parts},
        holds=less(0.8),
        is_timed=True,
    ),
    Advice(
        name="`save_on_cpu()` around the forward pass",
        verdict=("**Works.** All saved tensors cross the PCIe bus twice; only a real GPU can measure that time."),
        changes={"forward_in": on_host},
        holds=less(0.75),
    ),
    Advice(
        name="attention written by hand in place of `scaled_dot_product_attention`",
        verdict=("**Shows what that function saves**: a length x length matrix of scores per head, in every block."),
        changes={"forward_in": attention_by_hand},
        holds=lambda own, none: own.allocated > 1.5 * none.allocated,
    ),
    Advice(
        name="freeze the lower half of the blocks",
        verdict="**Works**: blocks below the first trained block save nothing for backward.",
        changes={"prepare": frozen},
        holds=less(0.85),
        is_timed=True,
    ),
)
LOOP = (
    Advice(
        name="`del loss, output` before the optimizer's step",
        verdict="No effect: the peak is not in the optimizer step.",
        changes={"step": deleted_before_update},
        holds=is_same,
    ),
    Advice(
        name="`zero_grad()` right before backward",
        verdict=(
            "No effect here: gradients stay allocated during the forward pass, but are freed before "
            "the peak. Calling it right after the optimizer step is safer."
        ),
        changes={"step": zeroed_late},
        holds=is_same,
    ),
    Advice(
        name="`total = total + loss`",
        verdict=(
            "Almost no effect: after backward, the graph has freed its saved tensors. `total += "
            "loss.detach()` is equally good."
        ),
        changes={"step": summed},
        holds=is_same,
    ),
    Advice(
        name="`loss.cpu().backward()`",
        verdict="No effect: one number is copied, and backward runs on the GPU like the forward pass.",
        changes={"step": loss_on_host},
        holds=is_same,
    ),
    Advice(
        name="`pin_memory=True`, `num_workers=2`",
        verdict="No effect on GPU memory: these options affect host memory and time.",
        changes={"step": workers_and_pinned},
        holds=is_same,
    ),
    Advice(
        name="the data set in GPU memory (50,000 x 3 x 32 x 32)",
        verdict="**Harms**: it takes its own size.",
        changes={"step": all_data_on_card},
        holds=lambda own, none: own.allocated - none.allocated >= 50_000 * 3 * 32 * 32 * 4,
    ),
    Advice(
        name="`CUDA_LAUNCH_BLOCKING=1`",
        verdict="No effect: it helps to find the line of an asynchronous error.",
        environment={"CUDA_LAUNCH_BLOCKING": "1"},
        holds=is_same,
    ),
    Advice(
        name="`torch.compile(model)`",
        verdict=(
            "No effect here: the compiled model saves as much for backward. `ullage predict` runs a "
            "compiled script with and without compilation."
        ),
        changes={"prepare": compiled},
        holds=is_same,
    ),
)
PICTURES = (
    Advice(
        name="`inplace=False` in every ReLU",
        verdict=(
            "No effect, so in-place ReLU saves nothing here: autograd saves the output of ReLU in "
            "both cases, but not its input."
        ),
        of=PictureLoop,
        changes={"prepare": not_in_place},
        holds=is_same,
    ),
    Advice(
        name="`channels_last`",
        verdict="No effect on memory. Whether it is faster can only be measured on a real GPU.",
        of=PictureLoop,
        changes={"prepare": channels_last},
        holds=lambda own, none: abs(own.allocated / none.allocated - 1) < 0.05,
    ),
    Advice(
        name="`cudnn.benchmark = True`",
        verdict=(
            "Same tensors. The workspaces of cuDNN's benchmark are known only [if cuDNN is installed](cudnn_plans.md)."
        ),
        of=PictureLoop,
        changes={"prepare": with_benchmark},
        holds=is_same,
    ),
)
AFTER = (
    Advice(
        name="`empty_cache()` alone",
        verdict="Releases the allocator's cached memory only. Allocated memory stays allocated.",
        after=lambda loop: collected(),
    ),
    Advice(
        name="`del model`",
        verdict="Frees nothing more, because the optimizer has references to the parameters.",
        holds=lambda own, none: own.allocated == none.allocated,
        after=model_gone,
    ),
    Advice(
        name="`del model, optimizer`",
        verdict="The last output and the loss stay allocated.",
        holds=lambda own, none: 0 < own.allocated < none.allocated,
        after=optimizer_gone,
    ),
    Advice(
        name="detach all parameters under `no_grad`, then `del model, optimizer`",
        verdict="Exactly the same: detaching frees nothing.",
        after=detached,
    ),
    Advice(
        name="`del model, optimizer, output, loss`",
        verdict="Only the workspace of cuBLAS stays allocated.",
        holds=lambda own, none: own.allocated < 32 << 20,
        after=all_gone,
    ),
    Advice(
        name="`model.cpu()`",
        verdict=("Moves the parameters. Gradients are None already; the optimizer's state stays on the GPU."),
        holds=lambda own, none: own.allocated < none.allocated,
        after=moved_to_host,
    ),
    Advice(
        name="`ullage.release(model, optimizer, output, loss)`",
        verdict="Frees everything, although the variables still exist.",
        holds=lambda own, none: own.allocated == own.reserved == 0,
        after=released,
    ),
)
"""What is done after training, each with `gc.collect()` and `empty_cache()` after it."""
GROUPS = {
    "Smaller batches and sequences": SIZE,
    "Data types with fewer bits": PRECISION,
    "The optimizer": OPTIMIZER,
    "Fewer tensors saved for backward": ACTIVATIONS,
    "Changes in and around the loop": LOOP,
    "ResNet-50, 96 images": PICTURES,
}
CONFS = (
    Conf(
        text="",
        name="no setting",
        verdict="Runs out of memory because of fragmentation: enough is free, but not in one piece.",
        holds=lambda own: own.failed_at is not None,
    ),
    Conf(
        text="expandable_segments:True",
        verdict=(
            "**Works**, and reserves hardly more than is allocated. Try this setting first. It has to "
            "be in the environment before the process starts."
        ),
        holds=lambda own: own.failed_at is None and own.reserved < 1.05 * own.allocated and own.driver_calls < 5,
    ),
    Conf(
        text="max_split_size_mb:32",
        verdict=(
            "Does not run out, but reserves all of the GPU; large blocks are requested from the driver again and again."
        ),
        holds=lambda own: own.failed_at is None and own.driver_calls > 20,
    ),
    Conf(
        text="max_split_size_mb:128",
        verdict="The same, with fewer driver calls.",
        holds=lambda own: own.failed_at is None and own.driver_calls > 10,
    ),
    Conf(
        text="max_split_size_mb:512",
        verdict=(
            "The same, with even fewer driver calls. If no tensor is that large, it [has no effect](settings.md)."
        ),
        holds=lambda own: own.failed_at is None and own.driver_calls > 5,
    ),
    Conf(
        text="garbage_collection_threshold:0.6",
        verdict="**No effect**: PyTorch ignores it unless a memory limit is set for the process.",
        holds=lambda own: own.failed_at is not None,
    ),
    Conf(
        text="garbage_collection_threshold:0.6,per_process_memory_fraction:0.95",
        verdict=("**Harms here**: it is active now, but the limit that it requires makes less memory available."),
        holds=lambda own: own.failed_at is not None,
    ),
    Conf(
        text="roundup_power2_divisions:8",
        verdict="Not enough here; it was enough for [a different run](settings.md).",
        holds=lambda own: own.failed_at is not None,
    ),
)
"""With batches of 64 to 1,024 tokens an item, no two alike."""
