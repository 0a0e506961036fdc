"""Texts that look like a kind of failure and are another one, or none; and damaged figures."""

import pytest

from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.10 GiB memory in use. Of the "
    "allocated memory 76.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated."
)


def answer(text: str) -> Cause | None:
    try:
        found = explain_text(text)
    except UsageError:
        return None
    return found.likely or found.cause


@pytest.mark.parametrize(
    "text",
    [
        "Sort exceeded memory limit of 104857600 bytes",
        "Exec format error (os error 8)",
        "INFO: estimated peak memory 3.2 GiB is less than the available GPU memory 24 GiB",
        "the model requires 10 GB of GPU memory, and 24 GB are available, more than enough",
        "WARNING: trying to pin memory of 3 tensors\nDone training",
        "Process 1234 (ssh) exited unexpectedly",
        "return code -9.5",
    ],
)
def test_what_is_no_failure_is_not_one(text: str) -> None:
    assert answer(text) is None


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("torch.OutOfMemoryError: Unable to allocate 2 GB on cuda:0", Cause.TRULY_FULL),
        (f"redis: Exceeded memory limit of query\n{FULL}", Cause.TRULY_FULL),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", Cause.JOB_LIMIT),
        ("PBS: job killed: vmem 70gb exceeded limit 64gb", Cause.JOB_LIMIT),
        ("slurmstepd: error: Job 12 exceeded memory limit (7000 > 6000), being killed", Cause.JOB_LIMIT),
        ("The node was low on resource: memory. Container x was using 4Gi, request is 0", Cause.HOST_MEMORY),
        ("RuntimeError: DataLoader worker (pid(s) 23636) exited unexpectedly", Cause.CANNOT_TELL),
        (
            "paged optimizer uses unified memory\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.0",
            Cause.JOB_LIMIT,
        ),
    ],
)
def test_a_cause_is_that_of_its_own_words(text: str, cause: Cause) -> None:
    assert answer(text) is cause


def test_another_vendors_error_has_its_own_tools() -> None:
    found = explain_text("RuntimeError: HIP error: out of memory")
    said = " ".join([found.sentence, *(remedy.name for remedy in found.remedies), *found.notes])
    assert "HIP had no memory left" in found.sentence
    assert "rocm-smi" in said
    assert "nvidia-smi" not in said


def test_unified_memory_is_not_another_process() -> None:
    text = FULL.replace("79.15", "119.64").replace("1.00 GiB is free", "1.00 GiB is free").replace("78.10", "60.58")
    found = explain_text(text.replace("76.00", "58.00"))
    assert found.cause is Cause.UNIFIED_MEMORY
    assert "119.64 GiB" in found.sentence


@pytest.mark.parametrize(
    "rows",
    [
        [f"batch {2**step}: peak memory {2 + 3 * step} GB" for step in range(8)],
        [f"load layer {step}/40, GPU mem {step} GB" for step in range(1, 12)],
        [f"step {step}: free GPU memory {2 * step} GB" for step in range(1, 9)],
        [f"[rank{step}]: step 5 mem {10 + step} GB" for step in range(8)],
        [f"wrote {step} GB to part {step}, cuda" for step in range(1, 9)],
    ],
    ids=["a sweep", "loading", "free memory", "ranks", "disk"],
)
def test_figures_that_grow_for_another_reason_are_no_leak(rows: list[str]) -> None:
    assert answer("\n".join([*rows, FULL])) is not Cause.LEAK


@pytest.mark.parametrize(
    "text",
    [
        f"Processing image 1\nresize\n{FULL}\nProcessing image 2\nresize\ndone\n",
        f"{FULL}\n# python version: 3.10\n",
        f"Config loaded from x.yaml\ntrain\n{FULL}\nfallback\nConfig loaded from x.yaml\nfine\n",
        f"Using device cuda\n{FULL}\nUsing device cuda\n{FULL}\n",
        f"start\n***** Running training *****\n{FULL}\n***** Running training *****\nfine\n",
    ],
    ids=["a loop", "a version", "a repeated line", "ranks", "a retry"],
)
def test_a_repeated_line_is_not_another_run(text: str) -> None:
    assert not any("a later run" in note or "several runs" in note for note in explain_text(text).notes)


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]: a\n\r step 1 mem 1 GB\r step 2 mem 2 GB\r step 3 mem 3 GB\r step 4 mem 4 GB\r step 5 mem 5 GB",
        "Total VRAM 0 MB, total RAM 5 MB\nRuntimeError: CUDA error: out of memory",
        f"Total VRAM 24000 MB, total RAM 32000 MB\nloaded completely; 9.5 MB usable, 1.2.3 MB loaded\n{FULL}",
        f"[rank0]: a\n[rank0]: b &amp;#10;&amp;#10;&amp;#10;&amp;#10;\n[rank0]: {FULL}",
        "GPU error: out of memory, need \u0661\u0662 GiB, has \u0663 GiB",
        "Error in memory profiling. Initial free memory 1.02 Gi, current free memory 2.0 Gi.",
        "| NVIDIA-SMI 535 |\n|   0  NVIDIA A100 PCIe  | x |\n|  1W | 99999999MiB / 1MiB |",
    ],
)
def test_damaged_figures_end_in_an_answer(text: str) -> None:
    answer(text)


def test_the_line_of_an_error_is_that_of_the_text() -> None:
    found = explain_text(f"a&#10;b\n{FULL}")
    assert isinstance(found, TextExplanation)
    assert found.found is not None
    assert found.found.row == 2
    twice = explain_text(f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "a.py", line 3\n{FULL}')
    assert twice.evidence["messages"] == 1
