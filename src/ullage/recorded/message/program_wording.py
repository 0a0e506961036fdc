"""The wordings with which other programs report that memory ran out: servers of models, other frameworks, Ray.

A table only. `ullage.recorded.message.program_figures` reads what the patterns of a row find, and
`ullage.explaining.analysis.text.programs` says what it means, by the row's `wording`.
"""

import re
from typing import Final

from ullage.recorded.message.wording import MessageKind, Words, words

_FIGURES: Final = {
    "SIZE": r"-?\d[\d.,]{0,24} ?(?:bytes|[KMGT]i?B?\b|B\b)?",
    "NUMBER": r"\d[\d.]{0,24}",
    "COUNT": r"\d{1,20}",
    "INDEX": r"\d{1,4}",
}
"""The pattern of a figure in the patterns of a row: bounded, because a damaged log has digits without end."""


def _program(
    name: str,
    wording: str,
    find: str,
    after: str = "",
    *,
    kind: MessageKind = MessageKind.PROGRAM,
    before: tuple[str, ...] = ("",),
    likely: bool = False,
    figures: tuple[str, ...] = (),
) -> Words:
    return words(
        kind,
        wording,
        find,
        after,
        before=before,
        backend=name,
        likely=likely,
        figures=tuple(re.sub("|".join(_FIGURES), lambda name: _FIGURES[name[0]], pattern) for pattern in figures),
    )


