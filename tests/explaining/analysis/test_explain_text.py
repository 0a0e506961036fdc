"""Why memory ran out, from the error's text alone: one cause, as far as the figures go, and sums that are right."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.recorded.message.test_message import RANKS, WORDINGS
from ullage.base.errors import UsageError
from ullage.cli.app import main
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.text.account import account_of
from ullage.explaining.analysis.text.explain import TextExplanation, explain_text
from ullage.explaining.analysis.text.messages import RECORDING
from ullage.recorded.message.message import read_message

GIB, MIB = 1 << 30, 1 << 20


def new(requested: str, total: str, free: str, allocated: str, unallocated: str, between: str = "") -> str:
    """The wording of torch 2.2 and later."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity "
        f"of {total} "
        f"of which {free} is free. {between}Of the allocated memory {allocated} is allocated by PyTorch, and "
        f"{unallocated} "
        "is reserved by PyTorch but unallocated."
    )


def this(used: str) -> str:
    return f"Including non-PyTorch memory, this process has {used} memory in use. "


CASES: dict[str, tuple[str, Cause, str]] = {
    "the forum's figures": (
        "Tried to allocate 2.58 GiB ... 1.67 GiB free ... 4.96 GiB cached".join(["CUDA out of memory. ", ""]),
        Cause.FRAGMENTED,
        "2.58 GiB were requested in one piece. 1.67 GiB were free, and 4.96 GiB cached",
    ),
    "cut up": (
        WORDINGS["torch 1.4"][0],
        Cause.FRAGMENTED,
        "1.76 GiB were free, and 5.83 GiB cached",
    ),
    "full": (
        new("346.00 MiB", "8.00 GiB", "98.00 MiB", "7.20 GiB", "100.00 MiB", this("7.90 GiB")),
        Cause.TRULY_FULL,
        "7.20 GiB of 8.00 GiB were allocated when a request for 346.0 MiB failed with 98.0 MiB free; even after "
        "releasing all cached memory, 148.0 MiB are missing",
    ),
    "packed it just fits": (
        new("300.00 MiB", "8.00 GiB", "98.00 MiB", "7.20 GiB", "300.00 MiB", this("7.90 GiB")),
        Cause.TRULY_FULL,
        "The GPU was nearly full",
    ),
    "larger than the card": (
        new("37.25 GiB", "23.68 GiB", "15.77 GiB", "192.29 MiB", "4.86 GiB"),
        Cause.TRULY_FULL,
        "A single request exceeds the memory of the whole GPU: 37.25 GiB",
    ),
    "somebody else": (
        new(
            "576.00 MiB",
            "31.36 GiB",
            "370.69 MiB",
            "4.89 GiB",
            "30.00 MiB",
            "Process 16335 has 25.34 GiB memory in use. " + this("5.55 GiB"),
        ),
        Cause.OTHER_PROCESS,
        "Other processes hold 25.45 GiB of the GPU (process 16335 (25.34 GiB))",
    ),
    "somebody, the text does not say who": (
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.75 GiB total capacity; 79.11 MiB already "
        "allocated; 3.62 "
        "MiB free; 86.00 MiB reserved in total by PyTorch)",
        Cause.OTHER_PROCESS,
        "are used outside of PyTorch, which has 86.0 MiB",
    ),
    "this process, outside of PyTorch": (
        new("2.00 MiB", "23.64 GiB", "1.00 MiB", "6.22 GiB", "31.80 MiB", this("23.58 GiB")),
        Cause.DISGUISED,
        "This process holds 17.39 GiB outside of PyTorch's allocator, which itself has 6.25 GiB",
    ),
    "a limit": (
        WORDINGS["torch 2.8, with a limit"][0],
        Cause.LIMIT,
        "PyTorch may reserve 5.91 GiB, had reserved 2.00 GiB and requested 8.00 GiB more, while 21.15 GiB were free",
    ),
    "a limit, cudaMallocAsync": (WORDINGS["cudaMallocAsync"][0], Cause.LIMIT, "PyTorch may reserve 5.91 GiB"),
    "refused before": (WORDINGS["torch 2.12, refused before"][0], Cause.LIMIT, "8.00 GiB would have exceeded"),
    "refused before, with its warning": (
        WORDINGS["torch 2.12, the warning before"][0] + "\nRuntimeError: " + WORDINGS["torch 2.12, refused before"][0],
        Cause.TRULY_FULL,
        "it held 20.00 GiB of the GPU's 23.65 GiB and requested 8.00 GiB more",
    ),
    "free and refused": (WORDINGS["WSL"][0], Cause.LIMIT, "5.05 GiB were free on the GPU when 1.74 GiB were refused"),
    "beyond the reserve": (
        WORDINGS["torch 2.15, beyond the reserve"][0],
        Cause.ADDRESS_SPACE,
        "20.00 GiB were requested at once, and the segment spans 4.00 GiB",
    ),
    "no address": (WORDINGS["torch 2.15, no address"][0], Cause.ADDRESS_SPACE, "Address space ran out, not memory"),
    "bogus": (WORDINGS["more than an exabyte"][0], Cause.BOGUS_SIZE, "impossible: more than 1 EiB"),
    "CUDA itself": ("RuntimeError: CUDA error: out of memory", Cause.DISGUISED, "outside of PyTorch's allocator"),
    "cuBLAS": (
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling",
        Cause.DISGUISED,
        "cuBLAS could not allocate its own memory",
    ),
    "cuDNN": (
        "Unable to find a valid cuDNN algorithm to run",
        Cause.DISGUISED,
        "cuDNN reports that it could not start or found no algorithm",
    ),
    "NCCL": (
        "Last error:\nFailed to CUDA calloc async 608 bytes",
        Cause.DISGUISED,
        "NCCL could not allocate its own memory",
    ),
    "pinned": (
        'Traceback (most recent call last):\n  File "/p/t.py", line 3, in <module>\n    x = torch.empty(9, '
        "pin_memory=True)\n"
        "torch.AcceleratorError: CUDA error: out of memory\n",
        Cause.PINNED_MEMORY,
        "Host memory could not be pinned (x = torch.empty(9, pin_memory=True))",
    ),
    "host": (
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 237949750272 bytes. Error code 12",
        Cause.HOST_MEMORY,
        "Host memory ran out, not GPU memory: 221.61 GiB were requested",
    ),
    "killed by the kernel": ("Out of memory: Killed process 7899 (python)", Cause.HOST_MEMORY, "killed the process"),
    "killed, perhaps": ("Process finished with exit code 137", Cause.CANNOT_TELL, "killed from outside"),
    "shared memory": ("out of resource: shared memory, Required: 65536, Hard", Cause.ON_CHIP, "not the GPU's memory"),
    "Apple": (WORDINGS["Apple"][0], Cause.TRULY_FULL, "other Metal allocations held 17.35 GiB of the 27.20 GiB"),
    "no figures": ("RuntimeError: CUDA out of memory.", Cause.CANNOT_TELL, "no figures that show the cause"),
    "no card": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 0 bytes "
        "of which 0 bytes is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by "
        "PyTorch but unallocated.",
        Cause.CANNOT_TELL,
        "nothing can be concluded from it: the GPU has 0 bytes",
    ),
    "a warning only": (WORDINGS["torch 2.13, asking again"][0], Cause.CANNOT_TELL, "No request failed in this log"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_cause_in_the_first_sentence(name: str) -> None:
    text, cause, said = CASES[name]
    explanation = explain_text(text)
    assert said in explanation.sentence
    assert explanation.cause is cause
    assert not any(remedy.proved for remedy in explanation.remedies)
    assert all(remedy.remark for remedy in explanation.remedies), "an estimate has its arithmetic"


@pytest.mark.parametrize("name", [*WORDINGS, *CASES])
def test_the_parts_add_up_to_the_card(name: str) -> None:
    """To the byte, whatever the text rounds; a text that tells too little gets no sum."""
    text = WORDINGS[name][0] if name in WORDINGS else CASES[name][0]
    message = read_message(text)
    assert message is not None
    account = account_of(message)
    assert (account is not None) == (None not in (message.total_bytes, message.free_bytes, message.allocated_bytes))
    if account is None:
        return
    parts = account.outside_bytes + account.others_bytes + account.unnamed_bytes
    total = account.reserved_bytes + parts + account.free_bytes - account.spilt_bytes
    assert abs(total - account.total_bytes) <= 64 * MIB, "what is rounded is not more"
    assert parts == 0 or total == account.total_bytes


def test_the_process_of_a_container_is_this_one() -> None:
    """The driver names it by the number outside: without it too little is used to hold what PyTorch has."""
    text = new(
        "16.00 GiB", "140.06 GiB", "3.12 GiB", "128.03 GiB", "216.00 MiB", "Process 7 has 136.94 GiB memory in use. "
    )
    told = explain_text(text)
    assert told.account is not None
    assert (told.account.own_number, told.account.others_bytes) == (7, 0)
    assert told.cause is Cause.TRULY_FULL


def test_windows_keeps_what_does_not_fit_in_the_machines_memory() -> None:
    told = explain_text(new("90.00 MiB", "15.92 GiB", "0 bytes", "28.16 GiB", "1.59 MiB"))
    assert told.account is not None
    assert told.account.spilt_bytes > 12 * GIB
    assert any("Windows" in note for note in told.notes)


def test_the_first_failure_decides_and_the_others_are_counted() -> None:
    full = CASES["full"][0]
    told = explain_text(f"{RANKS}{full}\n{RANKS}")
    assert told.found.rank == "rank3"
    assert told.evidence["messages"] == 5
    assert any("5 out-of-memory messages" in note and "line 8" in note for note in told.notes)
    assert any("2 ranks or workers ran out of memory (rank3, rank1)" in note for note in told.notes)
    assert told.failing_line == "project/train.py:12"


def test_what_is_certain_goes_before_what_is_likely() -> None:
    told = explain_text(f"cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\n{CASES['full'][0]}\n")
    assert told.cause is Cause.TRULY_FULL
    assert told.found.row == 2


def test_settings_that_are_on_already_are_not_recommended() -> None:
    text = new("2.00 GiB", "15.00 GiB", "1.00 GiB", "5.00 GiB", "8.00 GiB")
    assert [remedy.setting for remedy in explain_text(text).remedies if remedy.setting] == ["expandable_segments:True"]
    on = explain_text(text + " expandable_segments is enabled. If instead")
    assert on.cause is Cause.FRAGMENTED
    assert not any(remedy.setting for remedy in on.remedies)


def test_the_share_that_would_have_to_go_is_enough() -> None:
    """Holding that much less, the request fits: the estimate's own arithmetic."""
    told: TextExplanation = explain_text(CASES["full"][0])
    evidence, remedy = told.evidence, told.remedies[0]
    share = int(remedy.name.split()[3]) / 100
    held = (evidence["allocated_bytes"] + evidence["missing_bytes"]) * (1 - share)
    assert held <= evidence["allocated_bytes"]


def test_what_to_record_next_time_is_code_that_runs() -> None:
    notes = explain_text(CASES["full"][0]).notes
    for line in RECORDING:
        compile(line, "note", "exec")
        assert any(line in note for note in notes)


def test_a_text_of_something_else_is_one_clear_sentence() -> None:
    with pytest.raises(UsageError, match=r"^train\.log contains no out-of-memory error that ullage knows, .*; give "):
        explain_text("epoch 1\n", source="train.log")


def command(*arguments: object, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "ullage", "explain", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, input=given, timeout=900)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main(["explain", *map(str, arguments)])
    code = ended.value.code
    return (code if isinstance(code, int) else 0, *capsys.readouterr())


def form_of(form: str) -> bytes:
    text = RANKS * 2 + "all is lost: \u2603\n"
    return gzip.compress(text.encode()) if form == "gzip" else text.encode("utf-16" if form == "UTF-16" else "utf-8")


@pytest.mark.parametrize("form", ["plain", "gzip", "UTF-16"])
def test_a_log_comes_in_every_form(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.log"
    file.write_bytes(form_of(form))
    code, out, error = told(capsys, file, "--json")
    assert code == 0, error
    answer: dict[str, Any] = json.loads(out)
    assert answer["evidence"]["messages"] == 4
    assert answer["failing_line"] == "project/train.py:12"


def test_a_log_comes_through_a_pipe_gzip_too() -> None:
    ended = command("-", "--all", given=form_of("gzip"))
    assert ended.returncode == 0, ended.stderr
    assert b"4 out-of-memory messages" in ended.stdout
    assert b"standard input" in ended.stdout


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (b"nothing\n", (), "contains no out-of-memory error"),
        (b"", (), "given is empty; expected a snapshot, a log"),
        (b"\x1f\x8b\x08\x00damaged", (), "cannot be read"),
        (b"RuntimeError: CUDA error: out of memory", ("--capacity", "8GiB"), "--capacity is for a snapshot"),
        (b"\x80\x04N.", (), "is not a snapshot"),
    ],
)
def test_mistakes_are_one_sentence(
    data: bytes, options: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given"
    file.write_bytes(data)
    code, out, error = told(capsys, file, *options)
    assert (code, out) == (2, "")
    assert said in error
    assert "Traceback" not in error


def test_a_snapshot_on_standard_input_is_asked_for_by_its_path() -> None:
    ended = command("-", given=b"\x80\x04N.")
    assert ended.returncode == 2
    assert b"give the path of a regular file" in ended.stderr


def test_a_log_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Escapes in a quoted line, in a file's name, and letters that turn the writing around."""
    log = tmp_path / "run\x1b[2J.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "/a/t\u202e.py", line 5, in f\n'
        "    x = 1 \x1b]0;owned\x1b\\ \x1b[2J\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "23.64 GiB of which 1.00 GiB is free.\n"
    )
    ended = client.run([sys.executable, "-m", "ullage", "explain", str(log)], timeout=900)
    assert ended.returncode == 0, ended.stderr
    assert "2.00 GiB" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert "\u202e" not in ended.stdout


