"""Texts of memory running out are read exactly, whoever wrote them; and nothing else is taken for one."""

import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.explaining.analysis.text.explain import explain_text
from ullage.recorded.message.counted_messages import MOST_READ, TABLE, CountedMessages, Unread
from ullage.recorded.message.log import FoundMessage, find_messages, scan
from ullage.recorded.message.message import OtherProcess, hits_of, read_message
from ullage.recorded.message.wording import MessageKind, Words

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def size(number: str, unit: int) -> int:
    whole, _, fraction = number.partition(".")
    return (int(whole) * 100 + int(fraction or 0)) * unit // 100


HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    "to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
# What real versions wrote: on the emulated card (2.8 to 2.15), and in public threads for older ones and other cards.
WORDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch 1.0": (
        "CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 11.17 GiB total capacity; 10.90 GiB already "
        "allocated; "
        "576.00 KiB free; 30.96 MiB cached)",
        {
            "wording": "cached",
            "requested_bytes": MIB,
            "device": 0,
            "total_bytes": size("11.17", GIB),
            "allocated_bytes": size("10.90", GIB),
            "free_bytes": 576 * KIB,
            "unallocated_bytes": size("30.96", MIB),
        },
    ),
    "torch 1.4": (
        "CUDA out of memory. Tried to allocate 3.15 GiB (GPU 0; 15.78 GiB total capacity; 3.47 GiB already "
        "allocated; 1.76 "
        "GiB free; 9.30 GiB reserved in total by PyTorch)",
        {
            "wording": "reserved_in_total",
            "requested_bytes": size("3.15", GIB),
            "free_bytes": size("1.76", GIB),
            "allocated_bytes": size("3.47", GIB),
            "reserved_bytes": size("9.30", GIB),
            "unallocated_bytes": size("9.30", GIB) - size("3.47", GIB),
        },
    ),
    "torch 2.0": (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 4.00 GiB total capacity; 3.36 GiB already "
        "allocated; 0 "
        "bytes free; 3.48 GiB allowed; 3.48 GiB reserved in total by PyTorch) If reserved memory is >> "
        "allocated memory "
        "try setting max_split_size_mb to avoid fragmentation.",
        {
            "wording": "reserved_in_total",
            "device": 1,
            "free_bytes": 0,
            "allowed_bytes": size("3.48", GIB),
            "reserved_bytes": size("3.48", GIB),
        },
    ),
    "torch 2.1, with its misspelling": (
        "CUDA out of memory. Tried to allocate 2.09 GiB. GPU 0 has a total capacty of 23.69 GiB of which 541.00 MiB is "
        "free. Process 2006998 has 256.00 MiB memory in use. Including non-PyTorch memory, this process has 22.89 GiB "
        "memory in use. Of the allocated memory 21.48 GiB is allocated by PyTorch, and 1.11 GiB is reserved by "
        "PyTorch but "
        "unallocated.",
        {
            "wording": "of_which_free",
            "total_bytes": size("23.69", GIB),
            "free_bytes": 541 * MIB,
            "process_bytes": size("22.89", GIB),
            "other_processes": (OtherProcess(2006998, 256 * MIB),),
            "allocated_bytes": size("21.48", GIB),
            "unallocated_bytes": size("1.11", GIB),
        },
    ),
    "torch 2.8, with a limit": (
        "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which "
        "21.15 GiB is free. "
        "Including non-PyTorch memory, this process has 2.50 GiB memory in use. 5.91 GiB allowed; Of the "
        "allocated memory "
        "2.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated." + HINT,
        {"wording": "of_which_free", "allowed_bytes": size("5.91", GIB), "unallocated_bytes": 0},
    ),
    "torch 2.10, with graphs": (
        "CUDA out of memory. Tried to allocate 80.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which "
        "22.15 GiB is "
        "free. Including non-PyTorch memory, this process has 1.50 GiB memory in use. Of the allocated memory "
        "1.00 GiB is "
        "allocated by PyTorch, with 1024.00 MiB allocated in private pools (e.g., CUDA Graphs), and 2.00 MiB "
        "is reserved by "
        "PyTorch but unallocated." + HINT,
        {"private_pools_bytes": GIB, "allocated_bytes": GIB, "unallocated_bytes": 2 * MIB, "is_expandable": False},
    ),
    "torch 2.15, expandable": (
        "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 3.15 "
        "GiB is free. "
        "Including non-PyTorch memory, this process has 20.50 GiB memory in use. Of the allocated memory 20.00 GiB is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. expandable_segments is enabled. If "
        "instead the process is running out of virtual address space (VSZ), expandable segments may be "
        "over-reserving VA",
        {"wording": "of_which_free", "is_expandable": True, "kind": MessageKind.ALLOCATOR},
    ),
    "torch 2.15, beyond the reserve": (
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which "
        "23.15 GiB is "
        "free. Including non-PyTorch memory, this process has 512.00 MiB memory in use. Of the allocated "
        "memory 0 bytes is "
        "allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. This allocation exceeds the "
        "expandable-segment reserve of 4.00 GiB for this stream, and a single allocation cannot span "
        "expandable segments.",
        {"kind": MessageKind.ADDRESS_SPACE, "reserve_bytes": 4 * GIB, "requested_bytes": 20 * GIB},
    ),
    "torch 2.15, no address": (
        "[ExpandableSegmentVA] Failed to reserve 28566355968 bytes (26.60 GiB) of virtual address space for an "
        "expandable "
        "CUDA segment on device 2 (out of memory). This process already holds 4 live expandable segment(s)",
        {"kind": MessageKind.ADDRESS_SPACE, "requested_bytes": 28566355968, "device": 2},
    ),
    "torch 2.12, refused before": (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. "
        "Requested size: 8.00 GiB",
        {"kind": MessageKind.LIMIT, "wording": "preempted", "requested_bytes": 8 * GIB},
    ),
    "torch 2.12, the warning before": (
        "[W1121 21:15:39.691489151 CUDACachingAllocator.cpp:3562] Preemptively rejecting allocation: requested "
        "8.00 GiB but "
        "total_allocated_memory (20.00 GiB) + requested size would exceed memory limit (23.65 GiB = 100% of "
        "23.65 GiB).",
        {
            "kind": MessageKind.WARNING,
            "requested_bytes": 8 * GIB,
            "reserved_bytes": 20 * GIB,
            "allowed_bytes": size("23.65", GIB),
            "total_bytes": size("23.65", GIB),
        },
    ),
    "torch 2.13, asking again": (
        "expandable_segments: memory mapping failed with OOM on device 0 while trying to map 20971520 bytes "
        "(free: 5570560, "
        "total: 25393692672).",
        {"kind": MessageKind.WARNING, "requested_bytes": 20971520, "device": 0},
    ),
    "more than an exabyte": (
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        {"kind": MessageKind.BOGUS_SIZE, "requested_bytes": None, "wording": "more_than_1eb"},
    ),
    "cudaMallocAsync": (
        "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 2.00 GiB\n"
        "Requested               : 8.00 GiB\nDevice limit            : 23.65 GiB\nFree (according to CUDA): 21.15 GiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 5.91 GiB",
        {
            "wording": "async",
            "device": 0,
            "allocated_bytes": 2 * GIB,
            "requested_bytes": 8 * GIB,
            "total_bytes": size("23.65", GIB),
            "free_bytes": size("21.15", GIB),
            "allowed_bytes": size("5.91", GIB),
        },
    ),
    "cudaMallocAsync without a limit": (
        "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 20.00 GiB\n"
        "Requested               : 8.00 GiB\nDevice limit            : 23.65 GiB\nFree (according to CUDA): 3.15 GiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB",
        {"allowed_bytes": None, "free_bytes": size("3.15", GIB)},
    ),
    "WSL": (
        "CUDA out of memory. Tried to allocate 1.74 GiB. GPU 0 has a total capacity of 23.99 GiB of which 5.05 "
        "GiB is free. "
        "Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated "
        "memory 17.60 GiB "
        "is allocated by PyTorch, and 34.80 MiB is reserved by PyTorch but unallocated." + HINT,
        {"process_bytes": None, "allocated_bytes": size("17.60", GIB), "unallocated_bytes": size("34.80", MIB)},
    ),
    "AMD": (
        "HIP out of memory. Tried to allocate 672.00 MiB. GPU 0 has a total capacity of 191.98 GiB of which 0 "
        "bytes is free. "
        "Of the allocated memory 191.53 GiB is allocated by PyTorch, and 520.00 KiB is reserved by PyTorch but "
        "unallocated.",
        {"backend": "HIP", "free_bytes": 0, "unallocated_bytes": 520 * KIB},
    ),
    "Intel": (
        "XPU out of memory. Tried to allocate 1.71 GiB (GPU 0; 15.56 GiB total capacity; 176.00 MiB already "
        "allocated; 176.00 "
        "MiB reserved in total by PyTorch)",
        {"backend": "XPU", "free_bytes": None, "reserved_bytes": 176 * MIB, "unallocated_bytes": 0},
    ),
    "Apple": (
        "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 "
        "GiB). Tried to "
        "allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit",
        {
            "backend": "MPS",
            "allocated_bytes": size("9.57", GIB),
            "other_allocations_bytes": size("17.35", GIB),
            "allowed_bytes": size("27.20", GIB),
            "requested_bytes": size("292.50", MIB),
        },
    ),
    "Apple, GB for GiB": (
        "MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed: 6.80 GB). "
        "Tried to "
        "allocate 768.00 MB on private pool.",
        {"allocated_bytes": size("5.56", GIB), "requested_bytes": 768 * MIB},
    ),
    "a name only": ("torch.OutOfMemoryError: the words of a version to come", {"wording": "unknown"}),
    "no figures": ("RuntimeError: CUDA out of memory.", {"wording": "bare", "requested_bytes": None}),
    "broken by a page": (
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB \n    (GPU 0; 23.70 GiB total capacity; "
        "21.82 GiB "
        "already allocated; \n    585.69 MiB free; 21.91 GiB reserved in total by PyTorch)",
        {"requested_bytes": size("1.50", GIB), "free_bytes": size("585.69", MIB), "reserved_bytes": size("21.91", GIB)},
    ),
}


