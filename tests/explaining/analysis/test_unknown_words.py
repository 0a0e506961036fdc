"""An error of memory in words that no table has is told from a row that only speaks of memory."""

import pytest

from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import explain_text

ERRORS = {
    "ERROR: Insufficient memory on accelerator (gpu_extra.h:38)": (Cause.CANNOT_TELL, "GPU memory ran out"),
    "fatal: could not allocate 512 MiB of device memory": (Cause.CANNOT_TELL, "(512.0 MiB requested)"),
    "acme::Error: allocation failed in cudaMallocManaged(&p, n) of buffer": (
        Cause.DISGUISED,
        "The driver had no GPU memory left",
    ),
    "Error: failed to allocate host memory for 12 buffers": (Cause.HOST_MEMORY, "Host memory ran out"),
    "acme error: out of memory": (Cause.CANNOT_TELL, "ran out of GPU or host memory"),
    "RuntimeError: not enough memory. Need: 3.0GB free, have: 1.5GB free": (Cause.TRULY_FULL, "requested 3.00 GiB"),
    "Uncaught exception: insufficient shared memory available on the GPU": (Cause.ON_CHIP, "not the GPU's memory"),
}
TALK = [
    "If you run out of memory, reduce the batch size: the error then goes away",
    "To avoid GPU out of memory errors, set --lowvram",
    "This may fail with an out of memory error on small cards",
    "How to fix CUDA out of memory error?",
    "error: index is out of memory bounds",
    "failed to allocate port 8080",
    "INFO allocated 12 GiB of GPU memory, 3 GiB free",
    "catch OutOfMemoryError and retry the memory error path",
    "The insufficient memory error was fixed in version 2",
]


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_is_judged_by_whose_memory_it_was(text: str) -> None:
    cause, words = ERRORS[text]
    found = explain_text(f"epoch 1\nepoch 2\n{text}\nbye\n")
    assert found.cause is cause
    assert words in found.sentence
    assert "torch" not in " ".join(remedy.name for remedy in found.remedies)


@pytest.mark.parametrize("text", TALK)
def test_talk_of_memory_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"contains no out-of-memory error|does not know"):
        explain_text(f"epoch 1\n{text}\nepoch 2\n")


def test_known_words_go_before() -> None:
    text = "acme error: out of memory on the GPU\nRuntimeError: CUDA error: out of memory\n"
    assert explain_text(text).found.message.wording == "cuda_error"
