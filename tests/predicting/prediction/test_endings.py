"""However a script ends, there is one answer, one exit code, and nothing left of it."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

import ullage.predicting.prediction.process.listener
from tests.shared.commands import SCRIPTS, Predict, command, environment_of, processes_of
from ullage.base.errors import ScriptError
from ullage.predicting.prediction.predict import Request
from ullage.predicting.prediction.predict import predict as predict_here

pytestmark = pytest.mark.own_process


def line_of(script: str, text: str) -> int:
    """The number of the first line of a script of ours that starts with a text, its indentation left out."""
    lines = (SCRIPTS / script).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


# ---- memory runs out


@pytest.mark.parametrize(("how", "text"), [("uncaught", "model(torch"), ("other", "model(torch")])
def test_an_oom_does_not_fit_and_names_the_line(predict: Predict, how: str, text: str) -> None:
    """Exit code 1, with PyTorch's own words, the line of the script that asked, and what was alive then."""
    ended = predict("memory_runs_out.py", how, "--json")
    assert ended.code == 1, ended.error
    oom = ended.json["oom"]
    assert oom["text"].startswith(
        "CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total capacity of 14.74"
    )
    assert oom["file"] == str(SCRIPTS / "memory_runs_out.py")
    assert oom["line"] == line_of("memory_runs_out.py", text)
    assert oom["roles"]["parameters"] == 4 * (1024 * 1024 + 1024)
    assert ended.json["verdict"] == "does not fit"
    assert ended.json["steps"][-1]["oom"] is True


def test_an_oom_at_the_first_allocation_does_not_fit(predict: Predict) -> None:
    """There is nothing alive to show, and the verdict is the same."""
    ended = predict("memory_runs_out.py", "first")
    assert ended.code == 1, ended.error
    assert "DOES NOT FIT" in ended.text
    assert "Tried to allocate 400.00 GiB" in ended.text
    assert f"memory_runs_out.py:{line_of('memory_runs_out.py', 'torch.zeros')}" in ended.text


@pytest.mark.parametrize(
    ("how", "handled", "limit", "left"),
    [
        ("call", "handled", "1.50 GiB", "257.0 MiB left of the limit"),
        ("call", "raised", "1.50 GiB", "257.0 MiB left of the limit"),
        ("settings", "handled", "1.47 GiB", "229.5 MiB left of the limit"),
    ],
)
def test_a_script_at_its_own_limit_does_not_fit(
    predict: Predict, how: str, handled: str, limit: str, left: str
) -> None:
    """The limit is known, and decides: what is free on the card beside it is said to be the card's."""
    ended = predict("limits_itself.py", how, handled)
    assert ended.code == 1, ended.out + ended.error
    assert f"DOES NOT FIT: the script's own limit of {limit}" in ended.text
    assert left in ended.text
    assert f"{limit} allowed" in ended.text
    assert "has a total capacity of 14.74 GiB" in ended.text
    assert f"PyTorch may reserve at most {limit}, even if more is free" in ended.text


def test_where_the_card_itself_is_too_small_a_limit_is_not_to_blame(predict: Predict) -> None:
    """1.25 GiB and a context are more than a card of 1.5 GiB has, though the limit is above that."""
    ended = predict("limits_itself.py", "call", "raised", "--json", gpu="1.5GiB")
    assert ended.code == 1, ended.out + ended.error
    assert ended.json["oom"]["limit_bytes"] is None