@pytest.mark.parametrize("name", WORDINGS)
def test_every_wording_is_read_to_the_last_figure(name: str) -> None:
    text, expected = WORDINGS[name]
    message = read_message(text)
    assert message is not None
    assert {field: getattr(message, field) for field in expected} == expected
    assert message.is_certain
    assert len(list(hits_of(text))) == 1


@pytest.mark.parametrize(
    ("text", "kind", "backend", "certain"),
    [
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be", MessageKind.DRIVER, "CUDA", True),
        ("cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic", MessageKind.DRIVER, "CUDA", True),
        ("CUDA driver error: out of memory", MessageKind.DRIVER, "CUDA", True),
        ("HIP error: out of memory", MessageKind.DRIVER, "HIP", True),
        ("failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY", MessageKind.DRIVER, "CUDA", True),
        ("cudaErrorMemoryAllocation: out of memory", MessageKind.DRIVER, "CUDA", True),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            MessageKind.LIBRARY,
            "CUBLAS",
            True,
        ),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublas", MessageKind.LIBRARY, "CUBLAS", False),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", MessageKind.LIBRARY, "CUDNN", False),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", MessageKind.LIBRARY, "CUDNN", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", MessageKind.LIBRARY, "CUDNN", False),
        ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", MessageKind.LIBRARY, "CUDNN", True),
        ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", MessageKind.HOST, "CUDNN", True),
        ("Unable to find a valid cuDNN algorithm to run convolution", MessageKind.LIBRARY, "CUDNN", False),
        ("GET was unable to find an engine to execute this computation", MessageKind.LIBRARY, "CUDNN", False),
        ("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling", MessageKind.LIBRARY, "CUSOLVER", False),
        ("CUSOLVER_STATUS_ALLOC_FAILED", MessageKind.LIBRARY, "CUSOLVER", True),
        ("CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", MessageKind.LIBRARY, "CUSPARSE", False),
        ("cuFFT error: CUFFT_ALLOC_FAILED", MessageKind.LIBRARY, "CUFFT", True),
        ("CURAND_STATUS_ALLOCATION_FAILED", MessageKind.LIBRARY, "CURAND", True),
        (
            "ncclUnhandledCudaError: Call to CUDA failed.\nLast error:\nCuda failure 2 'out of memory'",
            MessageKind.LIBRARY,
            "NCCL",
            1,
        ),
        ("Last error:\nFailed to CUDA calloc async 608 bytes", MessageKind.LIBRARY, "NCCL", True),
        (
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate "
            "1125899906842624 bytes. Error code 12 (Cannot allocate memory)",
            MessageKind.HOST,
            None,
            True,
        ),
        (
            "Unable to allocate 14.9 GiB for an array with shape (2000, 1000000) and data type float64",
            MessageKind.HOST,
            None,
            True,
        ),
        ("Traceback\nMemoryError\n", MessageKind.HOST, None, True),
        ("OSError: [Errno 12] Cannot allocate memory", MessageKind.HOST, None, True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", MessageKind.HOST, None, True),
        ("It is possible that dataloader's workers are out of shared memory.", MessageKind.HOST, None, True),
        ("Out of memory: Killed process 7899 (python) total-vm:26184840kB", MessageKind.KILLED, None, True),
        ("Memory cgroup out of memory: Killed process 12 (python)", MessageKind.KILLED, None, True),
        ("python invoked oom-killer: gfp_mask=0x6200ca", MessageKind.KILLED, None, True),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch", MessageKind.KILLED, None, True),
        ("Reason: OOMKilled", MessageKind.KILLED, None, True),
        ("epoch 3\nKilled\n", MessageKind.KILLED, None, False),
        ("DataLoader worker (pid 72) is killed by signal: Killed.", MessageKind.KILLED, None, False),
        ("Process finished with exit code 137 (interrupted by signal 9:SIGKILL)", MessageKind.KILLED, None, False),
        ("  exitcode  : -9 (pid: 1234)\n", MessageKind.KILLED, None, False),
        ("died with <Signals.SIGKILL: 9>.", MessageKind.KILLED, None, False),
        (
            "out of resource: shared memory, Required: 65536, Hardware limit: 49152.",
            MessageKind.ON_CHIP,
            "TRITON",
            True,
        ),
    ],
)
def test_what_hides_behind_other_errors(text: str, kind: MessageKind, backend: str | None, certain: bool) -> None:
    """The kind, who says it, and whether the text itself says that memory was missing."""
    message = read_message(text)
    assert message is not None
    assert (message.kind, message.backend, message.is_certain) == (kind, backend, bool(certain))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shape '[3, 4]' is invalid for input of size 11",
        "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in",
        "CUDA error: device-side assert triggered",
        "CUDA error: too many resources requested for launch",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
        "NCCL error in: ProcessGroupNCCL.cpp:911, unhandled cuda error, NCCL version 2.7.8",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 999 'unknown error'",
        "If CUDA out of memory happens, lower the batch size.",
        "CUDA out of memory errors are common; see the FAQ.",
        "step 137 of 1000, loss 0.137, exit code 0",
        "exited with code 1370",
        "Killed 3 stale workers",
        "the rover ran out of memory cards",
        "allocated 3.00 GiB of 8.00 GiB",
        "except torch.cuda.OutOfMemoryError:\n    pass",
        "class MemoryErrorHandler: ...",
    ],
)
def test_an_ordinary_text_is_none(text: str) -> None:
    assert read_message(text) is None


