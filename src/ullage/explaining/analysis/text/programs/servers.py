"""Explains memory errors of text-generation-inference, TensorRT-LLM, TensorRT, LMDeploy and Ray."""

from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import SEE_NVIDIA_SMI, TextVerdict, estimate
from ullage.recorded.message.figure import bytes_of, number_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

TRTLLM_DRIVER: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence="TensorRT-LLM could not get GPU memory from the driver; the message does not contain the requested size.",
    remedies=(
        estimate(
            "a lower max_batch_size or max_seq_len when the engine is built",
            "buffers have the size of the largest batch",
        ),
        estimate(
            "a lower kv_cache_config.free_gpu_memory_fraction",
            "if the KV cache was already allocated; the default is 0.9",
        ),
    ),
    notes=(SEE_NVIDIA_SMI,),
)
"""The explanation of a CUDA driver error in TensorRT-LLM. Its message contains no sizes."""
TENSORRT_DRIVER: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence="TensorRT could not get GPU memory from the driver; the message does not contain the requested size.",
    remedies=(
        estimate("a smaller workspace, fewer contexts or a smaller profile", "each context has its own buffers"),
    ),
    notes=(SEE_NVIDIA_SMI,),
)
"""The explanation of an allocation in TensorRT that the CUDA driver refused. Its message contains no sizes."""
LMDEPLOY: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence="LMDeploy's engine (TurboMind) could not get GPU memory; the message does not contain the requested size.",
    remedies=(
        estimate(
            "a lower cache_max_entry_count",
            "the KV cache takes that share of the memory left free by the weights (0.8)",
        ),
        estimate("a lower session_len or max_batch_size", "buffers have the size of the largest batch"),
    ),
    notes=(SEE_NVIDIA_SMI,),
)
"""The explanation of an out-of-memory error in TurboMind, LMDeploy's engine. Its message contains no sizes."""
RAY_PERHAPS: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence=(
        "A worker of Ray ended, and Ray does not know why: it lists host memory as one of several possible reasons."
    ),
    notes=(
        "dmesg -T | grep -i kill, or kubectl describe pod (OOMKilled), shows whether memory was the reason",
        "the last lines of the worker's log are in /tmp/ray/session_latest/logs",
    ),
)
"""The explanation of a Ray worker that ended for an unknown reason. Host memory may have run out."""


def tgi(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain a warm-up of text-generation-inference that ran out of memory. The warm-up runs the largest allowed
    batch.
    """
    total, prefill = message.said.get("total_tokens"), message.said.get("prefill_tokens")
    asked = f"{total} tokens in total" if total else f"{prefill} prefill tokens" if prefill else "its largest batch"
    lower = "max-batch-total-tokens" if total else "max-batch-prefill-tokens"
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"text-generation-inference had too little GPU memory left for {asked} in its warm-up.",
        remedies=(
            estimate(f"a lower --{lower}", "the warm-up runs that number of tokens"),
            estimate("--quantize, or --num-shard on more GPUs", "if even few tokens fail, the weights fill the GPU"),
        ),
        notes=("give the whole log: the traceback above has PyTorch's own error with the figures",),
    )


def trtllm_executor(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain why TensorRT-LLM's executor could not create one of its components."""
    component = message.said.get("component", "a component").strip()
    figures = ""
    if message.free_bytes is not None and message.total_bytes is not None:
        figures = f" with {text_of_bytes(message.free_bytes)} of {text_of_bytes(message.total_bytes)} free"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"TensorRT-LLM could not create its {component}{figures}: its settings require more GPU memory than is "
            "free."
        ),
        remedies=(
            estimate(
                "a lower kv_cache_config.free_gpu_memory_fraction",
                "the KV cache takes that share of free memory (default 0.9); the rest is for later components",
            ),
            estimate(
                "a lower max_batch_size, max_num_tokens or max_seq_len", "buffers have the size of the largest batch"
            ),
        ),
        notes=("the list of components in the message shows the memory of each",),
    )


def tensorrt_tactic(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain TensorRT's warning that an algorithm for a layer needs more memory than is free."""
    asked = f" ({text_of_bytes(message.requested_bytes)})" if message.requested_bytes is not None else ""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"A warning of TensorRT's builder: one algorithm for a layer needs more memory{asked} than was free, and "
            "is skipped. The engine is still built unless no algorithm is left."
        ),
        remedies=(
            estimate("a smaller workspace (MemoryPoolType.WORKSPACE)", "excludes these algorithms from the start"),
        ),
    )


def tensorrt_no_way(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain why TensorRT could not build an engine: every algorithm for a layer needs more memory than is free."""
    asked = f" (the last {text_of_bytes(message.requested_bytes)})" if message.requested_bytes is not None else ""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"TensorRT's builder found no algorithm for a layer: every algorithm needs more GPU memory{asked} than was "
            "free."
        ),
        remedies=(
            estimate("build while nothing else uses the GPU", "the builder needs more memory than the engine"),
            estimate("a smaller profile (batch or image), or float16", "each algorithm needs less memory then"),
            estimate(
                "a larger workspace limit (MemoryPoolType.WORKSPACE), if one is set", "a low limit excludes algorithms"
            ),
        ),
        notes=(SEE_NVIDIA_SMI,),
    )


def flashinfer(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain that FlashInfer's workspace, which has a fixed size, is too small."""
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes is not None else "the requested memory"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"FlashInfer's workspace is too small, not the GPU's memory: {asked} did not fit into the workspace, "
            "which has a fixed size."
        ),
        remedies=(
            estimate(
                "a larger workspace: SGLANG_FLASHINFER_WORKSPACE_SIZE in SGLang (FLASHINFER_WORKSPACE_SIZE in older "
                "versions), in bytes",
                "attention kernels keep partial results in it, more of them with more tokens at once",
            ),
            estimate("a lower chunked_prefill_size or max_running_requests", "fewer tokens at once"),
        ),
    )


