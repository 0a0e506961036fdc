"""A measurement stops in time, leaves no process behind, and is continued after it was killed at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.our_gpus.record import RECORD, read_record
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
        assert compared.returncode == 0, compared.stdout + compared.stderr
        assert all(name in compared.stdout for name in kept)
    again = run("measure", "--emulate", GPU, "--out", tmp_path, "--minutes", 30, "--only", *QUESTIONS)
    assert again.returncode == 0, again.stdout + again.stderr
    assert read_record(tmp_path).answers.keys() == set(QUESTIONS)
    asked = [json.loads(line).get("question") for line in (tmp_path / RECORD).read_text().splitlines()[1:]]
    assert sorted(asked) == sorted(QUESTIONS), "each question was asked once"


def test_nothing_starts_that_would_end_too_late(run: Run, tmp_path: Path) -> None:
    """With hardly any time it says what is left, and the exit code is 1."""
    done = run("measure", "--emulate", GPU, "--out", tmp_path, "--minutes", 0.06, "--only", *QUESTIONS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no time for 4: context/cublas" in done.stdout
    assert not read_record(tmp_path).answers


def test_a_question_that_fails_is_an_error_and_is_asked_again(
    environment: dict[str, str], run: Run, tmp_path: Path
) -> None:
    """The error is the last line that Python printed, without folders; the next call asks it again."""
    words = ("--emulate", GPU, "--out", tmp_path / "record", "--minutes", 30, "--only", "context/triton")
    file = tmp_path / "file"
    file.touch()
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(file)  # torch.compile cannot make a folder there
    try:
        failed = run("measure", *words)
    finally:
        del environment["TORCHINDUCTOR_CACHE_DIR"]
    assert failed.returncode == 1
    (error,) = read_record(tmp_path / "record").errors.values()
    assert "Error: " in error
    assert str(tmp_path) not in error
    assert run("measure", *words).returncode == 0
    assert not read_record(tmp_path / "record").errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "nonsense"), "--only nonsense: no question has this in its name"),
        (("--emulate", "GTX 9999"), "no GPU answers"),
        (("--minutes", "0"), "have to be above 0"),
        (("--jobs", "0"), "have to be above 0"),
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
    assert run("measure", "--emulate", GPU, "--out", tmp_path, "--minutes", 0.06).returncode == 1
    done = run("measure", "--emulate", "T4", "--out", tmp_path, "--minutes", 0.06)
    assert done.returncode == 2
    assert "NVIDIA H100 80GB HBM3, and here it is Tesla T4" in done.stderr


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