@pytest.mark.parametrize("where", ["before", "within"])
def test_a_log_with_zeros_in_it_is_a_log(tmp_path: Path, where: str) -> None:
    """A log that is cut while it is written (logrotate's copytruncate, a crash) has zeros where that was."""
    text, zeros = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", bytes(9000)
    file = tmp_path / "train.log"
    file.write_bytes(zeros + text if where == "before" else text[:30] + zeros[:40] + text[30:])
    ended = client.run([sys.executable, "-m", "ullage", "explain", file])
    assert (ended.returncode, "2.00 GiB" in ended.stdout) == (0, True), ended.stderr


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    line = f"{sys.executable} -m ullage explain <(echo '{text}')"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=900, check=False)
    assert (ended.returncode, "2.00 GiB" in ended.stdout) == (0, True), ended.stderr
    closed = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ullage explain - <&-"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (closed.returncode, "standard input is closed" in closed.stderr) == (2, True)


@pytest.mark.parametrize(
    ("total", "allocated", "cached", "said"),
    [
        ("900000000.00 GiB", "20.00 GiB", "1.00 GiB", "more than any machine has"),
        ("24.00 GiB", "0 bytes", "99999.00 GiB", "PyTorch holds 97.66 TiB on a GPU with 24.00 GiB"),
        ("24.00 GiB", "700.00 GiB", "1.00 GiB", "PyTorch holds 701.00 GiB on a GPU with 24.00 GiB"),
    ],
)
def test_figures_that_no_card_has_are_not_judged(total: str, allocated: str, cached: str, said: str) -> None:
    text = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        f"{total} of which 5.00 MiB is free. Including non-PyTorch memory, this process has 23.00 GiB memory in use. "
        f"Of the allocated memory {allocated} is allocated by PyTorch, and {cached} is reserved by PyTorch but "
        "unallocated."
    )
    explained = explain_text(text)
    assert explained.cause is Cause.CANNOT_TELL
    assert "nothing can be concluded from it" in explained.sentence
    assert said in explained.sentence
    assert explained.account is None