TRITON_POOL: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence=(
        "The CUDA memory pool of Triton Inference Server is too small, not the GPU's memory: the server copies tensors "
        "of requests through this pool, which has 64 MiB by default."
    ),
    remedies=(
        estimate(
            "tritonserver --cuda-memory-pool-byte-size=0:1073741824 (GPU 0, 1 GiB)", "at least the tensors of one batch"
        ),
        estimate("smaller batches, or fewer instances of the model", "each needs its tensors in the pool"),
    ),
)
LMCACHE_POOL: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence="LMCache's pool of host memory for the KV cache is full; the limit is a setting of LMCache.",
    remedies=(
        estimate("a higher LMCACHE_MAX_LOCAL_CPU_SIZE (max_local_cpu_size, in GB)", "it must fit into host memory"),
        estimate("update LMCache", "newer versions evict old entries when the pool is full"),
    ),
)


ORT_LIMIT: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence=(
        "onnxruntime's memory arena reached its own limit (gpu_mem_limit), so it did not ask the driver; the GPU may "
        "have had free memory."
    ),
    remedies=(
        estimate("a higher gpu_mem_limit of the CUDA execution provider, or none", "the limit is in bytes"),
        estimate("smaller batches or fewer sessions at once", "each session has its own arena"),
    ),
)
GUARDRAIL: Final = TextVerdict(
    cause=Cause.LIMIT,
    sentence=(
        "LM Studio refused to load the model: by its own estimate the model needs more memory than the machine has. No "
        "request has failed."
    ),
    remedies=(
        estimate(
            "a shorter context length, or a smaller or more quantized model",
            "the KV cache for a long context can need more memory than the weights",
        ),
        estimate("relax the model loading guardrails in the settings", "the estimate may be too high"),
    ),
)
DISPATCHED: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    likely=Cause.TRULY_FULL,
    sentence=(
        "The quantized model does not fit on the free memory of the GPU, so Accelerate planned to put a part of it on "
        "the CPU or disk, and the quantization does not allow that."
    ),
    remedies=(
        estimate(
            "a GPU with more memory, a smaller model, or 4-bit instead of 8-bit weights",
            "all quantized weights must fit on the GPU",
        ),
        estimate(
            "end other programs on the GPU (nvidia-smi), or allow CPU offload (llm_int8_enable_fp32_cpu_offload=True "
            "with a device_map)",
            "Accelerate plans with the memory that is free at that time",
        ),
    ),
)


def hami(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain an allocation that the vGPU layer HAMi refused at its own limit."""
    used, limit = int(message.said["used"]), int(message.said["limit"])
    if used > 1 << 60:
        return TextVerdict(
            cause=Cause.BOGUS_SIZE,
            sentence="The vGPU layer HAMi counted less than zero bytes in use (an overflow), a bug of its accounting.",
            remedies=(estimate("restart the pod and update HAMi", "the GPU is not full"),),
        )
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=(
            f"The vGPU layer HAMi refused the request at its own limit: {text_of_bytes(used)} would be in use, and the "
            f"pod may use {text_of_bytes(limit)}."
        ),
        remedies=(
            estimate("a higher GPU memory limit for the pod (nvidia.com/gpumem), or a whole GPU", "the limit of HAMi"),
            estimate("a smaller batch or model", "fits below the limit"),
        ),
    )


def neuron(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain an allocation that AWS's Neuron runtime refused."""
    asked = text_of_bytes(message.requested_bytes or 0)
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"The memory of the Neuron device is too small: {asked} were requested at once.",
        remedies=(
            estimate(
                "a smaller or more widely sharded model (tensor parallelism), or a smaller batch or sequence length",
                f"one request of {asked}",
            ),
            estimate(
                "update transformers, or load without device_map",
                "older versions request the size of all weights at once to warm up the allocator",
            ),
        ),
    )


def ray(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Explain why Ray ended a task when host memory was nearly used up."""
    used, total, said = message.host_used_bytes, message.host_total_bytes, message.said
    figures = ""
    if used is not None and total is not None:
        figures = f": {text_of_bytes(used)} of {text_of_bytes(total)} were in use"
        figures += f", and Ray ends a task above {number_of(said['threshold']):.0%}" if "threshold" in said else ""
    notes = [
        "a container or a batch system may allow less than the machine's memory; Ray takes that limit into account"
    ]
    if "task_bytes" in said and used is not None:
        notes.insert(0, f"the ended task held {text_of_bytes(bytes_of(said['task_bytes']))} of it")
    figures = figures or ", and Ray ended a task or a worker"
    return TextVerdict(
        cause=Cause.HOST_MEMORY,
        sentence=f"Host memory ran out, not GPU memory{figures}.",
        remedies=(
            estimate(
                "fewer tasks at once: num_cpus or memory in @ray.remote", "each task has its own data and libraries"
            ),
            estimate(
                "RAY_memory_usage_threshold=0.98, set before ray start",
                "Ray waits longer; then the system may kill a process instead",
            ),
        ),
        notes=tuple(notes),
    )