def test_a_retry_with_a_smaller_batch_fits(predict: Predict) -> None:
    """An out-of-memory error that the script handled is noted, and counts for nothing else."""
    ended = predict("memory_runs_out.py", "retry", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["oom"] is None
    assert ended.json["oom_count"] == 1
    assert "the script ran out of memory once and continued" in ended.json["notes"]
    assert [step["oom"] for step in ended.json["steps"]] == [True, False, False]


@pytest.mark.parametrize("how", ["exit", "swallow"])
def test_giving_up_after_an_oom_does_not_fit(predict: Predict, how: str) -> None:
    """A script that catches the error and then exits with 1, or just ends, did not fit."""
    ended = predict("memory_runs_out.py", how, "--json")
    assert ended.code == 1, ended.error
    assert ended.json["oom"]["text"].startswith("CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total")
    assert ended.json["oom"]["line"] == line_of("memory_runs_out.py", "model(torch")


def test_an_error_after_a_handled_oom_is_an_error(predict: Predict) -> None:
    """Memory that ran out before a step that worked explains no later mistake."""
    ended = predict("memory_runs_out.py", "later error")
    assert ended.code == 3
    assert "raised KeyError" in ended.error


# ---- errors


@pytest.mark.parametrize(
    ("when", "text", "line"),
    [
        ("before", "broken early", 'raise ValueError("broken early'),
        ("after", "broken after a step", 'raise ValueError("broken after'),
        ("backward", "broken in backward", 'raise ValueError("broken in'),
    ],
)
def test_a_script_that_raises_is_told_with_its_line(predict: Predict, when: str, text: str, line: str) -> None:
    """Exit code 3; the traceback is the one of `python SCRIPT`, without a frame of ours."""
    ended = predict("raises.py", when)
    assert ended.code == 3
    assert ended.out == ""
    number = line_of("raises.py", line)
    assert f"raises.py raised ValueError at line {number} of {SCRIPTS / 'raises.py'}: {text}\nTraceback" in ended.error
    assert ended.error.rstrip().endswith(f"ValueError: {text}")
    assert "ullage/predicting/prediction" not in ended.error
    assert "importlib" not in ended.error


def test_an_error_that_begins_with_an_empty_line_is_told_in_the_first(predict: Predict) -> None:
    """As torch.distributed.pipelining words its own."""
    ended = predict("raises.py", "in lines")
    assert f"{SCRIPTS / 'raises.py'}: Failed to begin:\n        Input: 3\nTraceback" in ended.error


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("exit 0", 4, "The script's own process did not import torch"),
        ("os exit 0", 4, "The script's own process did not import torch"),
        ("prints", 4, "The script's own process did not import torch"),
        ("closes", 4, "The script's own process did not import torch"),
        ("exit 3", 3, "ends.py exited with code 3 at line {sys.exit(3)} of "),
        ("os exit 3", 3, "ends.py exited with code 3 at line {os._exit(3)} of "),
        ("text", 3, "its last output was:\nabout to end: text\nthe data set is not there"),
        ("interrupt", 3, "ends.py raised KeyboardInterrupt at line {raise Keyb} of "),
        ("crash", 3, "ends.py ended by signal SIGSEGV at line {ctypes.string} of "),
        ("killed", 3, "ends.py was killed"),
        ("syntax", 3, "ends.py raised SyntaxError at line {compile(} of "),
        ("closes ours", 3, "ends.py closed the pipe that ullage reads, so ullage did not receive the result"),
    ],
)
def test_an_end_without_a_step_is_told(predict: Predict, workplace: Path, how: str, code: int, said: str) -> None:
    """Every way to end has its exit code, and one that failed names the line and what the script said."""
    ended = predict("ends.py", how, workplace)
    said = re.sub("{(.*)}", lambda match: str(line_of("ends.py", match[1])), said)
    assert (ended.code, said in ended.error + ended.out) == (code, True), ended
    assert "ullage/predicting/prediction" not in ended.error
    # Files that took over a closed descriptor of ours must not get our messages.
    assert all(file.read_text() == "" for file in workplace.glob("file*"))


@pytest.mark.parametrize(
    ("how", "raised"),
    [
        ("printed", "CalledProcessError"),
        ("captured", "CalledProcessError"),
        ("output", "CalledProcessError"),
        ("pool", "BrokenProcessPool"),
    ],
)
def test_what_a_failing_child_said_is_told(predict: Predict, how: str, raised: str) -> None:
    """Python's own error has the exit code alone, whether the script keeps the child's words or prints them."""
    ended = predict("fails_in_child.py", how)
    assert ended.code == 3
    assert f"fails_in_child.py raised {raised}" in ended.error
    assert ended.error.splitlines().count("the reason is this") == 1


