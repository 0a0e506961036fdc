"""Texts without a traceback above the message: the lines next to it show the phase and the field of the program."""

import pytest

from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text
from ullage.explaining.analysis.text.fact import FactKind
from ullage.explaining.analysis.text.phase import FailurePhase, phase_of_rows
from ullage.explaining.analysis.text.situation import situation_of


def oom(*, free: str = "33.19 MiB", allocated: str = "22.05 GiB", cached: str = "600.00 MiB") -> str:
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 108.00 MiB. GPU 0 has a total capacity of 23.64 "
        f"GiB of which {free} is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the "
        f"allocated memory {allocated} is allocated by PyTorch, and {cached} is reserved by PyTorch but unallocated."
    )


def phase(text: str) -> FailurePhase:
    found = explain_text(text).found
    assert found is not None
    return situation_of(found).phase


def first_advice(text: str) -> str:
    return explain_text(text).remedies[0].name


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("Loading checkpoint shards:  40%|####      | 2/5 [00:03<00:04]", FailurePhase.LOADING),
        ("[01-14 16:34:29] Error while loading customized transformer", FailurePhase.LOADING),
        ("- **Node Type:** UNETLoader", FailurePhase.LOADING),
        ("- **Node Type:** VAEDecode", FailurePhase.DECODING),
        ("Decoding latents to frames", FailurePhase.DECODING),
        ("Evaluating: 12%|#   | 3/25", FailurePhase.EVALUATION),
        ("Saving model checkpoint to out/checkpoint-500", FailurePhase.GATHERING),
    ],
)
def test_a_line_next_to_the_message_shows_the_phase(row: str, expected: FailurePhase) -> None:
    assert phase(f"{row}\n{oom()}") is expected
    assert phase(f"{oom()}\n{row}") is expected


@pytest.mark.parametrize(
    "row",
    [
        "Loading checkpoint shards: 100%|##########| 5/5 [00:09<00:00]",
        "Loading model weights took 4.3752 GB",
        "model loaded in 3.2 s",
        "Loading dataset shards from disk finished",
    ],
)
def test_a_step_that_has_ended_is_not_the_phase(row: str) -> None:
    assert phase(f"{row}\n{oom()}") is FailurePhase.UNKNOWN
    assert phase_of_rows([row, "Loading model weights"]) is None


def test_a_traceback_directly_below_the_message_is_read() -> None:
    below = (
        'Traceback (most recent call last):\n  File "/w/app.py", line 81, in <module>\n    pipe.to(device)\n'
        '  File "/v/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1369, in to\n'
        "    return self._apply(convert)\n"
    )
    explained = explain_text(f"{oom()}\n\n{below}")
    assert explained.failing_line == "w/app.py:81"
    assert phase(f"{oom()}\n\n{below}") is FailurePhase.LOADING
    far_away = explain_text(f"{oom()}\n" + "epoch 1\n" * 9 + below)
    assert far_away.failing_line is None


def test_an_empty_cache_suggests_weights() -> None:
    """A forward pass leaves a cache; loading weights and creating optimizer states do not."""
    full = first_advice(oom(allocated="23.30 GiB", cached="19.41 MiB"))
    assert "4 or 8 bits" in full
    assert "4 or 8 bits" not in first_advice(oom(allocated="22.05 GiB", cached="600.00 MiB"))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/w/gaussian-splatting/gaussian_renderer/__init__.py", "--densify_grad_threshold"),
        ("/w/boltz/src/boltz/model/model.py", "--max_parallel_samples"),
        ("/v/site-packages/torch_geometric/nn/conv/gcn_conv.py", "NeighborLoader"),
        ("/v/site-packages/faster_whisper/transcribe.py", "segments of audio"),
        ("/v/site-packages/ultralytics/nn/tasks.py", "imgsz"),
        ("/w/Wan2.2/wan/image2video.py", "--offload_model True"),
    ],
)
def test_advice_uses_the_settings_of_the_field(path: str, words: str) -> None:
    rows = f'Traceback (most recent call last):\n  File "{path}", line 9, in run\n    y = self.net(x)\n'
    explained = explain_text(rows + oom())
    assert words in explained.remedies[0].name
    assert any(fact.kind is FactKind.FIELD for fact in explained.facts)


def test_a_program_that_refuses_tokens_reached_a_limit() -> None:
    for text, figures in {
        "ValueError: prompt has 12,288 tokens, which exceeds the KV cache capacity of 8192 tokens": "8,192",
        "RuntimeError: Not enough KV cache blocks: 512 required, 100 available blocks": "100",
        "RuntimeError: loader memory limit 1073741824 is smaller than the required size 4294967296": "1.00 GiB",
    }.items():
        explained = explain_text(text)
        assert explained.likely is Cause.LIMIT, text
        assert figures in explained.sentence


@pytest.mark.parametrize(
    "text",
    [
        "INFO: GPU KV cache size: 54,672 tokens, maximum concurrency for 4096 tokens per request: 13.35x",
        "the sequence has 5000 tokens, more than the 4096 that the model was trained with",
        "WARNING: batch of 12 pages is smaller than 16 pages",
    ],
)
def test_a_comparison_of_tokens_is_not_always_a_refusal(text: str) -> None:
    with pytest.raises(UsageError):
        explain_text(text)


