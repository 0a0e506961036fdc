"""A file with the output of several runs is explained by its newest run that failed."""

import pytest

from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.explain import explain_text

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 31.74 GiB "
    "of which 985.38 MiB is free. Including non-PyTorch memory, this process has 30.77 GiB memory in use. Of the "
    "allocated memory 30.35 GiB is allocated by PyTorch, and 991.50 KiB is reserved by PyTorch but unallocated."
)
SHARED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB. GPU 0 has a total capacity of 31.74 GiB "
    "of which 21.38 MiB is free. Process 9 has 17.10 GiB memory in use. Including non-PyTorch memory, this process has "
    "14.60 GiB memory in use. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 91.50 MiB is reserved by "
    "PyTorch but unallocated."
)
STARTS = {
    "a banner of the script": ("==== start 29950 ====", "==== start 17342 ===="),
    "a shell": ("(env) user@host:~$ python train.py --batch 8", "(env) user@host:~$ python train.py --batch 4"),
    "a server": (
        "INFO 11-19 10:00:01 vLLM API server version 0.11.0",
        "INFO 11-19 10:31:40 vLLM API server version 0.11.0",
    ),
}


@pytest.mark.parametrize(("first", "second"), STARTS.values(), ids=STARTS)
def test_the_newest_run_is_explained_and_the_others_are_mentioned(first: str, second: str) -> None:
    found = explain_text(f"{first}\nloading\n{FULL}\n{second}\nloading\n{SHARED}\n")
    assert found.cause is Cause.OTHER_PROCESS
    assert any("several runs" in note and "line 3" in note for note in found.notes)
    later = explain_text(f"{first}\nloading\n{FULL}\n{second}\nloading\ndone\n")
    assert later.cause is Cause.TRULY_FULL
    assert any("a later run begins at line 4" in note for note in later.notes)


def test_within_one_run_the_first_error_is_explained() -> None:
    found = explain_text(f"epoch 1\nstep 1 loss 2.5\n{FULL}\nepoch 2\nstep 1 loss 2.4\n{SHARED}\n")
    assert found.cause is Cause.TRULY_FULL
    ranks = explain_text(f"[rank0]: loading model\n[rank0]: {FULL}\n[rank1]: loading model\n[rank1]: {SHARED}\n")
    assert ranks.cause is Cause.TRULY_FULL, "another rank's first line is not another run"
    assert len(ranks.ranks) == 2
