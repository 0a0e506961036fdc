"""The command line: one sentence for every mistake, JSON that programs can trust, and files whole or not at all."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ullage
from tests.shared.commands import SCRIPTS, Predict, command, environment_of

ROLES = {
    *("parameters", "gradients", "optimizer_state", "buffers", "activations"),
    *("inputs", "temporaries", "workspaces", "rounding", "unknown"),
}
STEP = {
    "step": int,
    "peak_allocated_bytes": int,
    "peak_reserved_bytes": int,
    "end_allocated_bytes": int,
    "oom": bool,
    "complete": bool,
}
FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema": int,
    "verdict": str,
    "reason": str,
    "gpu": str,
    "torch": str,
    "total_memory_bytes": int,
    "context_bytes": int,
    "peak_allocated_bytes": int,
    "peak_reserved_bytes": int,
    "cached": int,
    "headroom_bytes": int,
    "interval_bytes": list,
    "steps": list,
    "roles": dict,
    "lines": list,
    "reads": list,
    "notes": list,
    "oom": (dict, type(None)),
    "oom_count": int,
}


def numbers(data: dict[str, Any]) -> dict[str, Any]:
    """All of a prediction but the seconds it took, and what was resident on the host, which is the kernel's affair."""
    return {name: value for name, value in data.items() if name not in ("seconds", "host")}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "RTX 4900"], "no GPU named 'RTX 4900' is known; nearest: "),
        (["--gpu", "T4", "--steps", "0"], "--steps 0 is out of range; expected 1 or more"),
        (["--gpu", "T4", "--seconds", "nan"], "--seconds nan is out of range; expected a number above 0"),
        (["--gpu", "T4", "--total-memory", "0GiB"], "leaves no memory on a GPU with 0 B"),
        (
            ["--gpu", "T4", "--total-memory", "100MiB"],
            "a CUDA context of 141.0 MiB leaves no memory on a GPU with 100.0 MiB",
        ),
        (["--gpu", "T4", "--context", "20GiB"], "a CUDA context of 20.00 GiB leaves no memory on a GPU with 14.74 GiB"),
        (["--gpu", "T4", "--context", "much"], "--context 'much' is not a size; expected a number and a unit"),
        (["--gpu", "T4", "--arch", "sm_90"], "T4 has the architecture sm_75, but 'sm_90' was given"),
        (["--gpu", "24GiB", "--arch", "sm_1"], "the architecture 'sm_1' is unknown; expected one of: "),
        (["--gpu", "T4", "--count", "17"], "--count 17 is out of range; expected 1 to 16"),
        (["--gpu", "T4", "--snapshot", "no/where.pickle"], "the folder of --snapshot no/where.pickle does not exist"),
        (["--gpu", "T4", "--snapshot", "/tmp"], "--snapshot /tmp is a folder; expected the name of a file to write"),
        (["--gpu", "T4", "--alloc-conf", "nonsense:1"], "PyTorch cannot parse --alloc-conf 'nonsense:1': "),
    ],
)
def test_a_mistake_is_one_sentence(predict: Predict, arguments: list[str], sentence: str) -> None:
    """Exit code 2, with the value, what was expected, and no traceback."""
    ended = predict("train.py", *arguments, gpu=None)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.error
    assert ended.error.startswith("error: ")
    assert ended.error.count("\n") == 1


@pytest.mark.parametrize(("script", "what"), [("missing.py", "does not exist"), ("with space ü", "is a folder")])
def test_a_script_that_is_none_is_one_sentence(predict: Predict, script: str, what: str) -> None:
    """Exit code 2, and what the path is instead."""
    ended = predict(script)
    assert (ended.code, ended.out) == (2, "")
    assert f"{script} {what}; expected a Python file\n" in ended.error


