"""The out-of-memory messages of programs other than PyTorch, such as model servers and Ray.

This module contains only a table. `ullage.recorded.message.figure` reads the figures that a row's patterns find, and
`ullage.explaining.analysis.text.programs` explains the message, which it identifies by the row's `wording`.
"""

import re
from typing import Final

from ullage.recorded.message.wording import MessageKind, Words, words

# The patterns for figures in messages. Their length is limited, because damaged logs can have endless digits.
_FIGURES: Final = {
    "SIZE": r"-?\d[\d.,]{0,24} ?(?:bytes|[KMGT]i?B?\b|B\b)?",
    "NUMBER": r"\d[\d.]{0,24}",
    "COUNT": r"\d{1,20}",
    "INDEX": r"\d{1,4}",
}


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
    # These words appear both in the source line that raises the error, as the traceback quotes it, and in the error
    # itself.
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
_OF_SIZE: Final = r"of size:? (?P<requested_bytes>COUNT)"
_ALLOCATING: Final = r"allocating (?P<requested_bytes>SIZE) on device (?P<device>INDEX)"
_LLAMA_BUFFER: Final = r"failed to allocate \w+ buffer of size (?P<requested_bytes>COUNT)"
_OLLAMA: Final = "llama-server reported out-of-memory during startup"
_LLAMA: Final = (
    *(
        _program("llama.cpp", "another_program", find, after, before=before, figures=figures)
        for find, after, before, figures in (
            (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating ",
                r"[\d.]{1,20} MiB on device \d{1,4}: cudaMalloc failed: out of memory",
                ("",),
                (_ALLOCATING, _LLAMA_BUFFER),
            ),
            ("cudaMalloc failed: out of memory", "", ("runner process has terminated: ",), (_LLAMA_BUFFER,)),
            (
                "cudaMalloc failed: out of memory",
                r"(?=[\s\S]{0,300}?(?:ggml|llama))",
                ("",),
                (_LLAMA_BUFFER,),
            ),
            ("unable to allocate ", r"\w{1,16} buffer", ("error loading model: ",), ()),
            ("failed to allocate buffer for kv cache", "", ("",), ()),
            (
                "out of memory",
                r"[^\n]{0,80}\n[^\n]{0,200}?current device: \d{1,4}, in function",
                ("CUDA error: ", "ROCm error: "),
                (r"current device: (?P<device>INDEX)",),
            ),
            ("CUDA error 2 at ", r"[^\n]{0,200}ggml[^\n:]{0,80}:\d{1,6}: out of memory", ("",), ()),
            ("ggml_vulkan: Device memory allocation of size ", "", ("",), (_OF_SIZE,)),
            ("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackError", "OutOfMemory", ("error: ",), ()),
        )
    ),
    *(
        _program(
            "llama.cpp",
            "another_program",
            find,
            after,
            kind=MessageKind.HOST,
            before=before,
            figures=figures,
        )
        for find, after, before, figures in (
            (
                "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allo",
                r"(?:cate buffer of size \d{1,20})?",
                (f"{_OLLAMA}: ", ""),
                (_OF_SIZE,),
            ),
            ("ggml_cuda_host_malloc: failed to allocate ", r"[\d.,]{1,20} MiB of pinned memory", ("",), ()),
            (
                "model requires more system memory (",
                "",
                ("",),
                (r"system memory \((?P<requested_bytes>SIZE)\) than is available \((?P<free_bytes>SIZE)\)",),
            ),
        )
    ),
    _program("llama.cpp", "another_program", _OLLAMA, r"(?:: [^\n]{0,300}?out of memory)?"),
    _program(
        "llama.cpp",
        "ollama_perhaps",
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
    # The end of Ray's message, which lists the workers and the memory of each.
    _program("Ray", "ray", "how to address the out of memory issue: https://docs.ray.io", kind=MessageKind.HOST),
    _program(
        "Triton Inference Server",
        "triton_pool",
        "CNMEM_STATUS_OUT_OF_MEMORY, falling back",
        figures=(r"byte size (?P<requested_bytes>COUNT)",),
    ),
    _program(
        "onnxruntime",
        "ort_limit",
        "Available memory of ",
        r"\d{1,15} is smaller than requested bytes of",
        figures=(r"requested bytes of (?P<requested_bytes>COUNT)",),
    ),
    _program(
        "onnxruntime",
        "onnxruntime",
        "BFCArena::AllocateRawInternal",
        r"[^\n]{0,200}Failed to alloc\w{0,3}\s{0,4}(?=\n|\Z)",
    ),
    _program(
        "HAMi",
        "hami",
        "HAMI-core ERROR",
        r"[^\n]{1,120}Device \d{1,3} OOM \d{1,20} / \d{1,20}",
        figures=(r"Device (?P<device>INDEX) OOM (?P<used>COUNT) / (?P<limit>COUNT)",),
    ),
    _program(
        "FlashInfer",
        "flashinfer",
        "Buffer overflow when allocating memory for ",
        r"\w{1,80}\s{1,8}with size \d{1,15} and alignment",
        figures=(r"with size (?P<requested_bytes>\d+) and",),
    ),
    _program(
        "LM Studio",
        "guardrail",
        "odel loading was stopped due to insufficient system resources",
        figures=(r"requires approximately (?P<requested_bytes>SIZE) of memory",),
    ),
    _program("vLLM", "vllm_swap", "Aborted due to the lack of CPU swap space"),
    _program("vLLM", "vllm_no_blocks", "# CUDA blocks: 0,"),
    _program("vLLM", "vllm_no_blocks", "# GPU blocks: 0,"),
    _program("Accelerate", "dispatched", "Some modules are dispatched on the CPU or the disk"),
    _program("LMCache", "lmcache_pool", "because no memory is available", r" \(memory_management\.py"),
    _program(
        "Neuron",
        "neuron",
        "NRT allocation failed for size ",
        r"\d{1,18} \(OOM\)",
        figures=(r"for size (?P<requested_bytes>COUNT)",),
    ),
    _program(
        "Ray",
        "ray",
        "RayOutOfMemoryError: More than ",
        kind=MessageKind.HOST,
        figures=(r"is used \((?P<host_used_gib>NUMBER) / (?P<host_total_gib>NUMBER) GB\)",),
    ),
    # This is one of the reasons that Ray lists when a worker process has ended.
    _program("Ray", "ray_perhaps", "killed by SIGKILL by OOM killer", kind=MessageKind.HOST, likely=True),
)
_JAX: Final = tuple(
    _program("JAX", "another_program", find, after, before=before, figures=figures)
    for find, after, before, figures in (
        (
            "of memory while trying to",
            r"[\s\S]{1,60}?allocate (?:\d{1,20} bytes|[\d.]{1,12}[KMGT]i?B)",
            ("Out ", "out ", ""),
            (r"trying to allocate (?P<requested_bytes>SIZE)",),
        ),
        (
            "RESOURCE_EXHAUSTED: Out of memory allocating ",
            r"\d{1,20} bytes",
            ("",),
            (r"allocating (?P<requested_bytes>COUNT) bytes",),
        ),
        (
            "Failed to allocate request for ",
            r"[\d.]{1,12}[KMGT]?i?B \(\d{1,20}B\) on device",
            ("",),
            (r"request for \S+ \((?P<requested_bytes>COUNT)B\)", r"device ordinal (?P<device>INDEX)"),
        ),
        (
            "cuMemAllocAsync failed to allocate ",
            r"\d{1,20} bytes(?:: RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory)?",
            ("",),
            (
                r"failed to allocate (?P<requested_bytes>COUNT) bytes",
                r"Free memory/Total memory: (?P<free_bytes>COUNT)/(?P<total_bytes>COUNT)",
            ),
        ),
    )
)
_TENSORFLOW: Final = (
    _program(
        "TensorFlow",
        "another_program",
        "OOM when allocating tensor ",
        r"(?:with|of) shape",
        figures=(r"device:(?P<place>[CG]PU):(?P<device>INDEX) by allocator",),
    ),
    *(
        _program(
            "TensorFlow",
            "another_program",
            "_bfc) ran out of memory trying to allocate ",
            after,
            kind=kind,
            figures=(r"trying to allocate (?P<requested_bytes>SIZE)",),
        )
        for after, kind in ((r"[^\n]{1,200}not a failure", MessageKind.WARNING), ("", MessageKind.PROGRAM))
    ),
    _program("TensorFlow", "tf_copy", "Dst tensor is not initialized", likely=True),
    _program(
        "TensorFlow",
        "another_program",
        "failed to allocate ",
        r"[\d.]{1,12}[KMGT]i?B? \(\d{1,20} bytes\) from device(?:: \w{1,60})?",
        kind=MessageKind.WARNING,
        figures=(r"\((?P<requested_bytes>COUNT) bytes\) from device: \w+",),
    ),
    _program(
        "TensorFlow",
        "another_program",
        "could not allocate pinned host memory of size: ",
        kind=MessageKind.HOST,
        figures=(_OF_SIZE,),
    ),
    _program(
        "TensorFlow",
        "another_program",
        "failed to alloc ",
        r"\d{1,20} bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
        kind=MessageKind.HOST,
        figures=(r"failed to alloc (?P<requested_bytes>COUNT) bytes",),
    ),
)
_LIBRARIES: Final = (
    _program(
        "onnxruntime",
        "onnxruntime",
        "Failed to allocate memory for requested buffer of size ",
        figures=(_OF_SIZE,),
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
)
TABLE: Final = (*_VLLM, *_SERVERS, *_LLAMA, *_RAY, *_JAX, *_TENSORFLOW, *_LIBRARIES)