def test_what_others_hold_is_told_though_the_cache_would_have_sufficed() -> None:
    between = "Process 33211 has 20.00 GiB memory in use. " + this("58.04 GiB")
    told = explain_text(new("1.50 GiB", "79.15 GiB", "1.10 GiB", "50.00 GiB", "6.80 GiB", between))
    assert told.cause is Cause.FRAGMENTED
    assert any("other processes hold 20.01 GiB of the GPU (process 33211 (20.00 GiB))" in note for note in told.notes)
    between = "Process 33211 has 30.00 GiB memory in use. " + this("48.04 GiB")
    told = explain_text(new("4.50 GiB", "79.15 GiB", "1.10 GiB", "40.00 GiB", "6.80 GiB", between))
    assert told.cause is Cause.OTHER_PROCESS, "with so much in other hands, fragmentation is not the first reason"
    with_little = "Process 33211 has 1.00 GiB memory in use. " + this("77.04 GiB")
    told = explain_text(new("1.50 GiB", "79.15 GiB", "1.10 GiB", "74.00 GiB", "1.80 GiB", with_little))
    assert not any("33211" in note for note in told.notes)


def test_a_card_that_would_do_has_room_for_what_was_in_the_machines_memory_too() -> None:
    told = explain_text(new("2.00 GiB", "8.00 GiB", "0 bytes", "13.70 GiB", "412.10 MiB"))
    assert [remedy.name for remedy in told.remedies][-1] == "a GPU with 20 GiB or more"
    assert "13.70 GiB + 2.00 GiB" in told.remedies[-1].remark


def test_a_kill_for_the_machines_memory_is_told_where_the_card_had_run_out_before() -> None:
    text = new("512.00 MiB", "39.39 GiB", "200.00 MiB", "35.00 GiB", "3.50 GiB", this("39.18 GiB"))
    killed = f"{text}\nstep 18\nslurmstepd: error: Detected 1 oom_kill event in StepId=4242.0."
    told = explain_text(killed)
    assert told.cause is Cause.FRAGMENTED
    (note,) = [note for note in told.notes if "host memory ran out" in note]
    assert note.startswith("line 3 reports that host memory ran out")
    assert not any("host memory ran out" in note for note in explain_text(f"{text}\n{text}").notes)


def test_within_a_sentence_a_cause_keeps_the_capitals_of_gpu() -> None:
    assert Cause.TRULY_FULL.phrase == "not enough GPU memory"
    for cause in Cause:
        assert cause.phrase.upper() == cause.heading
        assert "gpu" not in cause.phrase