def test_json_is_all_of_standard_output(predict: Predict, workplace: Path) -> None:
    """The fields that programs may rely on have their types, the roles sum to the peak, and a snapshot is whole.

    Options after -- are the script's, even where they have our names.
    """
    ended = predict("train.py", "--json", "--snapshot", "memory.pickle", "--", "--steps", "7", "--json")
    assert ended.code == 0, ended.error
    data = ended.json
    for field, kinds in FIELDS.items():
        assert isinstance(data[field], kinds), field
    assert data["verdict"] == "fits"
    assert data["schema"] == 2
    assert [{name: type(value) for name, value in step.items()} for step in data["steps"]] == [STEP] * 3
    assert set(data["roles"]) == ROLES
    assert sum(data["roles"].values()) == data["peak_allocated_bytes"]
    assert data["peak_allocated_bytes"] == max(step["peak_allocated_bytes"] for step in data["steps"])
    assert data["headroom_bytes"] == data["total_memory_bytes"] - data["peak_reserved_bytes"] - data["context_bytes"]
    low, high = data["interval_bytes"]
    assert data["peak_reserved_bytes"] < low <= high <= data["total_memory_bytes"]
    assert data["arguments"] == ["--steps", "7", "--json"]

    assert sorted(path.name for path in workplace.iterdir()) == ["inductor", "memory.pickle", "tmp"]
    with (workplace / "memory.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    assert snapshot["segments"]
    frames = [frame for event in snapshot["device_traces"][0] for frame in event.get("frames", ())]
    assert any(frame["filename"] == str(SCRIPTS / "train.py") for frame in frames)
    draw = (
        "import ullage; ullage.emulate('T4'); import pickle; from torch.cuda._memory_viz import trace_plot; "
        "assert '<html>' in trace_plot(pickle.load(open('memory.pickle', 'rb')))"
    )
    subprocess.run([sys.executable, "-c", draw], cwd=workplace, env=environment_of(workplace), check=True)


def test_on_an_unknown_interpreter_the_lines_are_those_of_pytorchs_stacks(predict: Predict, tmp_path: Path) -> None:
    """Where the journal cannot read Python's frames, PyTorch does it, slower, and says the same."""
    (tmp_path / "sitecustomize.py").write_text(
        "from ullage.gpu.tracing.journal import stacks\nstacks._LAYOUTS.clear()\n"
    )
    known, unknown = predict("train.py", "--json").json, predict("train.py", "--json", PYTHONPATH=str(tmp_path)).json
    for answer in (known, unknown):
        assert any(row["file"] == str(SCRIPTS / "train.py") for row in answer["lines"])
        for row in answer["lines"]:
            row["function"] = None  # a qualified name or a plain one
    assert known["lines"] == unknown["lines"]
    assert known["roles"] == unknown["roles"]
    assert known["steps"] == unknown["steps"]


def test_two_runs_at_once_say_the_same(workplace: Path) -> None:
    """Predictions do not see each other; another card has other totals, and the same allocations."""

    def start(gpu: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command("--gpu", gpu, "--json", SCRIPTS / "train.py"),
            stdout=subprocess.PIPE,
            text=True,
            cwd=workplace,
            env=environment_of(workplace),
        )

    running = [start("T4"), start("T4")]
    first, second = (json.loads(process.communicate(timeout=900)[0]) for process in running)
    assert numbers(first) == numbers(second)
    running = [start("H100"), start("T4")]
    other, again = (json.loads(process.communicate(timeout=900)[0]) for process in running)
    assert numbers(again) == numbers(first)
    assert other["total_memory_bytes"] > first["total_memory_bytes"]
    assert other["gpu"] != first["gpu"]


def test_between_the_ends_of_the_interval_nothing_is_said(predict: Predict) -> None:
    """A card that holds the low end and not the high end gives exit code 4, and the reason."""
    ended = predict("train.py", "--total-memory", "180MiB")
    assert ended.code == 4, ended.error
    assert "UNCERTAIN" in ended.text
    assert "of 180.0 MiB would be used: the result depends on the CUDA context" in ended.text


# ---- files and streams that cannot be written


def test_a_snapshot_that_cannot_be_written_leaves_nothing(workplace: Path) -> None:
    """The verdict is printed, the reason is one sentence, the exit code is 2, and no part of a file stays."""
    limited = (
        f"ulimit -f 8; exec {sys.executable} -m ullage predict --gpu T4 --snapshot memory.pickle '{SCRIPTS}/train.py'"
    )
    ended = subprocess.run(
        ["bash", "-c", limited],
        capture_output=True,
        text=True,
        cwd=workplace,
        env=environment_of(workplace, PYTHONDONTWRITEBYTECODE="1"),
    )
    assert ended.returncode == 2, ended
    assert "FITS" in ended.stdout
    assert ended.stderr.splitlines()[-1] == "error: the snapshot memory.pickle was not written: File too large"
    assert [path.name for path in workplace.iterdir() if path.is_file()] == []


@pytest.mark.parametrize("option", ["--json", "--output"])
def test_a_full_disk_is_one_sentence(workplace: Path, option: str) -> None:
    """Standard output that cannot be written: exit code 2, and nothing from the interpreter's own last flush."""
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command("--gpu", "T4", option, SCRIPTS / "ends.py", "exit 0"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=workplace,
            env=environment_of(workplace),
        )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == "error: No space left on device"
    assert "Traceback" not in ended.stderr


def test_a_reader_that_goes_is_no_error(workplace: Path) -> None:
    """`ullage predict ... | head -0` ends without a word, and not with the code for a script that does not fit."""
    line = f"{sys.executable} -m ullage predict --gpu T4 '{SCRIPTS}/ends.py' 'exit 0' | true; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=workplace, env=environment_of(workplace)
    )
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize("option", ["--html", "--snapshot"])
@pytest.mark.parametrize("target", ["ends.py", "pipe", "link"])
def test_an_output_replaces_neither_the_script_nor_a_device(workplace: Path, option: str, target: str) -> None:
    script = workplace / "ends.py"
    shutil.copy(SCRIPTS / "ends.py", script)
    os.mkfifo(workplace / "pipe")
    (workplace / "link").symlink_to("elsewhere")
    ended = subprocess.run(
        command("--gpu", "T4", option, target, "ends.py", "exit 0"),
        capture_output=True,
        text=True,
        cwd=workplace,
        env=environment_of(workplace),
    )
    assert ended.returncode == 2
    assert "expected another name" in ended.stderr or "is a link or a device" in ended.stderr, ended.stderr
    assert script.read_text() == (SCRIPTS / "ends.py").read_text()


