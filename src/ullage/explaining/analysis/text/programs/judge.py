"""Which function judges which wording of another program, and whose settings help where an error came within one.

The keys are the names of wordings in `ullage.recorded.message.program_wording`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ullage.base.units import GIB
from ullage.explaining.analysis.text.account import CONTEXT_BYTES
from ullage.explaining.analysis.text.programs import (
    frameworks,
    libraries,
    llama_cpp,
    others,
    ray,
    servers,
    sglang,
    tensorflow,
    vllm,
)
from ullage.explaining.analysis.text.verdict import TextVerdict, estimate
from ullage.recorded.message.log import FoundMessage
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory
from ullage.recorded.message.wording import MessageKind

JUDGES: Final[dict[str, Callable[[Message, ServerMemory | None], TextVerdict]]] = {
    "vllm_no_blocks": vllm.no_blocks,
    "vllm_free_at_start": vllm.free_at_start,
    "vllm_length": vllm.length,
    "vllm_tokens": vllm.tokens,
    "vllm_sampler": vllm.sampler,
    "vllm_cumem": vllm.cumem,
    "vllm_profiling": vllm.profiling,
    "sglang_fraction": sglang.fraction,
    "flashinfer": servers.flashinfer,
    "sglang_requests": sglang.requests,
    "sglang_tokens": sglang.tokens,
    "sglang_weights": sglang.weights,
    "sglang_states": sglang.states,
    "tgi": servers.tgi,
    "trtllm_executor": servers.trtllm_executor,
    "trtllm_driver": servers.trtllm_driver,
    "tensorrt_tactic": servers.tensorrt_tactic,
    "tensorrt_driver": servers.tensorrt_driver,
    "tensorrt_no_way": servers.tensorrt_no_way,
    "lmdeploy": servers.lmdeploy,
    "mlc": servers.mlc,
    "llama_buffer": llama_cpp.buffer,
    "llama_driver": llama_cpp.driver,
    "llama_pinned": llama_cpp.pinned,
    "llama_host": llama_cpp.host,
    "llama_machine_buffer": llama_cpp.machine_buffer,
    "llama_perhaps": llama_cpp.perhaps,
    "ray": ray.node,
    "ray_perhaps": ray.perhaps,
    "jax_pool": frameworks.jax_pool,
    "jax_tpu": frameworks.jax_tpu,
    "jax_driver_pool": frameworks.jax_driver_pool,
    "jax_shared": frameworks.jax_shared,
    "tf_tensor": tensorflow.tensor,
    "tf_request": tensorflow.request,
    "tf_copy": tensorflow.copy,
    "tf_not_a_failure": tensorflow.not_a_failure,
    "tf_pool": tensorflow.pool,
    "tf_pinned": tensorflow.pinned,
    "onnxruntime": frameworks.onnxruntime,
    "paddle": frameworks.paddle,
    "bitsandbytes": frameworks.bitsandbytes,
    "triton_driver": frameworks.triton_driver,
    "cupy": frameworks.cupy,
    "mlx": frameworks.mlx,
    "faiss": libraries.faiss,
    "mxnet": libraries.mxnet,
    "directml": libraries.directml,
    "blender": libraries.blender,
    "julia": libraries.julia,
    "openvino": libraries.openvino,
    "theano": libraries.theano,
    "unknown_words": others.unknown_words,
    "rmm": frameworks.rmm,
    "xgboost": frameworks.xgboost,
}
_OF_THE_CARD: Final = (MessageKind.ALLOCATOR, MessageKind.DRIVER, MessageKind.LIBRARY)
_INSTEAD: Final = {
    "TensorFlow": estimate(
        "tf.config.experimental.set_memory_growth(gpu, True)",
        "otherwise TensorFlow takes nearly all of the card at the start, and its libraries find nothing",
    ),
    "CTranslate2": estimate(
        "compute_type='int8' or 'int8_float16', a smaller batch_size or beam_size, or a smaller model",
        "weights in one byte instead of two or four; activations grow with batch and beams",
    ),
    "onnxruntime": estimate(
        "gpu_mem_limit and arena_extend_strategy=kSameAsRequested of CUDAExecutionProvider",
        "otherwise the arena doubles each time it grows, and leaves nothing for CUDA and its libraries",
    ),
    "MXNet": libraries.MXNET_RESERVE,
    "CUDA.jl": libraries.JULIA_RECLAIM,
    "Blender": libraries.BLENDER_SCENE,
    "CuPy": estimate(
        "cupy.get_default_memory_pool().free_all_blocks()", "what CuPy's pool keeps is free for libraries"
    ),
}


_SERVER_LIBRARIES_BYTES: Final = 4 * GIB
"""The most that CUDA graphs, NCCL and kernels' libraries hold in a server of models where nothing is wrong."""


def libraries_bytes(found: FoundMessage) -> int:
    """Return the most that libraries hold outside PyTorch's allocator, in the program whose log it is."""
    is_server = found.server is not None or bool({"vLLM", "SGLang"} & set(found.context))
    return _SERVER_LIBRARIES_BYTES if is_server else CONTEXT_BYTES


def within_a_program(verdict: TextVerdict, found: FoundMessage) -> TextVerdict:
    """Give an error of PyTorch, CUDA or a library the settings of the program in whose log it stands."""
    if found.message.kind not in _OF_THE_CARD:
        return verdict
    context = found.context
    # SGLang used parts of vLLM, never the other way round.
    is_vllm = "vLLM" in context or (found.server is not None and found.server.program == "vLLM")
    if is_vllm and "SGLang" not in context:
        return vllm.in_vllm(verdict, found.message, context, found.server)
    if "SGLang" in context or found.server is not None:
        return sglang.in_sglang(verdict, found.message, context, found.server)
    for program, remedy in _INSTEAD.items():
        if program in context and found.message.kind is not MessageKind.ALLOCATOR:
            notes = tuple(note for note in verdict.notes if "torch" not in note)
            sentence = verdict.sentence.replace("PyTorch's allocator", f"{program}'s allocator")
            notes = (f"it happened within {program}", *notes)
            return replace(verdict, sentence=sentence, remedies=(remedy,), notes=notes)
    return verdict
