"""The program in whose log a message stands, and what that program was doing, told by the lines before the message."""

from typing import Final

_CHARACTERS: Final = 6000
"""Number of characters before a message that are looked at: a traceback's length."""
_ROW_CHARACTERS: Final = 200
"""The most that is looked at of what stands behind a message in its row."""
_SIGNS: Final = {
    "vLLM": ("/vllm/", "VllmWorker", "EngineCore", "gpu_memory_utilization", "RayWorkerWrapper", "worker_base.py:"),
    "SGLang": ("/sglang/", "Capture cuda graph failed", "mem_fraction_static"),
    "text-generation-inference": ("text_generation_server",),
    "TensorFlow": ("tensorflow/", "tensorflow\\"),
    "CuPy": ("cupy.cuda", "cupy\\cuda"),
    "CTranslate2": ("ctranslate2", "faster_whisper", "CUDA failed with error out of memory"),
    "onnxruntime": ("onnxruntime", "ONNXRuntime"),
    "another framework": (
        *("mxnet", "MXNet", "paddle", "theano", "XGBoost", "allocation error on worker"),
        *(".julia/", ".julia\\", "(code #2", "cycles"),
    ),
    "CUDA graphs": (
        "capture_model",
        "capture_end",
        "torch.cuda.graph(",
        "Capturing cudagraphs",
        "Capturing CUDA graph",
        "apture cuda graph",
    ),
    "weights": ("load_model", "create_weights", "Loading safetensors checkpoint"),
    "wake_up": ("wake_up",),
    "pinned memory": ("pin memory thread", "pin_memory.py", "cudaHostAlloc"),
}


def context_of(text: str, floor: int, start: int, end: int) -> tuple[str, ...]:
    """Return the names of the signs that stand before a message or in its row, in the order of `_SIGNS`.

    Args:
        text: the log.
        floor: where the message before this one ended.
        start: where the message begins.
        end: where it ends.
    """
    begin = max(floor, start - _CHARACTERS)
    row = text.find("\n", end, end + _ROW_CHARACTERS)
    end = row if row >= 0 else end + _ROW_CHARACTERS
    return tuple(name for name, signs in _SIGNS.items() if any(text.find(sign, begin, end) >= 0 for sign in signs))