def test_closed_and_narrow_streams_are_survived(workplace: Path) -> None:
    """A shell may close both streams, and an encoding may lack the blocks that we draw with."""
    line = f"{sys.executable} -m ullage predict --gpu T4 '{SCRIPTS}/ends.py' 'exit 0'"
    ended = subprocess.run(
        ["bash", "-c", f"{line} >&- 2>&-; echo $?; PYTHONIOENCODING=ascii {line}"],
        capture_output=True,
        text=True,
        cwd=workplace,
        env=environment_of(workplace),
    )
    assert ended.stdout.startswith("4\n")
    assert "UNCERTAIN" in ended.stdout
    assert ended.returncode == 4


# ---- torch that is missing, or cannot be used


def without_torch(workplace: Path) -> Path:
    """A folder with every package of this environment but torch."""
    folder = workplace / "packages"
    folder.mkdir()
    for place in (path for path in sys.path if Path(path).name == "site-packages"):  # one may stand on another's
        for entry in Path(place).iterdir():
            if not entry.name.startswith(("torch", "functorch")) and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    if not (folder / "ullage").exists():
        (folder / "ullage").symlink_to(Path(ullage.__file__).parent)
    return folder


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (None, "PyTorch is not installed in this environment; install its CUDA build: pip install torch"),
        (
            "__version__ = '2.11.0+cpu'\ncuda: str | None = None\n",
            "the PyTorch in this environment (2.11.0+cpu) is built without CUDA, and the emulator runs PyTorch's own "
            "CUDA build (no GPU is needed); install it: pip install",
        ),
        (
            "__version__ = '1.13.0+cu117'\ncuda = '11.7'\n",
            "the PyTorch in this environment (1.13.0+cu117) is built for CUDA 11.7; only CUDA 12 and 13 can be "
            "emulated",
        ),
    ],
)
def test_without_a_torch_for_cuda_there_is_an_install_line(workplace: Path, version: str | None, sentence: str) -> None:
    """Exit code 4 and one sentence."""
    packages = without_torch(workplace)
    if version is not None:
        (packages / "torch").mkdir()
        (packages / "torch" / "__init__.py").write_text("")
        (packages / "torch" / "version.py").write_text(version)
    ended = subprocess.run(
        [sys.executable, "-S", *command("--gpu", "T4", SCRIPTS / "train.py")[1:]],
        capture_output=True,
        text=True,
        cwd=workplace,
        env=environment_of(workplace, PYTHONPATH=str(packages)),
    )
    assert (ended.returncode, ended.stdout) == (4, ""), ended.stderr
    assert ended.stderr.startswith(f"error: {sentence}")
    assert ended.stderr.count("\n") == 1
