"""Small texts in the shape of what people post, each with the answer that an expert would give.

`data/kinds` has one text in each file; the beginning of its name is the kind. Figures are from public threads, all else
is invented.
"""

from pathlib import Path

import pytest

import ullage
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import TextExplanation

KINDS = Path(__file__).parent / "data" / "kinds"
FULL, OTHERS, PROCESS = Cause.TRULY_FULL, Cause.OTHER_PROCESS, "process 4242"
EXPECTED: dict[str, tuple[Cause, tuple[str, ...]]] = {
    # file: the cause in the headline, and words that the sentence, the first advice or a note must have
    "advice_generate": (FULL, ("KV cache", "without gradients", "308.3 MiB are missing")),
    "advice_load_from_pretrained": (FULL, ("quantization", "smaller batch does not help")),
    "advice_optimizer": (FULL, ("8-bit AdamW", "8 bytes per parameter")),
    "advice_torchload": (FULL, ("map_location='cpu'", "smaller batch does not help")),
    "allocation_on_device": (FULL, ("contains nothing more", "cudaMallocAsync", "--disable-cuda-malloc")),
    "allocation_on_device_v2": (FULL, ("contains nothing more", "--disable-cuda-malloc")),
    "allocation_on_device_v4": (FULL, ("21.69 GiB of the GPU's 22.06 GiB", "--disable-cuda-malloc")),
    "appended_runs": (OTHERS, ("several runs", "process 9")),
    "dataparallel": (Cause.LIMIT, ("60.25 GiB",)),
    "dataparallel_v_comfyreport": (Cause.LIMIT, ("60.25 GiB",)),
    "dataparallel_v_modlist": (FULL, ("21.75 GiB were allocated",)),
    "dataparallel_v_optuna": (Cause.LIMIT, ("60.25 GiB",)),
    "dataparallel_v_prose": (Cause.LIMIT, ("60.25 GiB",)),
    "dataparallel_v_warning": (Cause.LIMIT, ("60.25 GiB",)),
    "first_cuda_call": (OTHERS, ("first CUDA call", "nvidia-smi")),
    "first_cuda_call_v1": (OTHERS, ("first CUDA call", "nvidia-smi")),
    "free_but_others": (OTHERS, ("10.58 GiB", "nvidia-smi")),
    "free_but_others_v1": (OTHERS, ("14.14 GiB", PROCESS)),
    "free_but_others_v3": (FULL, ("99.9 %",)),
    "full_but_would_fit": (FULL, ("nearly full",)),
    "jetson_nvmap": (Cause.UNIFIED_MEMORY, ("page cache", "tegrastats")),
    "job_limit": (Cause.JOB_LIMIT, ("Slurm job", "--mem")),
    "job_limit_v1": (Cause.JOB_LIMIT, ("memory limit of 512Gi", "resources.limits.memory")),
    "job_limit_v4": (Cause.HOST_MEMORY, ("process python held 51.88 GiB",)),
    "kaggle_traceback": (FULL, ("activation checkpointing saves nothing",)),
    "kaggle_traceback_v1": (FULL, ("activation checkpointing saves nothing",)),
    "kaggle_traceback_v3": (FULL, ("activation checkpointing saves nothing",)),
    "larger_than_free": (FULL, ("at most 1/3 as large",)),
    "larger_than_free_v1": (FULL, ("at most 1/3 as large",)),
    "larger_than_free_v2": (FULL, ("55.44 GiB are missing",)),
    "level_zero_ze": (Cause.DISGUISED, ("Level Zero",)),
    "memory_summary": (Cause.FRAGMENTED, ("2 out-of-memory errors", "4.72 GiB", "expandable_segments")),
    "memory_summary_v1_stats": (Cause.FRAGMENTED, ("3 out-of-memory errors", "28.74 GiB")),
    "memory_summary_v3_stats": (Cause.FRAGMENTED, ("3 out-of-memory errors", "28.74 GiB")),
    "mps_other": (FULL, ("141.24 GiB are in other Metal allocations", "torch.mps.empty_cache()")),
    "mps_other_v3": (FULL, ("28.76 GiB are missing",)),
    "mps_zero": (FULL, ("9.05 GiB are in other Metal allocations", "torch.mps.empty_cache()")),
    "npu_nvidia_smi": (OTHERS, ("npu-smi", "ASCEND_RT_VISIBLE_DEVICES")),
    "npu_nvidia_smi_v2": (Cause.CANNOT_TELL, ("does not say how much memory was free",)),
    "one_big_request": (FULL, ("chunks of tokens", "47 % of the GPU is probably the logits")),
    "one_big_request_v1": (FULL, ("55.44 GiB are missing",)),
    "os_error_1455": (Cause.COMMIT_LIMIT, ("paging file",)),
    "os_error_1455_v1": (Cause.COMMIT_LIMIT, ("paging file",)),
    "os_error_1455_v2": (Cause.HOST_MEMORY, ("Host memory",)),
    "os_error_1455_v3": (Cause.HOST_MEMORY, ("Host memory",)),
    "percent": (FULL, ("use at least 0.5 % less memory",)),
    "pinned_in_log": (Cause.PINNED_MEMORY, ("could not be pinned",)),
    "prefix_actions": (FULL, ("308.3 MiB are missing",)),
    "prefix_comfylog": (FULL, ("308.3 MiB are missing",)),
    "prefix_compose": (FULL, ("308.3 MiB are missing",)),
    "ray_tail": (Cause.HOST_MEMORY, ("Ray", "num_cpus")),
    "truncated_at_card": (FULL, ("112.0 MiB",)),
    "truncated_at_card_v1": (FULL, ("1020.7 MiB are missing",)),
    "truncated_at_card_v3": (FULL, ("1020.7 MiB are missing",)),
    "unified_memory": (Cause.UNIFIED_MEMORY, ("CPU and GPU use the same memory", "drop_caches")),
    "unified_memory_v1": (Cause.UNIFIED_MEMORY, ("119.64 GiB", "drop_caches")),
    "wrong_traceback": (Cause.DISGUISED, ("nvidia-smi",)),
}
PLACES = {
    "kaggle_traceback": "a notebook cell",
    "prefix_compose": "nodes/vae.py:41",
    "prefix_actions": "nodes/vae.py:41",
    "prefix_comfylog": "nodes/vae.py:41",
}


def explained(name: str) -> TextExplanation:
    file = next(KINDS.glob(f"{name}.*"))
    found = ullage.explain(file)
    assert isinstance(found, TextExplanation)
    return found


def test_every_text_has_an_expectation() -> None:
    assert {file.stem for file in KINDS.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_answer_is_an_experts(name: str) -> None:
    found, (cause, words) = explained(name), EXPECTED[name]
    remedies = [f"{remedy.name} {remedy.remark}" for remedy in found.remedies]
    said = " ".join([found.sentence, *remedies, *found.notes])
    assert (found.likely or found.cause) is cause, said
    for each in words:
        assert each in said
    assert "100 % less" not in said
    if name.startswith(("npu", "level_zero", "mps")):
        assert "nvidia-smi" not in said


@pytest.mark.parametrize("name", PLACES)
def test_the_users_line_is_named(name: str) -> None:
    assert (explained(name).failing_line or "").startswith(PLACES[name])


def test_the_first_failure_names_its_line_though_it_is_a_librarys() -> None:
    assert "nn/functional.py:2905: return torch.layer_norm(" in str(explained("wrong_traceback"))
