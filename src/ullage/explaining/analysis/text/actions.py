"""Advice on a full GPU that follows from what the program was doing: the phase, the statement and the figures.

Each action is an estimate: an error message shows neither the tensors that held memory nor what a change would save.
The arithmetic of an action uses the figures of the message.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.situation import FailurePhase, Situation
from ullage.explaining.analysis.text.verdict import estimate

_LARGE_PART: Final = 0.5
"""A share of the missing memory. A request of at least this share is reported as the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The figures of a request that failed because the GPU was full, in bytes."""

    requested_bytes: int
    missing_bytes: int
    """The requested bytes minus the free and the cached bytes. Rounding in the error message can make the result 0 or
    negative.
    """
    allocated_bytes: int
    total_bytes: int | None
    reason: str = ""
    """The reason for the actions if the message has no figures."""

    @property
    def share_percent(self) -> float:
        """The percentage by which peak memory must shrink so that the request succeeds.

        Peak memory is the sum of the allocated and the requested bytes.
        """
        peak = self.allocated_bytes + self.requested_bytes
        return 100 * max(self.missing_bytes, 0) / peak if peak else 100.0

    @property
    def share(self) -> str:
        """The share of peak memory that must be saved, as text such as "0.5 %" or "12 %". It is at most 99 %."""
        percent = self.share_percent
        if self.missing_bytes <= 0:
            return "1 %"
        if percent < 1:
            return f"{max(percent, 0.1):.1f} %"
        return f"{min(99, -(-percent // 1)):.0f} %"

    @property
    def arithmetic(self) -> str:
        """The part of a sentence that says how much memory is missing, allocated and requested."""
        if self.reason:
            return self.reason
        if self.missing_bytes <= 0:
            return (
                f"the missing memory is less than the message's rounding, with {text_of_bytes(self.allocated_bytes)} "
                "allocated"
            )
        return (
            f"{text_of_bytes(self.missing_bytes)} are missing of {text_of_bytes(self.allocated_bytes)} allocated + "
            f"{text_of_bytes(self.requested_bytes)} requested"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor that a statement creates, and how to make it smaller."""

    statement: re.Pattern[str]
    name: str
    action: str


_TENSORS: Final = (
    _Tensor(
        statement=re.compile(
            r"logits.*(float\(\)|float32|upcast)|cross_entropy\(|CrossEntropyLoss|loss_f(n|ct)\(|lm_head\("
        ),
        name="the logits, or their float32 copy for the loss",
        action=(
            "compute the loss in chunks of tokens (Liger-Kernel; linear_cross_entropy in torch 2.13), or shorten the "
            "sequences"
        ),
    ),
    _Tensor(
        statement=re.compile(
            r"\b(attn|attention|scores?|weights|sim)\w* *=.*(softmax|matmul|bmm|baddbmm|einsum|@)"
            r"|softmax\(.*(attn|scores?|weights)|matmul\((q|query)|bmm\((q|query)|torch\.baddbmm\("
            r"|scaled_dot_product_attention\("
        ),
        name="the attention scores, whose size grows with the square of the sequence length",
        action=(
            "use FlashAttention or memory-efficient attention (attn_implementation='sdpa'), or a shorter or smaller "
            "input"
        ),
    ),
    _Tensor(
        statement=re.compile(r"\bcdist\(|pairwise_distance|unsqueeze\(.*\) *- *.*unsqueeze\(|\[:, *None\b.*-.*\[None"),
        name="the distances of all pairs",
        action="compute the distances in blocks of rows",
    ),
    _Tensor(
        statement=re.compile(r"\binterpolate\(|\bUpsample\(|\bupsample\w*\(|\bresize\("),
        name="the enlarged image or feature map",
        action="process the input in tiles, or reduce its resolution",
    ),
    _Tensor(
        statement=re.compile(r"\bF\.pad\(|\bfunctional\.pad\("),
        name="the padded copy of a feature map",
        action="process the input in tiles or in fewer frames, or reduce its resolution",
    ),
    _Tensor(
        statement=re.compile(r"\bunfold\(|im2col|_slow_conv"),
        name="the patches of a convolution (im2col)",
        action="process fewer images at a time, or use a convolution that does not unfold its input",
    ),
    _Tensor(
        statement=re.compile(r"\bone_hot\("),
        name="a one-hot tensor",
        action="use class indices instead, or an embedding",
    ),
    _Tensor(
        statement=re.compile(
            r"\btorch\.(cat|stack|concat)\(|\brepeat(_interleave)?\(|\.expand\(.*\.(contiguous|clone)\("
        ),
        name="a copy that joins or repeats tensors",
        action="avoid the copy (write into one preallocated tensor), or move the parts to the CPU first",
    ),
    _Tensor(
        statement=re.compile(
            r"\bindex_select\(|\bgather\(|\w\[(idx|ind|index|indices|mask|edge_index|src|dst|row|col)\w*\]"
        ),
        name="a copy that indexing makes (for a graph: one row for each edge)",
        action="index in blocks, or sample a smaller subgraph or batch",
    ),
)


