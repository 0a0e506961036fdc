"""Explains out-of-memory errors on Apple's GPUs."""

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.actions import generic_actions
from ullage.explaining.analysis.text.allocator.full import actions_of
from ullage.explaining.analysis.text.allocator.no_figures import judge_bare
from ullage.explaining.analysis.text.phase import FailurePhase
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.message import Message


def judge_apple(message: Message, situation: Situation) -> TextVerdict:
    """Return the verdict on a request that exceeds the limit of PyTorch's allocator for Apple's GPUs."""
    if message.requested_bytes is None or message.allowed_bytes is None or message.allocated_bytes is None:
        return judge_bare(message, situation)
    other = message.other_allocations_bytes or 0
    missing = message.requested_bytes + message.allocated_bytes + other - message.allowed_bytes
    limit = estimate(
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0, set before the program starts",
        "removes the limit; the GPU shares the host's memory, so macOS then swaps or ends programs",
    )
    empty = estimate(
        "torch.mps.empty_cache() before this line, smaller inputs, and no other Metal library in this process (MLX, "
        "Core ML)",
        f"{text_of_bytes(other)} are in other Metal allocations of this process: caches, MPSGraph's buffers, libraries",
    )
    is_other = other > message.allocated_bytes
    actions = tuple(actions_of(message, situation, message.requested_bytes, missing))
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"PyTorch held {text_of_bytes(message.allocated_bytes)} and other Metal allocations held "
            f"{text_of_bytes(other)} of the {text_of_bytes(message.allowed_bytes)} allowed when a request for "
            f"{text_of_bytes(message.requested_bytes)} failed."
        ),
        remedies=(empty, limit) if is_other else (*actions, limit),
        notes=(
            "the limit is a share of the memory that macOS recommends for the GPU "
            "(PYTORCH_MPS_HIGH_WATERMARK_RATIO, 1.7 by default)",
        ),
    )


def judge_metal_buffer(message: Message, situation: Situation) -> TextVerdict:
    """Return the verdict on a request that is larger than the largest single buffer of Apple's GPU."""
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes else "more than 4 GiB"
    most = (
        f", and a buffer may have at most {text_of_bytes(int(message.said['most_bytes']))}"
        if "most_bytes" in message.said
        else ""
    )
    actions = generic_actions(situation, f"one tensor of {asked}")
    split = estimate(
        "compute in smaller parts: a smaller batch, fewer frames, a smaller image, or attention in chunks (tiling, "
        "slicing)",
        f"one tensor of {asked} is needed at once; it is often an attention matrix or an upscaled image",
    )
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"A single request exceeds what Apple's GPU can have in one buffer: {asked} were requested at once{most}."
        ),
        remedies=(*actions, split) if situation.phase is FailurePhase.LOADING else (split,),
        notes=("GPU and CPU share the memory of a Mac: other programs use it too",),
    )
