"""Advice on a full GPU that follows from what the program was doing: the phase, the statement and the figures.

Each action is an estimate: an error message shows neither the tensors that held memory nor what a change would save.
The arithmetic of an action uses the figures of the message.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.remedy import Remedy
from ullage.explaining.analysis.text.domain import Domain
from ullage.explaining.analysis.text.phase import FailurePhase, Work
from ullage.explaining.analysis.text.situation import Situation
from ullage.explaining.analysis.text.verdict import estimate
from ullage.recorded.message.traceback import TextFrame

_SMALLER_INPUT: Final = "a smaller batch, image or sequence"
_SMALLER_WEIGHTS: Final = "smaller weights (bfloat16, quantized or offloaded)"
_LARGE_ONE_IN: Final = 10  # a request of a tenth of the GPU's memory or more is large
_TINY_CACHE: Final = 0.01
_SMALL_REQUEST: Final = 0.05
_MOSTLY: Final = 0.7
"""Parts of a GPU's memory: a cache, a request and live tensors as they are while weights are loaded."""
_LEAST_SHARE_PERCENT: Final = 1.0
"""The smallest saving that an action states. A smaller one suggests that almost nothing has to change."""
_UNSPECIFIC: Final = (FailurePhase.UNKNOWN, FailurePhase.FORWARD, FailurePhase.EVALUATION)
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
    cached_bytes: int | None = None
    """The bytes that PyTorch's allocator cached; None if the message does not state them."""
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
    def has_no_temporary(self) -> bool:
        """Whether hardly any memory was cached and the request was small, so that nothing had been released before.

        That is so while weights are loaded or optimizer states are created. A forward pass leaves a cache.
        """
        if self.total_bytes is None or self.cached_bytes is None:
            return False
        return (
            self.cached_bytes < _TINY_CACHE * self.total_bytes
            and self.requested_bytes < _SMALL_REQUEST * self.total_bytes
            and self.allocated_bytes > _MOSTLY * self.total_bytes
        )

    @property
    def arithmetic(self) -> str:
        """The part of a sentence that says how much memory is missing, allocated and requested."""
        if self.reason:
            return self.reason
        if self.missing_bytes <= 0:
            held = text_of_bytes(self.allocated_bytes)
            return f"full to within the rounding of the message, {held} allocated"
        if self.cached_bytes is None and self.total_bytes is not None:
            return f"at most {text_of_bytes(self.missing_bytes)} are missing; the message does not state the cache"
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
    is_in_user_code: bool = False
    """Whether only a user's own statement counts, because users cannot change the same statement of a library."""


_TENSORS: Final = (
    _Tensor(
        statement=re.compile(
            r"logits.{0,200}(float\(\)|float32|upcast)|cross_entropy\(|CrossEntropyLoss|loss_f(n|ct)\(|lm_head\("
        ),
        name="the logits, or their float32 copy for the loss",
        action=(
            "compute the loss in chunks of tokens (Liger-Kernel; linear_cross_entropy in torch 2.13), or shorten the "
            "sequences"
        ),
    ),
    _Tensor(
        statement=re.compile(
            r"\b(attn|attention|scores?|weights|sim)\w{0,60} {0,40}=.{0,200}(softmax|matmul|bmm|baddbmm|einsum|@)"
            r"|softmax\(.{0,200}(attn|scores?|weights)|matmul\((q|query)|bmm\((q|query)|torch\.baddbmm\("
            r"|scaled_dot_product_attention\("
        ),
        name="the attention scores, whose size grows with the square of the sequence length",
        action=(
            "use FlashAttention or memory-efficient attention (attn_implementation='sdpa'), or a shorter or smaller "
            "input"
        ),
    ),
    _Tensor(
        statement=re.compile(
            r"\bcdist\(|pairwise_distance|unsqueeze\(.{0,100}\) ?- ?.{0,100}unsqueeze\("
            r"|\[:, ?None\b.{0,100}-.{0,100}\[None"
        ),
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
        statement=re.compile(r"replay_?(?:buffer|memory)", re.IGNORECASE),
        name="the replay buffer",
        action="use a smaller replay buffer, or keep it in host memory (device='cpu')",
    ),
    _Tensor(
        statement=re.compile(r"\bone_hot\("),
        name="a one-hot tensor",
        action="use class indices instead, or an embedding",
    ),
    _Tensor(
        statement=re.compile(r"\btorch\.(zeros|empty|ones|full|rand|randn)\("),
        is_in_user_code=True,
        name="the tensor that this line creates",
        action="make this tensor smaller (its shape or data type), or create it on the CPU",
    ),
    _Tensor(
        statement=re.compile(
            r"\btorch\.(cat|stack|concat)\(|\brepeat(_interleave)?\(|\.expand\(.{0,200}\.(contiguous|clone)\("
        ),
        is_in_user_code=True,
        name="a copy that joins or repeats tensors",
        action="avoid the copy (write into one preallocated tensor), or move the parts to the CPU first",
    ),
    _Tensor(
        statement=re.compile(
            r"\bindex_select\(|\bgather\(|\w\[(idx|ind|index|indices|mask|edge_index|src|dst|row|col)\w*\]"
        ),
        is_in_user_code=True,
        name="a copy that indexing makes (for a graph: one row for each edge)",
        action="index in blocks, or sample a smaller subgraph or batch",
    ),
)