def test_one_error_with_two_signs_is_one_message() -> None:
    """torch 2.11 names CUDA's own word for it behind its own."""
    text = (
        "torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in "
        "https://docs.nvidia"
        ".com/cuda/ for more information.\nCUDA kernel errors might be asynchronously reported"
    )
    assert [found.message.wording for found in find_messages(text)] == ["cuda_error"]


def test_figures_of_the_next_line_are_not_the_errors() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB\n" + "epoch 3: all is well\n" * 20 + "3.10 GiB free\n"
    message = read_message(text)
    assert message is not None
    assert (message.requested_bytes, message.free_bytes) == (2 * GIB, None)


RANKS = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/project/train.py", line 12, in <module>
[rank1]:   File "/project/other.py", line 99, in main
[rank3]:     loss = step(batch)
[rank3]:            ^^^^^^^^^^^
[rank3]:   File "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
[rank3]:     return F.linear(input, self.weight, self.bias)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 3 has a total capacity of 24 GiB
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.00 GiB. GPU 1 has a total capacity of 24 GiB.
"""


def test_ranks_that_write_into_each_other_keep_their_own_traceback() -> None:
    first, second = find_messages(RANKS)
    assert (first.rank, first.row, first.place, first.statement) == (
        "rank3",
        8,
        "project/train.py:12",
        "loss = step(batch)",
    )
    assert (second.rank, second.row, second.place, second.statement) == ("rank1", 9, "project/other.py:99", None)
    assert (first.message.device, second.message.requested_bytes) == (3, 10 * GIB)


def test_a_notebooks_traceback_names_the_cell() -> None:
    text = """\
