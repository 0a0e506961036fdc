"""Errors of programs that ullage has no words of: none is taken for PyTorch's, and no setting of PyTorch is advised."""

import pytest

from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import explain_text

JUDGED = {
    "MXNet": "mxnet.base.MXNetError: [11:18:15] src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of "
    "memory",
    "Theano": "MemoryError: Error allocating 393216000 bytes of device memory (CNMEM_STATUS_OUT_OF_MEMORY).",
    "XGBoost": "xgboost.core.XGBoostError: [11:17:11] /src/common/device_vector.cu:23: Memory allocation error on "
    "worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 53GB\n",
    "an older XGBoost": "Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
    "CUDA.jl": "ERROR: LoadError: CUDA error: out of memory (code #2, ERROR_OUT_OF_MEMORY)\n [1] macro expansion at "
    "/data/.julia/packages/CUDAdrv/LC5XS/src/base.jl:147",
    "a newer CUDA.jl": "ERROR: Out of GPU memory trying to allocate 4.000 GiB",
    "DirectML": "RuntimeError: Could not allocate tensor with 234881024 bytes. There is not enough GPU video memory "
    "available!",
    "MLC LLM": "Insufficient GPU memory error: The available single GPU memory is 4762.535 MB, which is less than the "
    "sum of model weight size (4958.468 MB) and temporary buffer size (609.312 MB).",
    "MLX": "std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "Paddle": "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 25.002197MB memory on GPU 0, "
    "available memory is only 15.187500MB.",
    "Blender": "Out of memory in cuStreamCreate(&cuda_stream_, CU_STREAM_NON_BLOCKING) "
    "(C:\\blender\\intern\\cycles\\device\\cuda\\queue.cpp:21)",
    "JAX on a TPU": "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile error. Ran out "
    "of memory in memory space hbm. Used 21.95G of 15.48G hbm.",
}
REFUSED = {
    "Blender's scene": "Error: System is out of GPU and shared host memory",
    "OpenCL": "boost::compute::opencl_error\n  what():  Memory Object Allocation Failure",
}


@pytest.mark.parametrize("name", JUDGED)
def test_the_card_is_named_and_pytorch_is_not(name: str) -> None:
    told = explain_text(f"epoch 1\n{JUDGED[name]}\n")
    assert told.cause in (Cause.CANNOT_TELL, Cause.DISGUISED, Cause.UNIFIED_MEMORY)
    assert "Host memory" not in told.sentence
    assert not any("torch" in text.lower() for text in (told.sentence, *told.notes))
    assert told.remedies[0].name.startswith("a smaller ")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"contains no out-of-memory error|does not know"):
        explain_text(REFUSED[name])