def test_what_grows_is_told_with_the_line_that_allocates_it(predict: Predict) -> None:
    """More steps than three are run where they do not settle; --steps means what it says."""
    ended = predict("grows.py", "--json")
    assert ended.code == 0, ended.error
    growth = ended.json["growth"]
    steps = ended.json["steps"]
    assert len(steps) == 9
    assert growth["bytes_per_step"] == steps[-1]["end_allocated_bytes"] - steps[-2]["end_allocated_bytes"]
    assert growth["bytes_per_step"] >= 2048 * 1024 * 4
    assert growth["line"] in (line_of("grows.py", "hidden = "), line_of("grows.py", "losses.append"))
    assert "'losses'" in growth["holder"]
    assert not ended.json["settled"]
    text = predict("grows.py", "--steps", "4")
    assert "grows by 16.0 MiB per step, allocated at " in text.text
    assert "held by grows.py:" in text.text
    assert "grows.py:" in text.out
    assert predict("train.py", "--json").json["growth"] is None


def test_without_an_optimizer_the_run_goes_to_its_end(predict: Predict) -> None:
    """The whole run counts as one step, and the reader is told."""
    ended = predict("no_optimizer.py", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["ended"] == "ended"
    assert "no optimizer made a step: the whole run counts as one step" in ended.json["notes"]
    assert ended.json["peak_allocated_bytes"] > 512 * 512 * 4


def test_without_a_gpu_there_is_nothing_to_judge(predict: Predict) -> None:
    """Exit code 4 for a script that trains on the CPU."""
    ended = predict("no_gpu.py")
    assert ended.code == 4, ended.error
    assert "The script's own process allocated nothing on the GPU" in ended.text


# ---- time


@pytest.mark.parametrize("how", ["sleep", "ignores alarms", "starts others"])
def test_a_script_that_never_ends_is_stopped(predict: Predict, how: str) -> None:
    """--seconds ends it, whatever it waits for, and whatever it has started."""
    ended = predict("ends.py", how, "--seconds", "0.5")
    assert ended.code == 4, ended


def test_a_script_that_is_stopped_cleans_up_as_at_any_end(predict: Predict, workplace: Path) -> None:
    """Its finally blocks and exit handlers run, and one that fails does not keep the others from it."""
    ended = predict("ends.py", "cleans up", workplace, "--seconds", "0.5")
    assert ended.code == 4, ended
    assert (workplace / "finally").exists()
    assert (workplace / "exit handler").exists()


@pytest.mark.parametrize("how", ["deaf", "handles every error"])
def test_a_script_that_cannot_be_stopped_is_killed(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """One that hears no signal is killed after a while; one that handles every error has told its result before."""
    # What is waited for in vain is waited for a short time; an answer has all the time that a busy machine takes.
    in_vain = "STOP_SECONDS" if how == "deaf" else "UNWIND_SECONDS"
    monkeypatch.setattr(ullage.predicting.prediction.process.listener, in_vain, 0.5)
    request = Request.of(SCRIPTS / "ends.py", (how,), gpu="T4", steps=3, seconds=0.5)
    if how == "deaf":
        with pytest.raises(ScriptError, match=r"ends.py did not end after 0\.5 s and could not be stopped"):
            predict_here(request)
    else:
        assert predict_here(request).ended == "time"


def test_a_limit_of_time_leaves_the_import_of_torch_out(predict: Predict) -> None:
    """The clock stands still while torch is imported: a second is for the script alone."""
    ended = predict("counts_steps.py", "no step", "--seconds", "1", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["ended"] == "ended"


# ---- interruptions


def start(workplace: Path, script: Path) -> subprocess.Popen[str]:
    """Start a prediction whose script starts two more processes, and wait for it to say so."""
    process = subprocess.Popen(
        command("--gpu", "T4", "--output", script, "starts others"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=workplace,
        env=environment_of(workplace),
        start_new_session=True,
    )
    assert process.stderr is not None
    while process.stderr.readline() != "ready\n":
        assert process.poll() is None
    assert len(processes_of(workplace / "tmp")) == 4
    return process


@pytest.mark.parametrize(
    ("number", "to_group", "said"),
    [
        (signal.SIGINT, False, "interrupted; no processes or temporary files were left\n"),
        (signal.SIGINT, True, "interrupted; no processes or temporary files were left\n"),
        (signal.SIGTERM, False, "ended by SIGTERM; no processes or temporary files were left\n"),
    ],
)
def test_an_interruption_ends_everything(workplace: Path, number: int, to_group: bool, said: str) -> None:
    """Ctrl-C and SIGTERM leave one line and no process, at once; the exit code is the shell's own."""
    process = start(workplace, SCRIPTS / "ends.py")
    if to_group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, error = process.communicate(timeout=900)
    assert (process.returncode, error) == (128 + number, said)
    assert processes_of(workplace / "tmp") == []


def test_a_killed_ullage_takes_its_script_along(workplace: Path) -> None:
    """After SIGKILL the kernel ends the script's group; only what left the group on purpose lives on."""
    process = start(workplace, SCRIPTS / "ends.py")
    process.kill()
    process.communicate(timeout=900)
    deadline = time.monotonic() + 900
    while len(left := processes_of(workplace / "tmp")) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)  # nothing tells of the end of a grandchild
    assert [process.name() for process in left] == ["sleep"]
    left[0].kill()
    left[0].wait(900)


# ---- what counts as a step


@pytest.mark.parametrize(
    ("how", "last", "ended_by"),
    [
        ("scaler skips", None, "steps"),
        ("two optimizers", "first 2", "steps"),
        ("closure", None, "steps"),
        ("in backward", "pass 2", "steps"),
        ("accumulates", "pass 11", "steps"),
        ("in a thread", None, "ended"),
    ],
)
def test_steps_are_counted(predict: Predict, how: str, last: str | None, ended_by: str) -> None:
    """The optimizer that finishes first defines the step; a step that the scaler left out counts."""
    ended = predict("counts_steps.py", how, "--json", "--output")
    assert ended.code == 0, ended.error
    assert ended.json["ended"] == ended_by
    assert [step["complete"] for step in ended.json["steps"]] == [True] * (3 if ended_by == "steps" else 2)
    if last:
        said = [line for line in ended.error.splitlines() if line.startswith(last.split()[0])]
        assert said[-1] == last


def test_a_request_is_plain_data() -> None:
    """What travels to the script's process has nothing of the caller's folder in it."""
    request = Request.of("a.py", gpu="T4")
    assert request.for_child().script == str(Path.cwd() / "a.py")
    assert request.for_child().name == "a.py"
    assert request.with_options(snapshot="b").for_child().snapshot == Path.cwd() / "b"


# ---- what the script may do to us


def test_odd_models_run_as_without_us_and_their_memory_has_names(predict: Predict) -> None:
    """Lazy parameters, arguments named like ours and a failed step disturb neither the script nor the roles."""
    ended = predict("odd_models.py", "--json")
    assert ended.code == 0, ended.error
    assert [step["complete"] for step in ended.json["steps"]] == [True, True, True]
    assert ended.json["role_peaks"]["parameters"] == 4 * 33 * 64
    assert ended.json["role_peaks"]["gradients"] == 4 * 33 * 64
    assert ended.json["role_peaks"]["inputs"] >= 4 * 1024 * 32
    assert ended.json["roles"]["unknown"] == 0


def test_a_card_that_the_build_has_no_code_for_is_not_judged(predict: Predict) -> None:
    """A real one would refuse its first kernel, so no verdict on its memory would mean anything."""
    ended = predict("train.py", gpu="V100 32GB")
    assert ended.code == 4
    assert "has no code for sm_70" in ended.error


def test_running_out_beside_free_memory_that_is_no_whole_segment_does_not_fit(tmp_path: Path) -> None:
    """PyTorch asks the driver for 20 MiB to serve 8.1 MiB; 16 MiB that are free do not help."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "kept = torch.empty(96 << 20, dtype=torch.uint8, device='cuda')\n"
        "more = torch.empty(8_500_000, dtype=torch.uint8, device='cuda')\n"
    )
    found = predict_here(Request.of(script, gpu="T4", steps=3, total_memory=1 << 30, context=(1024 - 112) << 20))
    assert found.oom is not None
    assert found.verdict.value == "does not fit"