def tensor_of(situation: Situation) -> tuple[str, str] | None:
    """Return the name of the tensor that the failing statement creates, and how to make it smaller; None if unknown."""
    for frame in situation.frames[:6]:
        for tensor in _TENSORS:
            if frame.statement and tensor.statement.search(frame.statement):
                return tensor.name, tensor.action
        if not frame.is_library:
            break  # the callers of the user's innermost line do not create the tensor
    return None


def one_tensor(situation: Situation) -> Remedy:
    """Return the advice for a single request that is far larger than expected."""
    tensor = tensor_of(situation)
    if tensor is not None:
        return estimate(tensor[1], f"the request is probably {tensor[0]}")
    return estimate(
        "use memory-efficient attention (sdpa, FlashAttention), a shorter sequence or context, a smaller image or "
        "fewer frames, or update the library",
        "a single request of this size is usually an attention matrix, the logits of a long sequence, or a wrong shape",
    )


_OF_COMFYUI: Final = (
    "start ComfyUI with --lowvram, use a quantized (fp8, GGUF) model, or a smaller image or fewer frames"
)
_LOADING: Final = {
    "diffusers": "pipe.enable_model_cpu_offload(), or load in bfloat16 (torch_dtype=torch.bfloat16)",
    "comfy": "start ComfyUI with --lowvram, or use a quantized (GGUF, fp8) version of the model",
    "vllm": "a smaller or quantized model, or more GPUs (--tensor-parallel-size)",
    "sglang": "a smaller or quantized model, or more GPUs (--tp-size)",
    "": (
        "load the weights in 4 or 8 bits (quantization) or in bfloat16 (dtype=torch.bfloat16), or with CPU offload "
        "(device_map='auto')"
    ),
}
_GENERATION: Final = {
    "": (
        "shorter prompts, fewer new tokens or a smaller batch; a quantized or offloaded KV cache (cache_implementation)"
    ),
}
_DECODING: Final = {
    "diffusers": "pipe.vae.enable_tiling() and pipe.vae.enable_slicing()",
    "comfy": "the node 'VAE Decode (Tiled)', with a smaller tile size",
    "": "decode in tiles or fewer frames at a time, in bfloat16 or float16",
}


def _of_library(table: dict[str, str], situation: Situation) -> str:
    where = " ".join((*situation.libraries, *(frame.file for frame in situation.frames))).lower()
    return next((text for name, text in table.items() if name and name in where), table[""])


def generic_actions(situation: Situation, why: str) -> Iterator[Remedy]:
    """Yield what may help when the GPU is full but the message has no figures.

    Args:
        situation: what the program was doing.
        why: the reason that each action gives.
    """
    shortage = Shortage(requested_bytes=0, missing_bytes=0, allocated_bytes=0, total_bytes=None, reason=why)
    yield from actions_for(situation, shortage)