def tensor_of(situation: Situation) -> tuple[str, str] | None:
    """Return the name of the tensor that the failing statement creates, and how to make it smaller; None if unknown."""
    for frame in situation.frames[:6]:
        for tensor in _TENSORS:
            if (tensor.statement.search(frame.statement or "") or _names(tensor, frame)) and not (
                tensor.is_in_user_code and frame.is_library
            ):
                return tensor.name, tensor.action
        if not frame.is_library:
            break  # the callers of the user's innermost line do not create the tensor
    return None


def _names(tensor: _Tensor, frame: TextFrame) -> bool:
    """Return whether a frame's file is named after the tensor, as replay_buffer.py is."""
    return tensor.name == "the replay buffer" and tensor.statement.search(frame.file) is not None


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
    "exllama": "fewer bits per weight, a shorter max_seq_len, a quantized cache, or several GPUs (gpu_split)",
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
_TRAINING: Final = {
    "transformers": (
        "per_device_train_batch_size=1 with gradient_accumulation_steps, gradient_checkpointing=True, bf16=True, or "
        "shorter sequences"
    ),
    "": (
        "a smaller batch (with gradient accumulation), shorter or smaller inputs, activation checkpointing, or bfloat16"
    ),
}
_INFERENCE: Final = {
    "diffusers": (
        "pipe.enable_model_cpu_offload(), pipe.vae.enable_tiling(), a smaller image or fewer frames, or quantization"
    ),
    "comfy": _OF_COMFYUI,
    "": f"{_SMALLER_INPUT}, or {_SMALLER_WEIGHTS}",
}
_DECODING: Final = {
    "diffusers": "pipe.vae.enable_tiling() and pipe.vae.enable_slicing()",
    "comfy": "the node 'VAE Decode (Tiled)', with a smaller tile size",
    "": "encode or decode in tiles, or fewer images or frames at a time, in bfloat16 or float16",
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
    share = f"use at least {shortage.share} less memory" if _is_worth_stating(shortage) else "use less memory"
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
    elif tensor is None and _is_large(shortage) and situation.phase in _UNSPECIFIC:
        yield estimate(
            "a smaller batch, shorter sequences, a smaller image or fewer frames, memory-efficient attention (sdpa, "
            "FlashAttention), or tiling",
            f"one tensor of {text_of_bytes(shortage.requested_bytes)} is needed at once; {shortage.arithmetic}",
        )
    follow = _without_gradients if situation.has_gradients is False else _with_gradients
    for remedy in follow(situation, shortage, share):
        yield _without_batch(remedy) if situation.has_batch_of_one else remedy


def _without_batch(remedy: Remedy) -> Remedy:
    """Return advice without a smaller batch, for a program whose batch is one item already."""
    action = remedy.action or ""
    for words, rest in _BATCHES.items():
        action = action.replace(words, rest)
    return replace(remedy, action=action or None)


_BATCHES: Final = {
    "a smaller batch (with gradient accumulation), ": "",
    "per_device_train_batch_size=1 with gradient_accumulation_steps, ": "",
    "a smaller batch, ": "a smaller ",
    "a smaller batch or input": "a smaller input",
    " or a smaller batch;": ";",
}
"""Parts of advice about the batch, and what remains of them if the batch is one item."""
_LESS_WEIGHTS: Final = (
    (
        "in 4 or 8 bits (quantization)",
        r"load_in_[48]bit|quantization_config|BitsAndBytes|int[48]|fp8|gguf|awq|gptq|exl[23]|exllama",
    ),
    ("in bfloat16 (dtype=torch.bfloat16)", r"bfloat16|float16|\.half\(|bf16|fp16|load_in_[48]bit"),
    ("with CPU offload (device_map='auto')", r"device_map ?= ?.(?:auto|balanced|sequential)|offload"),
)
"""Ways to load weights in less memory, each with a pattern for statements that do it already."""


def _loading(situation: Situation) -> str:
    of_library = _of_library(_LOADING, situation)
    if of_library != _LOADING[""]:
        return of_library
    rest = [how for how, pattern in _LESS_WEIGHTS if not _shows(situation, pattern)]
    if not rest:
        return "a smaller model, or sharding over several GPUs"
    return f"load the weights {', or '.join(rest)}"


def _shows(situation: Situation, pattern: str) -> bool:
    texts = (f"{frame.file} {frame.statement or ''}" for frame in situation.frames[:12])
    return any(re.search(pattern, text, re.IGNORECASE) is not None for text in texts)


def _is_worth_stating(shortage: Shortage) -> bool:
    """Return whether the missing share is worth stating. After a small request, further ones probably fail too."""
    total = shortage.total_bytes
    is_small = total is not None and shortage.requested_bytes < _SMALL_REQUEST * total
    return shortage.requested_bytes > 0 and (shortage.share_percent >= _LEAST_SHARE_PERCENT or not is_small)


def _is_large(shortage: Shortage) -> bool:
    """Return whether one request is a large part of the GPU, so that its own size matters most."""
    total = shortage.total_bytes
    return total is not None and shortage.requested_bytes * _LARGE_ONE_IN >= total


def _without_gradients(situation: Situation, shortage: Shortage, share: str) -> Iterator[Remedy]:
    match situation.phase:
        case FailurePhase.LOADING:
            yield estimate(
                _loading(situation),
                f"weights were being loaded: a smaller batch does not help; {shortage.arithmetic}",
            )
            if _shows(situation, r"torch\.load|map_location|load_state_dict|load_checkpoint"):
                yield estimate(
                    "load the checkpoint on the CPU (map_location='cpu')",
                    "a checkpoint on the GPU is a second copy of the weights",
                )
            yield estimate(
                "release the model that is already on the GPU first, end other programs, or use several GPUs",
                "the weights need more than the memory that is left",
            )
        case FailurePhase.GENERATION | FailurePhase.EVALUATION if situation.domain is not None:
            yield from _of_domain(situation.domain, share)
        case FailurePhase.GENERATION:
            yield estimate(
                f"{share}: {_of_library(_GENERATION, situation)}",
                f"{shortage.arithmetic}; without gradients, activation checkpointing saves nothing",
            )
            yield estimate("load the weights in 8 or 4 bits", "in generation, most memory is weights and KV cache")
        case FailurePhase.DECODING if situation.domain is not None and not situation.domain.has_images:
            yield from _of_domain(situation.domain, share)
        case FailurePhase.DECODING:
            yield estimate(f"{share}: {_of_library(_DECODING, situation)}", shortage.arithmetic)
        case FailurePhase.EVALUATION if _of_library(_INFERENCE, situation) != _INFERENCE[""]:
            yield estimate(f"{share}: {_of_library(_INFERENCE, situation)}", shortage.arithmetic)
        case FailurePhase.EVALUATION:
            yield estimate(
                f"{share}: a smaller batch or input, in bfloat16, under torch.inference_mode()",
                f"{shortage.arithmetic}; without gradients, activation checkpointing saves nothing",
            )
            yield estimate(
                "move the outputs of each batch to the CPU before collecting them (eval_accumulation_steps in "
                "transformers)",
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
        case _:
            yield from _of_the_work(situation, shortage, share)


def _of_weights(situation: Situation, shortage: Shortage) -> Remedy:
    """Return the advice for a GPU that weights or optimizer states probably fill."""
    cached = text_of_bytes(shortage.cached_bytes or 0)
    why = f"only {cached} were cached, so weights or training state probably fill the GPU, as while a model is loaded"
    if situation.work is Work.TRAINING:
        return estimate("train with less state: LoRA, 4-bit weights (QLoRA), an 8-bit optimizer, FSDP or ZeRO", why)
    return estimate(
        "if it failed while weights were loaded: 4 or 8 bits, bfloat16 or CPU offload; otherwise a smaller batch, "
        "image or sequence",
        why,
    )


def _of_domain(domain: Domain, share: str) -> Iterator[Remedy]:
    yield estimate(f"{share}: {domain.advice}", domain.reason)


def _of_the_work(situation: Situation, shortage: Shortage, share: str) -> Iterator[Remedy]:
    """Yield the advice for a forward or backward pass, or for an unknown phase: training, inference, or unknown."""
    fills = estimate(
        f"if weights fill most of the GPU: {_SMALLER_WEIGHTS}",
        "the message does not show how much of the memory is weights",
    )
    is_comfy = "comfy" in situation.libraries
    if is_comfy and (situation.domain is None or situation.domain.has_images):
        yield estimate(f"{share}: {_OF_COMFYUI}", shortage.arithmetic)
        return
    if situation.domain is not None:
        yield from _of_domain(situation.domain, share)
    elif situation.phase is FailurePhase.UNKNOWN and shortage.has_no_temporary:
        yield _of_weights(situation, shortage)
    match situation.work:
        case Work.TRAINING:
            settings = next((text for name, text in _TRAINING.items() if name in situation.libraries), _TRAINING[""])
            yield estimate(f"{share}: {settings}", shortage.arithmetic)
            yield estimate(
                "train with less state: LoRA, an 8-bit optimizer, or sharding over several GPUs (FSDP, ZeRO)",
                "parameters, gradients and optimizer states do not depend on the batch",
            )
        case Work.INFERENCE:
            settings = _of_library(_INFERENCE, situation)
            yield estimate(f"{share}: {settings}", shortage.arithmetic)
            yield fills
        case _:
            yield estimate(
                f"{share}: {_SMALLER_INPUT}, {_SMALLER_WEIGHTS}; in training, activation checkpointing",
                shortage.arithmetic,
            )
