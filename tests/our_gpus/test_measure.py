"""A measurement stops in time, leaves no process behind, and is continued after it was killed at any moment."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.our_gpus.measure import Measurement
from benchmarks.our_gpus.plan import all_questions
from benchmarks.our_gpus.process import last_error
from benchmarks.our_gpus.question import GpuUnderTest
from benchmarks.our_gpus.record import RECORD, Writer, read_record
from tests.our_gpus.conftest import GPU, ROOT, Run

QUESTIONS = ("context/cublas", "context/cudnn", "context/nccl", "context/graph")


def start(environment: dict[str, str], folder: Path, *words: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.our_gpus.measure", "--emulate", GPU, "--out", str(folder)]
    return subprocess.Popen(
        [*command, *map(str, words)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def answers_in(folder: Path) -> int:
    path = folder / RECORD
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.is_file() else 0


@pytest.mark.parametrize("killed_after", [0, 1, 3])
def test_a_killed_run_is_continued(environment: dict[str, str], run: Run, tmp_path: Path, killed_after: int) -> None:
    """Killed after some answers, in the middle of the next: all it started ends, what it wrote is compared, and the
    second call asks only what is left."""
    process = start(environment, tmp_path, "--minutes", 30, "--jobs", 2, "--only", *QUESTIONS)
    while answers_in(tmp_path) < killed_after or not psutil.Process(process.pid).children(recursive=True):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    started = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(started, timeout=300)
    assert not alive

    if killed_after:
        kept = read_record(tmp_path).answers
        compared = run("compare", tmp_path, "--emulated", tmp_path)
        assert compared.returncode == 1, "questions without an answer are reported"
        assert not compared.stderr
        assert all(f"agrees     {name}\n" in compared.stdout for name in kept)
    again = run("measure", "--emulate", GPU, "--out", tmp_path, "--minutes", 30, "--only", *QUESTIONS)
    assert again.returncode == 0, again.stdout + again.stderr
    assert read_record(tmp_path).answers.keys() == set(QUESTIONS)
    asked = [json.loads(line).get("question") for line in (tmp_path / RECORD).read_text().splitlines()[1:]]
    assert sorted(asked) == sorted(QUESTIONS), "each question was asked once"


def test_nothing_starts_that_would_end_too_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is left is returned, and nothing was started."""
    questions = [question for question in all_questions() if question.seconds > 5]
    measurement = Measurement(GpuUnderTest(emulated=GPU), Writer(tmp_path), jobs=2, deadline=time.monotonic() + 5)
    assert measurement.run(questions) == questions
    assert not capsys.readouterr().out
    assert not measurement.failed


def test_what_still_runs_at_the_deadline_is_ended(environment: dict[str, str], tmp_path: Path) -> None:
    """It is among what is left, and the record has no line of it."""
    question = replace(all_questions()[0], seconds=0.0)
    before = set(psutil.Process().children())  # the servers of other tests
    measurement = Measurement(GpuUnderTest(emulated=GPU), Writer(tmp_path), jobs=2, deadline=time.monotonic() + 0.5)
    assert measurement.run([question]) == [question]
    assert not (tmp_path / RECORD).exists()
    assert set(psutil.Process().children()) <= before


def test_a_question_that_fails_is_an_error_and_is_asked_again(
    environment: dict[str, str], run: Run, tmp_path: Path
) -> None:
    """The error is the last line that Python printed, without folders; the next call asks it again."""
    words = ("--emulate", GPU, "--out", tmp_path / "record", "--minutes", 30, "--only", "context/triton")
    environment["CC"] = str(tmp_path / "no-compiler")  # Triton builds its launcher with it
    try:
        failed = run("measure", *words)
    finally:
        del environment["CC"]
    assert failed.returncode == 1
    (error,) = read_record(tmp_path / "record").errors.values()
    assert re.match(r"[\w.]+: ", error)
    assert str(tmp_path) not in (tmp_path / "record" / RECORD).read_text()
    assert run("measure", *words).returncode == 0
    assert not read_record(tmp_path / "record").errors


def test_the_error_is_the_exception_not_what_follows_it() -> None:
    """CUDA's errors end with advice that is always the same, and libraries print after a traceback."""
    frames = 'Traceback (most recent call last):\n  File "/home/someone/x.py", line 1, in <module>\n    f()\n'
    cuda = "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be\nCompile with `TORCH_USE_CUDA_DSA`\n"
    assert last_error(f"{frames}{cuda}[W] a warning of NCCL\n") == "RuntimeError: CUDA error: out of memory"
    assert last_error(f"{frames}ValueError: first\n\nDuring ...:\n\n{frames}KeyError: 'x'\n") == "KeyError: 'x'"
    assert last_error("one\nfatal: '/home/some one/y.txt' and /tmp/z are gone\n\n") == "fatal: 'y.txt' and z are gone"
    assert last_error("") == ""