def test_words_about_growth_suggest_a_leak() -> None:
    text = f"{oom()}\nGPU memory slowly increases until it crashes after 300 steps"
    assert explain_text(text).headline == "PROBABLY MEMORY LEAK"
    quiet = f"{oom()}\ndestroy_process_group() was not called before program exit, which can leak resources"
    assert explain_text(quiet).cause is Cause.TRULY_FULL
    huge = oom().replace("108.00 MiB", "20.00 GiB")
    assert explain_text(f"{huge}\nmemory keeps growing").likely is None


def test_a_line_with_allocated_and_reserved_memory_is_read() -> None:
    failed = explain_text("It dies with OutOfMemory on 80 GB: allocated 74.8 GB, reserved 93.2 GB")
    assert failed.likely is Cause.FRAGMENTED
    assert "18.40 GiB" in failed.sentence
    quiet = explain_text("step 10 memory allocated: 10.2 GB, reserved: 12.0 GB")
    assert quiet.cause is Cause.DID_NOT_FAIL


def _cut(text: str, length: int) -> TextExplanation:
    return explain_text(text[:length])


def test_a_message_that_is_cut_within_its_last_figure_contradicts_no_figure() -> None:
    """Cut behind the cache's size, the message says the same as the whole one; before it, "at most" that is missing."""
    text = oom(free="60.50 MiB", allocated="22.00 GiB", cached="87.85 MiB")
    whole = explain_text(text)
    behind = text.index("87.85 MiB") + len("87.85 MiB")
    for length in range(behind, len(text)):
        assert _cut(text, length).evidence == whole.evidence, text[behind:length]
    before = _cut(text, behind - len("87.85 MiB"))
    assert "at most 47.5 MiB are missing" in before.remedies[0].remark


def test_nccl_needs_memory_that_pytorch_has() -> None:
    text = "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
    assert "smaller micro batch" in explain_text(text).remedies[0].name


def test_advice_on_a_crash_names_the_tools_of_its_vendor() -> None:
    with pytest.raises(UsageError, match="amdgpu errors in dmesg") as raised:
        explain_text("ROCm 6.2: CUDA error: unspecified launch failure\nall memory fills up before it")
    assert "Xid" not in str(raised.value)
    assert "memory was full" in str(raised.value)


def test_an_error_that_the_program_calls_harmless_did_not_fail() -> None:
    explained = explain_text(f"{oom()}\nPlanner: this plan does not fit, do not worry, trying the next one")
    assert explained.cause is Cause.DID_NOT_FAIL
    assert "do not worry" in explained.sentence
    warning = "UserWarning: the attention mask is not set; this can be safely ignored"
    assert explain_text(f"{warning}\n{oom()}\n{warning}").cause is Cause.TRULY_FULL


def test_who_held_the_rest_is_said_if_the_message_has_it() -> None:
    whole = oom()
    process = explain_text(whole[: whole.index(" Of the allocated")])
    assert "This process held 23.60 GiB" in process.sentence
    nobody = explain_text(whole[: whole.index(" Including")])
    assert "does not say who held the rest" in nobody.sentence


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: all GPUs are occupied by other processes",
        "ERROR: the GPU memory is currently in use by another user's process",
    ],
)
def test_a_gpu_that_others_use_is_said_in_any_words(text: str) -> None:
    assert explain_text(text).likely is Cause.OTHER_PROCESS


def test_before_vllm_has_a_cache_its_budget_does_not_matter() -> None:
    rows = (
        'Traceback (most recent call last):\n  File "/v/vllm/v1/worker/gpu_worker.py", line 9, in '
        "determine_available_memory\n    self.model_runner.profile_run()\n"
    )
    first = explain_text(rows + oom()).remedies[0]
    assert "max_num_batched_tokens" in first.name
    assert "frees nothing" in first.remark


def test_a_limit_that_a_message_names_is_the_first_change() -> None:
    first = explain_text("RuntimeError: 4.00 GiB required, which exceeds MY_LOADER_MEMORY_LIMIT of 1.00 GiB").remedies[
        0
    ]
    assert first.name.startswith("raise MY_LOADER_MEMORY_LIMIT to at least 4.00 GiB")


def test_a_missing_cudnn_is_no_lack_of_memory() -> None:
    with pytest.raises(UsageError, match="did not find cuDNN's library"):
        explain_text("Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8: cannot open")


def test_a_gpu_that_reserved_memory_fills_is_probably_fragmented() -> None:
    unknown = explain_text("Memory allocated: 60.1 GB\nMemory reserved: 79.0 GB\nstep 7 of 900")
    assert unknown.cause is Cause.DID_NOT_FAIL
    stated = explain_text("Memory allocated: 60.1 GB\nMemory reserved: 79.0 GB\nGPU total: 80 GB")
    assert stated.likely is Cause.FRAGMENTED
    assert "18.90 GiB" in stated.sentence


def test_a_message_without_its_beginning_or_in_lower_case_is_read() -> None:
    whole = explain_text(oom())
    start = oom().index("Tried to allocate")
    assert explain_text(oom()[start:]).evidence == whole.evidence
    assert explain_text(oom().lower()).evidence == whole.evidence


def test_the_limit_of_an_intel_buffer_is_in_two_lines() -> None:
    explained = explain_text(
        "[GPU] Exceeded max size of memory object allocation: requested 28666553344 bytes,\nbut max alloc size "
        "supported by device is 4294959104 bytes."
    )
    assert explained.likely is Cause.LIMIT
    assert "26.70 GiB" in explained.sentence


def test_an_impossible_request_of_another_program_is_one() -> None:
    explained = explain_text(
        "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size "
        "140450031544320"
    )
    assert explained.cause is Cause.BOGUS_SIZE