OutOfMemoryError                          Traceback (most recent call last)
Cell In[5], line 3
      1 import torch
----> 3 y = model(x)
      4 print(y)

File /opt/python3.11/site-packages/torch/nn/modules/module.py:1511, in Module._call_impl(self, *args)
   1510 else:
-> 1511     return forward_call(*args, **kwargs)

OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 23.65 GiB.
"""
    (found,) = find_messages(text)
    assert (found.place, found.statement) == ("Cell In[5], line 3", "y = model(x)")


def test_a_place_is_not_taken_from_an_earlier_error() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/p/old.py", line 1, in <module>\n    f()\nValueError: x\n'
        "Traceback (most recent call last):\nRuntimeError: CUDA error: out of memory\n"
    )
    (found,) = find_messages(text)
    assert found.place is None


@pytest.mark.parametrize("seed", range(5))
def test_a_log_may_be_cut_anywhere(seed: int) -> None:
    """Pieces of any length give what the whole gives: rows, ranks, places and figures."""
    chance = random.Random(seed)
    texts = [text for text, _ in WORDINGS.values()]
    parts = [chance.choice([RANKS, *texts, "epoch 1 loss 0.3\n" * 400]) + "\n" for _ in range(60)]
    log = "".join(parts)
    cuts = sorted(chance.randrange(len(log)) for _ in range(chance.choice([3, 300])))
    pieces = [log[start:end] for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True)]
    assert list(scan(pieces)) == list(scan([log]))
    rows = log.split("\n")
    assert all(rows[found.row - 1].find(found.message.text[:12]) >= 0 for found in find_messages(log))


WORDS = st.sampled_from(
    [
        *(before + words.find for words in TABLE for before in words.before),
        *(text for text, _ in WORDINGS.values()),
        "Tried to allocate 9.9.9 GiB",
        "99999999999999999999999 GiB",
        "\n",
        "\r\n",
        "[rank3]: ",
        'File "/a/b.py", line 3, in x\n',
        "Traceback (most recent call last):\n",
        "device 99999",
        "²³ GiB",
        "CUDA out of memory. Tried to allocate \u0663\u0664 GiB",
        "CUDA out of memory. Tried to allocate 1.\u0663 GiB",
    ]
)


@settings(max_examples=300, deadline=2000)
@given(st.lists(st.one_of(WORDS, st.text(max_size=20)), max_size=40).map("".join))
def test_no_text_is_too_odd(text: str) -> None:
    """Whatever comes, every message has a kind and a place in order, and nothing is raised."""
    rows = [found.row for found in find_messages(text)]
    assert rows == sorted(rows)
    assert all(1 <= row <= text.count("\n") + 1 for row in rows)
    read_message(text)


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory. Tried to allocate " + "9" * 10_000_000,
        "CUDA out of memory. " + " \n" * 5_000_000,
        "x" * 10_000_000 + " CUDA error: out of memory",
        "OtherProcess 1 has " * 700_000,
        'File "' + "a" * 10_000_000 + "\nRuntimeError: CUDA error: out of memory",
        "CUDA out of memory." * 150_000 + "x" * 7_000_000,
    ],
    ids=["digits", "spaces", "one long line", "processes", "a path", "beginnings"],
)
def test_a_hostile_line_of_ten_megabytes_takes_seconds(line: str) -> None:
    began = time.process_time()
    find_messages(line)
    assert time.process_time() - began < 5


OFTEN = {
    "whole": (WORDINGS["torch 2.8, with a limit"][0] + "\n", 60_000),
    "on one line": ("CUDA out of memory. Tried to allocate ", 1_500_000),
    "killed": ("Killed\n", 3_000_000),
}


@pytest.mark.parametrize("name", OFTEN)
def test_a_log_that_says_the_same_a_million_times_is_read_in_one_pass(name: str) -> None:
    """The first thousand are read; the rest are counted, every one: four times the log takes about four times as
    long."""
    words, times = OFTEN[name]
    began = time.process_time()
    explain_text(words * (times // 4))
    quarter = time.process_time() - began
    text = words * times
    began = time.process_time()
    told = explain_text(text)
    assert time.process_time() - began < 0.5 + 8 * quarter
    assert told.evidence["messages"] == times
    assert f"at least {times} out-of-memory messages, {MOST_READ - 1} of the {MOST_READ} that were parsed" in " ".join(
        told.notes
    )


def test_what_decides_is_found_behind_any_number_of_others() -> None:
    """Enough of one head is not enough of another: the first certain message decides, wherever it stands."""
    text = "Killed\n" * 5000 + "RuntimeError: CUDA error: out of memory\n" + "Killed\n" * 5000
    found = [found for found in find_messages(text) if found.message.is_certain]
    assert [(one.message.wording, one.row) for one in found] == [("cuda_error", 5001)]
    told = explain_text(text)
    assert told.found.message.wording == "cuda_error"
    assert told.evidence["messages"] == 10_001


def test_figures_of_a_warning_that_nobody_read_are_not_told() -> None:
    """The refusal takes its figures from the warning before it; of many warnings the last ones are only counted."""
    warning, refusal = WORDINGS["torch 2.12, the warning before"][0], WORDINGS["torch 2.12, refused before"][0]
    few, many = (explain_text(f"{warning}\n" * times + refusal) for times in (3, MOST_READ + 3))
    assert few.evidence["reserved_bytes"] == 20 * GIB
    assert "reserved_bytes" not in many.evidence
    assert many.evidence["warnings"] == MOST_READ + 3


def test_a_count_does_not_depend_on_the_pieces() -> None:
    text = (
        "".join(text + "\n" for text, _ in WORDINGS.values()) * 60
        + "CUDA out of memory. Tried to allocate 1 GiB\n" * 900
    )
    chance = random.Random(1)
    cuts = sorted(chance.randrange(len(text)) for _ in range(40))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, cut = list(scan([text])), list(scan(pieces))
    assert [one for one in whole if isinstance(one, FoundMessage)] == [
        one for one in cut if isinstance(one, FoundMessage)
    ]
    assert [one for one in whole if isinstance(one, Unread)][-1] == [one for one in cut if isinstance(one, Unread)][-1]


@pytest.mark.parametrize("words", TABLE, ids=lambda words: f"{words.wording} {words.find}")
def test_the_pattern_that_counts_sees_what_is_read(words: Words) -> None:
    """Every text that is known, and every head of the table: as many are counted as are looked at."""
    texts = [text for text, _ in WORDINGS.values()] + [f"{words.before[0]}{words.find}\n", f"x{words.find} 137\n"]
    text = "\n".join(texts) + "\n"
    read, counted = CountedMessages(), CountedMessages()
    list(hits_of(text, 0, None, read))
    counted.count(words.find, text, 0, len(text))
    assert counted.counted[words.find] == read.read.get(words.find, 0)


def test_rows_that_a_terminal_has_cut_are_put_together() -> None:
    """At 80 columns "unalloc" and "ated" were two words, and the cached memory was another process'."""
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 "
        "GiB of which 1.06 GiB is free. Including non-PyTorch memory, this process has 13.68 GiB memory in use. Of the "
        "allocated memory 11.20 GiB is allocated by PyTorch, and 2.35 GiB is reserved by PyTorch but unallocated."
    )
    whole = find_messages(text)[0].message
    for width in (50, 60, 72, 79, 80, 100, 132, 160, 200):
        cut = "\n".join(text[at : at + width] for at in range(0, len(text), width))
        for ends in ("\n", "\r\n"):
            (found,) = find_messages(f"epoch 1{ends}" + cut.replace("\n", ends) + f"{ends}done{ends}")
            again = found.message
            assert found.row == 2
            assert (again.requested_bytes, again.free_bytes) == (whole.requested_bytes, whole.free_bytes), width
            assert (again.allocated_bytes, again.unallocated_bytes) == (
                whole.allocated_bytes,
                whole.unallocated_bytes,
            ), width


def test_rows_of_equal_length_are_not_put_together_without_need() -> None:
    row = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 14.74 GiB"
    text = "\n".join(f"[rank{rank}]: torch.OutOfMemoryError: {row.format(rank)}" for rank in range(8))
    assert [found.rank for found in find_messages(text)] == [f"rank{rank}" for rank in range(8)]
    assert [found.message.device for found in find_messages(text)] == list(range(8))