def test_what_the_caller_has_set_does_not_decide(environment: dict[str, str], run: Run, tmp_path: Path) -> None:
    """The settings of the allocator in somebody's environment are not those of the questions; the record names them."""
    words = ("--emulate", GPU, "--minutes", 30, "--only", "allocators/settings/none")
    assert run("measure", *words, "--out", tmp_path / "plain").returncode == 0
    environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    try:
        assert run("measure", *words, "--out", tmp_path / "set").returncode == 0
    finally:
        del environment["PYTORCH_CUDA_ALLOC_CONF"]
    plain, other = (read_record(tmp_path / name) for name in ("plain", "set"))
    assert plain.answers == other.answers
    assert other.gpu["ignored_variables"] == ["PYTORCH_CUDA_ALLOC_CONF"]


def test_an_inherited_emulation_is_not_taken_for_a_gpu(environment: dict[str, str], run: Run, tmp_path: Path) -> None:
    """A run without --emulate in an environment that emulates a GPU ends in one sentence."""
    from ullage.gpu.emulator.emulate import emulate_in

    before = dict(environment)
    emulate_in(environment, GPU)
    try:
        done = run("measure", "--out", tmp_path, "--minutes", 30, "--only", "context/cublas")
    finally:
        environment.clear()
        environment.update(before)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the environment emulates a GPU; name it with --emulate")


def test_two_at_once_are_refused(environment: dict[str, str], run: Run, tmp_path: Path) -> None:
    """Both would write into one record."""
    first = start(environment, tmp_path / "one", "--minutes", 30, "--only", *QUESTIONS)
    try:
        while not answers_in(tmp_path / "one"):
            assert first.poll() is None
            time.sleep(0.01)
        second = run("measure", "--emulate", GPU, "--out", tmp_path / "one", "--minutes", 30, "--only", *QUESTIONS)
    finally:
        first.send_signal(signal.SIGINT)
    assert second.returncode == 2
    assert "another make gpu is running" in second.stderr
    assert first.wait() == 130


def test_nothing_is_left_after_an_interruption(environment: dict[str, str], tmp_path: Path) -> None:
    """Forks and temporary files of a question go with it, whatever signal ends the measurement."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = start(
        {**environment, "TMPDIR": str(folder)}, tmp_path / "record", "--minutes", 30, "--only", "values/experts"
    )
    children: set[psutil.Process] = set()
    while sum("values/experts" in " ".join(_words(child)) for child in children) < 2:  # the question and its forks
        assert process.poll() is None, "it ended before it was interrupted"
        children |= set(psutil.Process(process.pid).children(recursive=True))
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(children, timeout=300)
    assert not alive
    assert [path for path in folder.iterdir() if path.suffix != ".lock"] == []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "nonsense"), "--only nonsense: no question has this in its name"),
        (("--emulate", "GTX 9999"), "no GPU answers"),
        (("--minutes", "0"), "--minutes has to be above 0"),
        (("--minutes", "nan"), "--minutes has to be above 0"),
        (("--jobs", "0"), "--jobs 1 or more"),
        (("--total", "0"), "--total is the memory"),
        (("--only", ""), "no question has this in its name"),
        (("--out", "/dev/null"), "error: "),
    ],
)
def test_bad_input_is_one_sentence(run: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """What is wrong, and exit code 2."""
    given = ("--emulate", GPU, *words)
    done = run("measure", "--out", tmp_path / "record", *given)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_record_of_another_gpu_is_not_continued(run: Run, tmp_path: Path) -> None:
    """The sentence names both."""
    Writer(tmp_path).gpu({
        "gpu": "Tesla T4", "total_memory_bytes": 1 << 34, "torch": "2.11.0", "driver": "580", "python": "3.12.3",
        "cudnn": 91900, "packages": {}, "emulated": None,
    })  # fmt: skip
    done = run("measure", "--emulate", GPU, "--out", tmp_path, "--minutes", 30)
    assert done.returncode == 2
    assert "this record is of gpu Tesla T4, and here it is NVIDIA H100 80GB HBM3" in done.stderr


def test_the_plan_needs_no_torch_and_no_gpu() -> None:
    """`--list` runs on a bare Python, with the most valuable questions first."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.our_gpus.measure", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.split(":")[0].split()[-1] for line in done.stdout.splitlines() if " s  " in line]
    assert names[0] == "context/stages"
    assert len(names) == len(set(names)) >= 60
