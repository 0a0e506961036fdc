"""Servers and engines beside vLLM and SGLang: text-generation-inference, TensorRT-LLM, TensorRT, LMDeploy; Ray."""

from typing import Final

from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.verdict import SEE_NVIDIA_SMI, TextVerdict, estimate
from ullage.recorded.message.figure import bytes_of, number_of
from ullage.recorded.message.message import Message
from ullage.recorded.message.server_log import ServerMemory

TRTLLM_DRIVER: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence="TensorRT-LLM got no memory of the card from the driver; the text does not say how much it asked for.",
    remedies=(
        estimate("a lower max_batch_size or max_seq_len when the engine is built", "buffers are made for the largest"),
        estimate(
            "a lower kv_cache_config.free_gpu_memory_fraction",
            "where the KV cache was made before; the default is 0.9",
        ),
    ),
    notes=(SEE_NVIDIA_SMI,),
)
"""The verdict on an error of the driver within TensorRT-LLM, without figures."""
TENSORRT_DRIVER: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence="TensorRT got no memory of the card from the driver; the text does not say how much it asked for.",
    remedies=(
        estimate("a smaller workspace, fewer contexts or a smaller profile", "each context has buffers of its own"),
    ),
    notes=(SEE_NVIDIA_SMI,),
)
"""The verdict on TensorRT's own allocation, without figures."""
LMDEPLOY: Final = TextVerdict(
    cause=Cause.TRULY_FULL,
    sentence="LMDeploy's engine (TurboMind) got no memory of the card; the text does not say how much it wanted.",
    remedies=(
        estimate(
            "a lower cache_max_entry_count", "the KV cache takes that share of what is free after the weights (0.8)"
        ),
        estimate("a lower session_len or max_batch_size", "buffers are made for the largest"),
    ),
    notes=(SEE_NVIDIA_SMI,),
)
"""The verdict on TurboMind, LMDeploy's engine, without figures."""
RAY_PERHAPS: Final = TextVerdict(
    cause=Cause.CANNOT_TELL,
    sentence=(
        "A worker of Ray's is gone, and Ray does not know why: it lists the machine's own memory as one reason "
        "of several."
    ),
    notes=(
        "dmesg -T | grep -i kill, or kubectl describe pod (OOMKilled), says whether it was memory",
        "the worker's own log, in /tmp/ray/session_latest/logs, has its last words",
    ),
)
"""The verdict on Ray's list of what may have ended a worker, of which the machine's memory is one."""


def tgi(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge text-generation-inference's warm-up, which runs the largest batch that its settings allow."""
    total, prefill = message.said.get("total_tokens"), message.said.get("prefill_tokens")
    asked = f"{total} tokens in all" if total else f"{prefill} prefill tokens" if prefill else "its largest batch"
    lower = "max-batch-total-tokens" if total else "max-batch-prefill-tokens"
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=f"text-generation-inference had too little of the card left for {asked} in its warm-up.",
        remedies=(
            estimate(f"a lower --{lower}", "the warm-up runs as many tokens as that allows"),
            estimate(
                "--quantize, or --num-shard on more cards", "where even few tokens fail, the weights fill the card"
            ),
        ),
        notes=("the traceback above has PyTorch's own error with the figures: give the whole log",),
    )


def trtllm_executor(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge TensorRT-LLM's executor, which makes its components one after the other."""
    component = message.said.get("component", "a component").strip()
    figures = ""
    if message.free_bytes is not None and message.total_bytes is not None:
        figures = f" with {text_of_bytes(message.free_bytes)} of {text_of_bytes(message.total_bytes)} free"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=f"TensorRT-LLM could not make its {component}{figures}: its settings ask for more than that.",
        remedies=(
            estimate(
                "a lower kv_cache_config.free_gpu_memory_fraction",
                "the KV cache takes that share of what is free (default 0.9); the rest is for all that comes after",
            ),
            estimate("a lower max_batch_size, max_num_tokens or max_seq_len", "buffers are made for the largest"),
        ),
        notes=("the list of components in the text says what each has taken",),
    )


def tensorrt_tactic(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge TensorRT's warning that one way to compute a layer needs more than is free."""
    asked = f" ({text_of_bytes(message.requested_bytes)})" if message.requested_bytes is not None else ""
    return TextVerdict(
        cause=Cause.CANNOT_TELL,
        sentence=(
            f"A warning of TensorRT's builder: one way to compute a layer needs more memory{asked} than was free, and "
            "is left out; the engine is still built unless no way is left."
        ),
        remedies=(estimate("a smaller workspace (MemoryPoolType.WORKSPACE)", "such ways are then not tried at all"),),
    )


def tensorrt_no_way(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge TensorRT's builder where every way to compute a layer needed more memory than was free."""
    asked = f" (the last {text_of_bytes(message.requested_bytes)})" if message.requested_bytes is not None else ""
    return TextVerdict(
        cause=Cause.TRULY_FULL,
        sentence=(
            f"TensorRT's builder had no way left to compute a layer: what they need{asked} could not be had of the "
            "card."
        ),
        remedies=(
            estimate("a smaller workspace (MemoryPoolType.WORKSPACE)", "ways that need more are then not tried at all"),
            estimate("build where nothing else is on the card", "the builder needs more than the engine"),
        ),
        notes=(SEE_NVIDIA_SMI,),
    )


def flashinfer(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge FlashInfer's own allocator, which hands out a workspace that was made at the start."""
    asked = text_of_bytes(message.requested_bytes) if message.requested_bytes is not None else "what it needed"
    return TextVerdict(
        cause=Cause.LIMIT,
        sentence=f"Not the card's size: {asked} did not fit into FlashInfer's workspace, which was made at the start.",
        remedies=(
            estimate(
                "a larger workspace: SGLANG_FLASHINFER_WORKSPACE_SIZE in SGLang (FLASHINFER_WORKSPACE_SIZE in older "
                "ones), in bytes",
                "its attention kernels keep partial results there, more of them with more tokens at once",
            ),
            estimate("a lower chunked_prefill_size or max_running_requests", "fewer tokens at once"),
        ),
    )


def ray(message: Message, server: ServerMemory | None) -> TextVerdict:
    """Judge a task that Ray has ended to keep the machine alive."""
    used, total, said = message.host_used_bytes, message.host_total_bytes, message.said
    figures = ""
    if used is not None and total is not None:
        figures = f": {text_of_bytes(used)} of {text_of_bytes(total)} were in use"
        figures += f", and Ray ends a task from {number_of(said['threshold']):.0%} on" if "threshold" in said else ""
    notes = ["of the machine's memory a container or a batch system may allow less than there is; Ray counts that"]
    if "task_bytes" in said and used is not None:
        notes.insert(0, f"the task that was ended held {text_of_bytes(bytes_of(said['task_bytes']))} of it")
    return TextVerdict(
        cause=Cause.DISGUISED,
        sentence=f"The machine's own memory ran out, not the card's{figures}.",
        remedies=(
            estimate(
                "fewer tasks at once: num_cpus or memory in @ray.remote", "each task has its own data and libraries"
            ),
            estimate(
                "RAY_memory_usage_threshold=0.98, set before ray start",
                "Ray waits longer; then the system kills a process instead",
            ),
        ),
        notes=tuple(notes),
    )