def actions_for(situation: Situation, shortage: Shortage) -> Iterator[Remedy]:
    """Yield what may help when the GPU is full, the most useful action first."""
    share = "use less memory at the peak" if shortage.reason else f"use {shortage.share} less memory at the peak"
    tensor = tensor_of(situation)
    is_one_request = shortage.requested_bytes >= _LARGE_PART * max(shortage.missing_bytes, 1) and (
        shortage.total_bytes is None or shortage.requested_bytes * 50 >= shortage.total_bytes
    )
    if tensor is not None and is_one_request:
        of_gpu = (
            f", {100 * shortage.requested_bytes / shortage.total_bytes:.0f} % of the GPU"
            if shortage.total_bytes
            else ""
        )
        yield estimate(
            tensor[1], f"the request of {text_of_bytes(shortage.requested_bytes)}{of_gpu} is probably {tensor[0]}"
        )
    if situation.has_gradients is False:
        yield from _without_gradients(situation, shortage, share)
    else:
        yield from _with_gradients(situation, shortage, share)


def _without_gradients(situation: Situation, shortage: Shortage, share: str) -> Iterator[Remedy]:
    match situation.phase:
        case FailurePhase.LOADING:
            yield estimate(
                _of_library(_LOADING, situation),
                f"weights were being loaded: a smaller batch does not help; {shortage.arithmetic}",
            )
            yield estimate(
                "load the checkpoint on the CPU (map_location='cpu'), and release the model that is already on the GPU",
                "a checkpoint on the GPU is a second copy of the weights",
            )
        case FailurePhase.GENERATION:
            yield estimate(
                f"{share}: {_of_library(_GENERATION, situation)}",
                f"{shortage.arithmetic}; without gradients, activation checkpointing saves nothing",
            )
            yield estimate("load the weights in 8 or 4 bits", "in generation, most memory is weights and KV cache")
        case FailurePhase.DECODING:
            yield estimate(f"{share}: {_of_library(_DECODING, situation)}", shortage.arithmetic)
        case FailurePhase.EVALUATION:
            yield estimate(
                f"{share}: a smaller batch or input, in bfloat16, under torch.inference_mode()",
                f"{shortage.arithmetic}; without gradients, activation checkpointing saves nothing",
            )
            yield estimate(
                "move the outputs of each batch to the CPU before collecting them",
                "collected outputs stay on the GPU until the evaluation ends",
            )
        case FailurePhase.GATHERING:
            yield estimate(
                "gather the state dict on the CPU, or save it sharded (torch.distributed.checkpoint)",
                f"collecting all parameters on one GPU needs a second copy of the model; {shortage.arithmetic}",
            )


def _with_gradients(situation: Situation, shortage: Shortage, share: str) -> Iterator[Remedy]:
    match situation.phase:
        case FailurePhase.OPTIMIZER:
            yield estimate(
                "an optimizer with smaller states (8-bit AdamW, Adafactor), or sharded states (FSDP, ZeRO)",
                f"the first step creates the states: 8 bytes per parameter for AdamW; {shortage.arithmetic}",
            )
            yield estimate(
                "foreach=False or fused=True in the optimizer", "a foreach step makes copies as large as the parameters"
            )
        case FailurePhase.PREPARING:
            yield estimate(
                "train fewer parameters (LoRA, frozen layers), or shard the training state (FSDP, ZeRO-3)",
                f"wrapping a model creates gradient buckets or copies; {shortage.arithmetic}",
            )
            yield estimate(
                "bfloat16 weights and an optimizer with smaller states (8-bit AdamW)",
                "full training in float32 needs 16 bytes per parameter before any activation",
            )
        case FailurePhase.COMPILING:
            yield estimate(
                "leave memory free while kernels are tuned: torch.compile without mode='max-autotune'",
                f"autotuning allocates inputs and workspaces for each candidate kernel; {shortage.arithmetic}",
            )
        case _ if "comfy" in situation.libraries:
            yield estimate(f"{share}: {_OF_COMFYUI}", shortage.arithmetic)
        case _:
            yield estimate(f"{share}: a smaller batch, or activation checkpointing", shortage.arithmetic)
            yield estimate(
                "if weights fill most of the GPU: bfloat16 or quantized (8-bit, 4-bit) weights, CPU offload, LoRA, or "
                "sharding over several GPUs (FSDP, ZeRO)",
                "the message does not show how much of the memory is weights",
            )
