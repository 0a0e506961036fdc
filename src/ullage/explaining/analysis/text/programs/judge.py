"""Selects the function that explains an out-of-memory message of another program, such as vLLM."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ullage.base.units import GIB
from ullage.explaining.analysis.text.account import CONTEXT_BYTES
from ullage.explaining.analysis.text.other_errors import is_first_call
from ullage.explaining.analysis.text.programs import libraries, others, servers, sglang, vllm
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.log import FoundMessage
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory
from ullage.recorded.message.wording import MessageKind

_JUDGES: Final[dict[str, TextVerdict | Callable[[Message, ServerMemory | None], TextVerdict]]] = {
    "vllm_no_blocks": vllm.no_blocks,
    "vllm_free_at_start": vllm.free_at_start,
    "vllm_length": vllm.length,
    "vllm_tokens": vllm.tokens,
    "vllm_sampler": vllm.sampler,
    "vllm_cumem": vllm.CUMEM,
    "vllm_profiling": vllm.profiling,
    "sglang_fraction": sglang.fraction,
    "sglang_requests": sglang.REQUESTS,
    "sglang_tokens": sglang.tokens,
    "sglang_weights": sglang.weights,
    "sglang_states": sglang.STATES,
    "flashinfer": servers.flashinfer,
    "tgi": servers.tgi,
    "trtllm_executor": servers.trtllm_executor,
    "trtllm_driver": servers.TRTLLM_DRIVER,
    "tensorrt_tactic": servers.tensorrt_tactic,
    "tensorrt_driver": servers.TENSORRT_DRIVER,
    "tensorrt_no_way": servers.tensorrt_no_way,
    "lmdeploy": servers.LMDEPLOY,
    "ray": servers.ray,
    "triton_pool": servers.TRITON_POOL,
    "ort_limit": servers.ORT_LIMIT,
    "guardrail": servers.GUARDRAIL,
    "dispatched": servers.DISPATCHED,
    "hami": servers.hami,
    "vllm_swap": vllm.SWAP,
    "lmcache_pool": servers.LMCACHE_POOL,
    "neuron": servers.neuron,
    "ray_perhaps": servers.RAY_PERHAPS,
    "onnxruntime": libraries.onnxruntime,
    "bitsandbytes": libraries.bitsandbytes,
    "triton_driver": libraries.TRITON_DRIVER,
    "cupy": libraries.cupy,
    "faiss": libraries.faiss,
    "rmm": libraries.RMM,
    "another_program": others.another_program,
    "ollama_perhaps": others.OLLAMA_PERHAPS,
    "tf_copy": others.TENSORFLOW_COPY,
    "unknown_words": others.unknown_words,
    "check": others.check,
}
_OF_THE_CARD: Final = (MessageKind.ALLOCATOR, MessageKind.DRIVER, MessageKind.LIBRARY)
_INSTEAD: Final = {
    "TensorFlow": others.TENSORFLOW_GROWTH,
    "CTranslate2": estimate(
        "end other programs on the GPU (nvidia-smi lists them), compute_type='int8', a smaller batch_size or "
        "beam_size, or a smaller model",
        "weights take one byte instead of two or four; activations grow with batch and beams",
    ),
    "onnxruntime": libraries.ONNXRUNTIME_LIMIT,
    "CuPy": libraries.CUPY_FREE,
    "another framework": others.SMALLER,
}
_FREE_FOR_LIBRARIES: Final = estimate(
    "free GPU memory before: end other programs (nvidia-smi lists them), or a smaller batch or model",
    "the library allocates GPU memory itself when it starts",
)
# The most memory in bytes that CUDA graphs, NCCL and kernel libraries normally hold in a model server.
_SERVER_LIBRARIES_BYTES: Final = 4 * GIB


def judge_program(message: Message, server: ServerMemory | None) -> TextVerdict | None:
    """Return the explanation of a message of another program, or None if the program is not known."""
    judge = _JUDGES.get(message.wording)
    return judge(message, server) if callable(judge) else judge


def libraries_bytes(found: FoundMessage) -> int:
    """Return the most memory that libraries normally hold outside PyTorch's allocator. It is larger for model
    servers.
    """
    is_server = found.server is not None or bool({"vLLM", "SGLang"} & set(found.context))
    return _SERVER_LIBRARIES_BYTES if is_server else CONTEXT_BYTES


def within_a_program(verdict: TextVerdict, found: FoundMessage) -> TextVerdict:
    """Explain an error of PyTorch, CUDA or a library. If it came from a known program, the advice names that program's
    settings.
    """
    is_before_loading = found.message.kind is MessageKind.DRIVER and is_first_call(found.frames, found.statement)
    if found.message.kind not in _OF_THE_CARD or is_before_loading:
        return verdict
    context = found.context
    # SGLang has used parts of vLLM; vLLM has never used parts of SGLang.
    is_vllm = "vLLM" in context or (found.server is not None and found.server.program == "vLLM")
    if is_vllm and "SGLang" not in context:
        return vllm.in_vllm(verdict, found.message, context, found.server)
    if "SGLang" in context or found.server is not None:
        return sglang.in_sglang(verdict, found.message, context, found.server)
    for program, remedy in _INSTEAD.items():
        if program in context and found.message.kind is not MessageKind.ALLOCATOR:
            notes = tuple(note for note in verdict.notes if "torch" not in note)
            sentence = verdict.sentence.replace("PyTorch's allocator", f"{program}'s allocator")
            notes = (f"the error occurred within {program}", *notes)
            others = (_FREE_FOR_LIBRARIES,) if found.message.kind is MessageKind.LIBRARY else ()
            return replace(verdict, sentence=sentence, remedies=(*others, remedy), notes=notes)
    return verdict