_VLLM: Final = (
    # The row that raises the error quotes it, and so does what a program writes about it.
    _program("vLLM", "vllm_no_blocks", "No available memory for the cache blocks"),
    _program(
        "vLLM",
        "vllm_free_at_start",
        "Free memory on device",
        r"(?: \w{1,8}:\d{1,4})? \([\d./]{3,40} GiB\) on startup is less",
        figures=(
            r"on device(?: \w+:(?P<device>INDEX))? \((?P<free_gib>NUMBER)/(?P<total_gib>NUMBER) GiB\) on startup",
            r"utilization \((?P<utilization>NUMBER), (?P<wanted_bytes>SIZE)\)",
        ),
    ),
    _program(
        "vLLM",
        "vllm_length",
        "To serve at least one request with the model",
        r".{0,20}max seq len",
        figures=(
            r"max seq len \((?P<length>COUNT)\),? \(?(?P<needed_bytes>SIZE) KV.{0,80}\((?P<available_bytes>SIZE)\)",
            r"estimated maximum model length is (?P<fitting_length>COUNT)",
        ),
    ),
    _program(
        "vLLM",
        "vllm_tokens",
        "s max seq len (",
        r"\d{1,12}\) is larger than",
        before=("The model'", ""),
        figures=(r"max seq len \((?P<length>COUNT)\) is larger than .{0,80}KV cache \((?P<fitting_length>COUNT)\)",),
    ),
    _program(
        "vLLM",
        "vllm_sampler",
        "CUDA out of memory occurred when warming up sampler",
        figures=(r"with (?P<requests>COUNT) dummy requests",),
    ),
    _program(
        "vLLM",
        "vllm_cumem",
        "out of memory at ",
        r"(?:\S{0,200}cumem_allocator\.cpp|<path>)",
        before=("CUDA Error: ", "cuda error: ", "CUDA error: "),
    ),
    _program(
        "vLLM",
        "vllm_profiling",
        "Error in memory profiling. Initial free memory",
        figures=(r"Initial free memory (?P<before_bytes>SIZE), current free memory (?P<after_bytes>SIZE)\.",),
    ),
)
_SGLANG_TOKENS: Final = (
    r"Try to allocate (?P<wanted>COUNT) tokens",
    r"Ava[il]{2,3}able (?:full )?tokens: (?P<available>COUNT)",
    r"Available swa: (?P<window>COUNT)",
)
_SERVERS: Final = (
    _program(
        "SGLang",
        "sglang_fraction",
        "Not enough memory. Please try to increase --mem-fraction-static",
        figures=(r"mem_fraction_static=(?P<fraction>NUMBER)",),
    ),
    _program(
        "FlashInfer",
        "flashinfer",
        "Failed to allocate memory for ",
        r"\w{1,80} with size \d{1,15} and alignment \d{1,6} in AlignedAllocator",
        figures=(r"with size (?P<requested_bytes>\d+) and",),
    ),
    _program(
        "SGLang",
        "sglang_weights",
        "Loaded weights leave no GPU memory for the KV cache",
        r" under\s{1,3}--mem-fraction-static=[\d.]{1,24}",
        figures=(
            r"--mem-fraction-static=(?P<fraction>NUMBER)",
            r"minimum viable = 1 - available/pre = (?P<least>NUMBER)",
        ),
    ),
    _program("SGLang", "sglang_requests", "alloc_req_slots runs out of memory"),
    *(
        _program("SGLang", "sglang_tokens", find, after, before=before, figures=_SGLANG_TOKENS)
        for find, after, before in (
            ("out of memory. Try to lower your batch size", "", ("Decode ", "Prefill ")),
            ("Out of memory. Try to lower your batch size", r"\.\s{1,3}Try to allocate \d{1,12} tokens", ("",)),
        )
    ),
    _program("SGLang", "sglang_states", "Not enough space for mamba ", r"(?:cache|ping pong idx)"),
    _program(
        "text-generation-inference",
        "tgi",
        "Not enough memory to handle ",
        r"\d{1,12} (?:total|prefill) tokens",
        figures=(r"handle (?:(?P<total_tokens>COUNT) total tokens with )?(?P<prefill_tokens>COUNT) prefill tokens",),
    ),
    _program(
        "TensorRT-LLM",
        "trtllm_executor",
        "Executor creation failed due to insufficient GPU memory",
        figures=(
            r"could not be created: (?P<component>[\w ()/-]{1,60}?) Total GPU memory \(GiB\): (?P<total_gib>NUMBER)",
            r"Free GPU memory before component creation attempt \(GiB\): (?P<free_gib>NUMBER)",
        ),
    ),
    _program(
        "TensorRT-LLM",
        "trtllm_driver",
        "CUDA runtime error in ",
        r"[^\n]{1,200}: out of memory \(\S{0,100}tensorrt_llm",
    ),
    _program("LMDeploy", "lmdeploy", "CUDA runtime error: out of memory ", r"\S{0,200}(?:lmdeploy|turbomind)"),
    _program(
        "TensorRT",
        "tensorrt_tactic",
        "Requested amount of ",
        r"(?:GPU )?memory \(\d{1,20} bytes\) could not be allocated",
        kind=MessageKind.WARNING,
        figures=(r"memory \((?P<requested_bytes>COUNT) bytes\)",),
    ),
    _program(
        "TensorRT",
        "tensorrt_no_way",
        "due to insufficient memory on requested size of ",
        r"\d{1,20}[\s\S]{1,2000}?Could not find any implementation for node",
        figures=(r"requested size of (?P<requested_bytes>COUNT)",),
    ),
    _program("TensorRT", "tensorrt_driver", "Cuda Error in ", r"\S{0,80}allocate: 2 \(out of memory\)"),
    _program("TensorRT", "tensorrt_driver", "OutOfMemory Error in "),
    _program("TensorRT", "tensorrt_driver", "Error Code 2: OutOfMemory"),
)
_LLAMA_BUFFER: Final = (
    r"failed to allocate (?P<buffer>\w+) buffer of size (?P<requested_bytes>COUNT)",
    r"(?P<part>alloc_tensor_range|loading model|gallocr_reserve|compute buffers|kv_cache_init)",
)
_OLLAMA: Final = "llama-server reported out-of-memory during startup"
_LLAMA: Final = (
    _program(
        "llama.cpp",
        "llama_buffer",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating ",
        r"[\d.]{1,20} MiB on device \d{1,4}: cudaMalloc failed: out of memory",
        figures=(r"allocating (?P<requested_bytes>SIZE) on device (?P<device>INDEX)", *_LLAMA_BUFFER),
    ),
    *(
        _program(
            "llama.cpp", "llama_buffer", "cudaMalloc failed: out of memory", after, before=before, figures=_LLAMA_BUFFER
        )
        for before, after in ((("runner process has terminated: ",), ""), (("",), r"(?=[\s\S]{0,300}?(?:ggml|llama))"))
    ),
    _program(
        "llama.cpp",
        "llama_buffer",
        "unable to allocate ",
        r"\w{1,16} buffer",
        before=("error loading model: ",),
        figures=(r"(?P<part>loading model)",),
    ),
    _program("llama.cpp", "llama_buffer", "failed to allocate buffer for kv cache", figures=(r"(?P<part>kv cache)",)),
    _program(
        "llama.cpp",
        "llama_driver",
        "out of memory",
        r"[^\n]{0,80}\n[^\n]{0,200}?current device: \d{1,4}, in function",
        before=("CUDA error: ", "ROCm error: "),
        figures=(r"current device: (?P<device>INDEX)",),
    ),
    *(
        _program(
            "llama.cpp",
            "llama_machine_buffer",
            "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allo",
            r"(?:cate buffer of size \d{1,20})?",
            kind=MessageKind.HOST,
            before=before,
            figures=(r"buffer of size (?P<requested_bytes>COUNT)",),
        )
        for before in ((f"{_OLLAMA}: ",), ("",))
    ),
    _program("llama.cpp", "llama_driver", _OLLAMA, r"(?:: [^\n]{0,300}?out of memory)?"),
    _program("llama.cpp", "llama_driver", "CUDA error 2 at ", r"[^\n]{0,200}ggml[^\n:]{0,80}:\d{1,6}: out of memory"),
    _program(
        "llama.cpp",
        "llama_buffer",
        "ggml_vulkan: Device memory allocation of size ",
        figures=(r"of size (?P<requested_bytes>COUNT)",),
    ),
    _program(
        "MLX", "mlx", "[METAL] Command buffer execution failed: Insufficient Memory", r"(?: \(\w{1,16}:\w{1,60}\))?"
    ),
    _program("llama.cpp", "llama_driver", "kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    _program(
        "llama.cpp",
        "llama_pinned",
        "ggml_cuda_host_malloc: failed to allocate ",
        r"[\d.,]{1,20} MiB of pinned memory",
        kind=MessageKind.HOST,
    ),
    _program(
        "llama.cpp",
        "llama_host",
        "model requires more system memory (",
        kind=MessageKind.HOST,
        figures=(r"system memory \((?P<requested_bytes>SIZE)\) than is available \((?P<free_bytes>SIZE)\)",),
    ),
    _program(
        "llama.cpp",
        "llama_perhaps",
        "llama runner exited, you may not have enough available memory",
        likely=True,
    ),
)
_RAY: Final = (
    _program(
        "Ray",
        "ray",
        "killed due to the node",
        r"[\s\S]{1,60}?running low on memory",
        before=("Task was ", "worker(s) were ", ""),
        kind=MessageKind.HOST,
        figures=(
            r" was (?P<host_used_bytes>SIZE) / (?P<host_total_bytes>SIZE) \([\d.]+\)",
            r"usage threshold of (?P<threshold>NUMBER)",
            r"memory used=(?P<task_bytes>SIZE)\)",
        ),
    ),
    _program("Ray", "ray", "killed due to memory pressure (OOM)", kind=MessageKind.HOST),
    _program(
        "Ray",
        "ray",
        "RayOutOfMemoryError: More than ",
        kind=MessageKind.HOST,
        figures=(r"is used \((?P<host_used_gib>NUMBER) / (?P<host_total_gib>NUMBER) GB\)",),
    ),
    # One of the reasons that Ray lists where a worker is gone.
    _program("Ray", "ray_perhaps", "killed by SIGKILL by OOM killer", kind=MessageKind.HOST, likely=True),
)
_XLA_PLAN: Final = r"total allocation: (?P<program_bytes>SIZE)"
_FRAMEWORKS: Final = (
    _program(
        "JAX",
        "jax_pool",
        "of memory while trying to",
        r"[\s\S]{1,60}?allocate (?:\d{1,20} bytes|[\d.]{1,12}[KMGT]i?B)",
        before=("Out ", "out ", ""),
        figures=(r"trying to allocate (?P<requested_bytes>SIZE)", _XLA_PLAN),
    ),
    _program(
        "JAX",
        "jax_pool",
        "RESOURCE_EXHAUSTED: Out of memory allocating ",
        r"\d{1,20} bytes",
        figures=(r"allocating (?P<requested_bytes>COUNT) bytes", _XLA_PLAN),
    ),
    _program(
        "JAX",
        "jax_pool",
        "Failed to allocate request for ",
        r"[\d.]{1,12}[KMGT]?i?B \(\d{1,20}B\) on device",
        figures=(r"request for \S+ \((?P<requested_bytes>COUNT)B\)", r"device ordinal (?P<device>INDEX)", _XLA_PLAN),
    ),
    _program(
        "JAX",
        "jax_driver_pool",
        "cuMemAllocAsync failed to allocate ",
        r"\d{1,20} bytes(?:: RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory)?",
        figures=(
            r"failed to allocate (?P<requested_bytes>COUNT) bytes",
            r"Free memory/Total memory: (?P<free_bytes>COUNT)/(?P<total_bytes>COUNT)",
        ),
    ),
    _program(
        "JAX",
        "jax_shared",
        "Shared memory size limit exceeded: ",
        r"requested \d{1,12}, available: \d{1,12}",
        kind=MessageKind.PROGRAM,
        figures=(r"requested (?P<needed>COUNT), available: (?P<limit>COUNT)",),
    ),
    _program(
        "JAX",
        "jax_tpu",
        "Ran out of memory in memory space hbm",
        figures=(
            r"Used (?P<used_bytes>SIZE) of (?P<total_bytes>SIZE) hbm",
            r"hbm capacity by (?P<over_bytes>SIZE)",
        ),
    ),
    _program(
        "JAX",
        "jax_tpu",
        "Attempting to reserve ",
        r"[\d.]{1,12}[KMGT] at the bottom of memory",
        figures=(
            r"reserve (?P<requested_bytes>SIZE) at",
            r"There are (?P<free_bytes>SIZE) free",
            r"HBM capacity (?P<total_bytes>SIZE)",
        ),
    ),
    _program(
        "JAX",
        "jax_tpu",
        "Attempting to allocate ",
        r"[\d.]{1,12}[KMGT]\. That was not possible",
        figures=(r"to allocate (?P<requested_bytes>SIZE)\. That", r"There are (?P<free_bytes>SIZE) free"),
    ),
    _program(
        "TensorFlow",
        "tf_tensor",
        "OOM when allocating tensor ",
        r"(?:with|of) shape",
        figures=(
            r"shape ?\[(?P<shape>\d{1,18}(?:,\d{1,18}){0,11})\](?: and type (?P<type>\w+))?",
            r"device:(?P<place>[CG]PU):(?P<device>INDEX) by allocator",
        ),
    ),
    _program(
        "TensorFlow",
        "tf_not_a_failure",
        "_bfc) ran out of memory trying to allocate ",
        r"[^\n]{1,200}not a failure",
        kind=MessageKind.WARNING,
        figures=(r"trying to allocate (?P<requested_bytes>SIZE)",),
    ),
    _program(
        "TensorFlow",
        "tf_request",
        "_bfc) ran out of memory trying to allocate ",
        figures=(r"trying to allocate (?P<requested_bytes>SIZE)", r"requested by op (?P<operation>[\w/]{1,100})"),
    ),
    _program("TensorFlow", "tf_copy", "Dst tensor is not initialized", likely=True),
    _program(
        "TensorFlow",
        "tf_pool",
        "failed to allocate ",
        r"[\d.]{1,12}[KMGT]i?B? \(\d{1,20} bytes\) from device(?:: \w{1,60})?",
        likely=True,
        figures=(r"\((?P<requested_bytes>COUNT) bytes\) from device: \w+",),
    ),
    _program(
        "TensorFlow",
        "tf_pinned",
        "could not allocate pinned host memory of size: ",
        kind=MessageKind.HOST,
        figures=(r"of size: (?P<requested_bytes>COUNT)",),
    ),
    _program(
        "TensorFlow",
        "tf_pinned",
        "failed to alloc ",
        r"\d{1,20} bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
        kind=MessageKind.HOST,
        figures=(r"failed to alloc (?P<requested_bytes>COUNT) bytes",),
    ),
    _program(
        "onnxruntime",
        "onnxruntime",
        "Failed to allocate memory for requested buffer of size ",
        figures=(r"of size (?P<requested_bytes>COUNT)",),
    ),
    _program(
        "Paddle",
        "paddle",
        "Out of memory error on GPU ",
        r"\d{1,4}\. Cannot allocate",
        figures=(
            r"on GPU (?P<device>INDEX)\. Cannot allocate (?P<requested_bytes>SIZE) (?:GPU )?memory",
            r"on GPU \d+, (?P<allocated_bytes>SIZE) memory has been allocated",
            r"available memory is (?:only )?(?P<free_bytes>SIZE)",
        ),
    ),
    _program(
        "Paddle",
        "paddle",
        "enforce allocating <= available failed",
        figures=(r"failed, (?P<requested_bytes>COUNT) > (?P<free_bytes>COUNT)",),
    ),
    *(
        _program(
            "faiss",
            "faiss",
            find,
            r"[\s\S]{1,300}?out of memory",
            figures=(
                r"cudaMalloc (?P<requested_bytes>COUNT) bytes(?: on device (?P<device>INDEX))?",
                r" dev (?P<device>INDEX) space .{1,60}? size (?P<requested_bytes>COUNT) bytes",
            ),
        )
        for find in ("failed to cudaMalloc", "Failed to cudaMalloc", "StandardGpuResources: alloc", "Faiss assertion")
    ),
    _program(
        "MXNet",
        "mxnet",
        "storage_manager.h:",
        r"\d{1,5}: (?:cudaMalloc failed: out of memory|Memory allocation failed)",
    ),
    _program("MXNet", "mxnet", "gpu_device_storage.h:", r"\d{1,5}: Check failed: [^\n]{1,120}?out of memory"),
    _program(
        "DirectML",
        "directml",
        "Could not allocate tensor with ",
        r"\S{1,20} bytes\. There is not enough GPU video memory available",
        figures=(r"tensor with (?P<requested_bytes>COUNT) bytes",),
    ),
    _program("Blender", "blender", "System is out of GPU", r"(?: and shared host)? memory"),
    _program(
        "CUDA.jl",
        "julia",
        "Out of GPU memory",
        figures=(
            r"trying to allocate (?P<requested_bytes>SIZE)",
            r"memory usage: [\d.]+% \((?P<used_bytes>SIZE)/(?P<total_bytes>SIZE)\)",
            r"pool usage: (?P<allocated_bytes>SIZE) \((?P<pool_bytes>SIZE) reserved\)",
        ),
    ),
    _program("bitsandbytes", "bitsandbytes", "Error out of memory at line ", r"\d{1,6} in file [^\n]{1,300}csrc"),
    _program("Triton", "triton_driver", "Triton Error [CUDA]: out of memory"),
    _program(
        "CuPy",
        "cupy",
        "ut of memory ",
        r"(?:to allocate|allocating) [\d,]{1,30} bytes \(",
        before=("o", "O"),
        figures=(
            r"(?:to allocate|allocating) (?P<requested_bytes>[\d,]+) bytes"
            r" \((?:total|allocated so far:) (?P<allocated_bytes>[\d,]+) bytes",
        ),
    ),
    _program("RMM", "rmm", "std::bad_alloc: ", r"(?:out_of_memory: )?CUDA error at", before=("MemoryError: ", "")),
    _program("RMM", "rmm", "RMM_ERROR_OUT_OF_MEMORY"),
    _program(
        "XGBoost",
        "xgboost",
        "Memory allocation error on worker ",
        r"\d{1,5}: [^\n]{0,80}?out of memory",
        figures=(r"Free memory: (?P<free_bytes>SIZE)", r"Requested memory: (?P<requested_bytes>SIZE)"),
    ),
)
_LIBRARIES: Final = (
    _program(
        "MLC LLM",
        "mlc",
        "Insufficient GPU memory error: The available single GPU memory is ",
        r"[\d.]{1,20} MB, which is less than",
        figures=(
            r"GPU memory is (?P<free_bytes>SIZE), which is less",
            r"model weight size \((?P<weights_bytes>SIZE)\)",
            r"temporary buffer size \((?P<scratch_bytes>SIZE)\)",
        ),
    ),
    _program(
        "OpenVINO",
        "openvino",
        "[GPU] Exceeded max size of memory object allocation: ",
        r"[Rr]equested \d{1,20} bytes",
        figures=(
            r"[Rr]equested (?P<requested_bytes>COUNT) bytes",
            r"max alloc size \D{1,40}(?P<most_bytes>COUNT) bytes",
        ),
    ),
    _program(
        "Theano",
        "theano",
        "Error allocating ",
        r"\d{1,20} bytes of device memory",
        before=("MemoryError: ", ""),
        figures=(r"allocating (?P<requested_bytes>COUNT) bytes",),
    ),
)
TABLE: Final = (*_VLLM, *_SERVERS, *_LLAMA, *_RAY, *_FRAMEWORKS, *_LIBRARIES)
