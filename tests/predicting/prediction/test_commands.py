"""Any command: each form of a training has the peak of the script, and of a launcher's processes one runs alone."""

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.forked import client
from tests.shared.commands import Ended, command, environment_of, processes_of
from ullage.predicting.prediction.command.words import Launch, is_launcher, is_program, launch_of, shown

TRAINING = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
options, _ = parser.parse_known_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    model(torch.randn(options.batch_size, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
RANK = """
import os, sys
import torch
import torch.distributed as distributed
distributed.init_process_group("nccl")
rank, size = distributed.get_rank(), distributed.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(1 << 10, 1 << (8 + rank), device="cuda")  # the last rank has most
optimizer = torch.optim.SGD(model.parameters())
print("rank", rank, "of", size, "on", os.environ["LOCAL_RANK"], "of node", os.environ["GROUP_RANK"], flush=True)
for step in range(1000):
    total = torch.ones(4, device="cuda")
    distributed.all_reduce(total)
    model(torch.randn(8, 1 << 10, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
Ask = Callable[..., Ended]


@pytest.fixture
def ask(workplace: Path) -> Ask:
    """Run `ullage predict` with the words of a command, in a folder with the scripts above."""
    (workplace / "train.py").write_text(TRAINING)
    (workplace / "rank.py").write_text(RANK)

    def run(*words: object, given: IO[Any] | int = subprocess.DEVNULL, **changes: str) -> Ended:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        process = client.run(
            command("--gpu", "T4", *words),
            cwd=workplace,
            env=environment_of(workplace, PATH=path, **changes),
            timeout=900,
            stdin=given,
        )
        for logs in (workplace / "tmp").glob("torchelastic_*"):  # torchrun keeps them
            shutil.rmtree(logs)
        return Ended(code=process.returncode, out=process.stdout, error=process.stderr)

    return run


def peaks(ended: Ended) -> tuple[int, int]:
    assert ended.code == 0, ended.error
    return ended.json["peak_allocated_bytes"], ended.json["peak_reserved_bytes"]


_peaks_of_the_script: list[tuple[int, int]] = []


@pytest.fixture
def plain(ask: Ask) -> tuple[int, int]:
    """The peaks of the script with a batch of 64, run once in this process of pytest."""
    if not _peaks_of_the_script:
        _peaks_of_the_script.append(peaks(ask("--json", "train.py", "--batch-size", "64")))
    return _peaks_of_the_script[0]


def test_every_form_of_a_training_has_the_peak_of_the_script(ask: Ask, plain: tuple[int, int], workplace: Path) -> None:
    package = workplace / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(TRAINING)
    shell = workplace / "train.sh"
    shell.write_text("#!/bin/sh\npython train.py --batch-size 64\n")
    shell.chmod(0o755)
    for words in (
        ("-m", "package.train"),
        ("python", "train.py"),
        ("torchrun", "--nproc-per-node", "1", "train.py"),
        ("accelerate", "launch", "--num_processes", "1", "train.py"),
    ):
        assert peaks(ask("--json", *words, "--batch-size", "64")) == plain, words
    assert peaks(ask("--json", "./train.sh")) == plain
    assert peaks(ask("train.py", "--batch-size", "64", "--json")) == plain


def test_a_script_that_comes_through_standard_input(ask: Ask, plain: tuple[int, int], workplace: Path) -> None:
    """Through a pipe, or as a file, which whoever reads it too goes on to read where it was."""
    reading, writing = os.pipe()
    os.write(writing, TRAINING.encode())
    os.close(writing)
    with open(reading, "rb") as pipe:
        ended = ask("--json", "python", "-", "--batch-size", "64", given=pipe)
    assert peaks(ended) == plain
    (workplace / "rows.py").write_text(TRAINING.replace("parse_known_args()", "parse_known_args(input().split())"))
    (workplace / "rows.txt").write_text("header\n--batch-size 64\n")
    with (workplace / "rows.txt").open() as rows:
        os.lseek(rows.fileno(), len("header\n"), os.SEEK_SET)
        for words in (("rows.py",), ("python", "rows.py")):
            assert peaks(ask("--json", *words, given=rows)) == plain
            assert os.lseek(rows.fileno(), 0, os.SEEK_CUR) == len("header\n")


def test_a_command_of_several_lines_is_shown_in_one(ask: Ask, plain: tuple[int, int]) -> None:
    assert shown(["python", "-c", "\nimport torch\ntrain()", "a b"]) == "python -c 'import torch ...' 'a b'"
    ended = ask("python", "-c", TRAINING, "--batch-size", "64")
    assert ended.code == 0, ended.error
    assert ended.out.splitlines()[1].strip().startswith("FITS   python -c 'import argparse ...' --batch-size 64 on ")


def test_the_cells_of_a_notebook_run_in_their_order(ask: Ask, plain: tuple[int, int], workplace: Path) -> None:
    code = TRAINING.replace("parser.parse_known_args()", "parser.parse_known_args(['--batch-size', '64'])")
    lines = code.splitlines(keepends=True)
    cells = [lines[:4], ["# notes\n", "!pip install nothing-of-this-name\n"], lines[4:9], lines[9:], ["1 / 0"]]
    sources = [{"cell_type": "code", "source": cell, "outputs": [], "metadata": {}} for cell in cells]
    sources.insert(1, {"cell_type": "markdown", "source": ["1 / 0"], "metadata": {}})
    (workplace / "train.ipynb").write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": sources}))
    ended = ask("--json", "train.ipynb")
    assert peaks(ended) == plain
    assert "train.ipynb[cell 4]" in json.dumps(ended.json["lines"])
    (workplace / "train.ipynb").write_text("{}")
    ended = ask("train.ipynb")
    assert ended.code == 2
    assert "train.ipynb is not a notebook of format version 4" in ended.error


def test_of_a_launchers_processes_the_wanted_rank_runs_alone(ask: Ask, workplace: Path) -> None:
    """Ranks that are not wanted end at once, so that the launcher takes them for done."""
    lone = ask("--output", "--json", "--rank", "2", "torchrun", "--nproc-per-node", "4", "rank.py")
    assert peaks(lone) == peaks(ask("--json", "--world-size", "4", "--rank", "2", "rank.py"))
    assert (lone.json["world_size"], lone.json["rank"], lone.json["processes"]) == (4, 2, [])
    assert "rank 2 of 4 on 2 of node 0" in lone.error
    assert "rank 1" not in lone.error
    (workplace / "job.sh").write_text("exec torchrun --nproc-per-node 4 rank.py\n")
    assert peaks(ask("--json", "--rank", "2", "sh", "job.sh")) == peaks(lone)
    launcher = ("torchrun", "--nnodes=2", "--nproc-per-node", "2", "--node-rank", "0", "--rdzv-endpoint", "far:1")
    ended = ask("--output", "--json", "--rank", "3", *launcher, "rank.py")
    assert peaks(ended) == peaks(ask("--json", "--world-size", "4", "--rank", "3", "rank.py"))
    assert "rank 3 of 4 on 1 of node 1" in ended.error


def test_a_launcher_whose_port_is_taken_takes_another(ask: Ask, plain: tuple[int, int]) -> None:
    """As where `fit` runs two values at once."""
    with socket.socket() as other:
        with suppress(OSError):  # somebody else has it
            other.bind(("", 29500))
            other.listen()
        assert peaks(ask("--json", "torchrun", "--nproc-per-node", "1", "train.py", "--batch-size", "64")) == plain


@pytest.mark.parametrize("how", [("--processes", "real"), ("--rank", "all")])
def test_all_processes_are_listed_and_the_fullest_is_shown(ask: Ask, how: tuple[str, str]) -> None:
    ended = ask("--json", *how, "torchrun", "--nproc-per-node", "2", "rank.py")
    peak, reserved = peaks(ended)
    found = ended.json["processes"]
    assert [(each["name"], each["rank"]) for each in found] == [("rank.py", 0), ("rank.py", 1)]
    assert ended.json["rank"] == 1
    assert peak == found[1]["peak_allocated_bytes"] > found[0]["peak_allocated_bytes"]
    assert reserved == found[1]["peak_reserved_bytes"]


def test_trainings_one_after_the_other_are_listed(ask: Ask, workplace: Path) -> None:
    (workplace / "both.sh").write_text("python train.py --batch-size 16\npython train.py --batch-size 4096\n")
    ended = ask("--json", "sh", "both.sh")
    assert peaks(ended) == peaks(ask("--json", "train.py", "--batch-size", "4096"))
    assert len(ended.json["processes"]) == 2


def test_a_command_that_is_stopped_by_its_time_has_told_what_it_used(ask: Ask, workplace: Path) -> None:
    """The launcher has imported torch too; it must not end before its process has told."""
    (workplace / "waits.py").write_text(
        "import time\n" + TRAINING.replace("    optimizer.zero_grad()", "    time.sleep(600)")
    )
    ended = ask("--json", "--seconds", "5", "torchrun", "--nproc-per-node", "1", "waits.py")
    assert ended.code == 4, ended.error  # one step does not show what the second needs
    assert ended.json["ended"] == "time"
    assert ended.json["peak_allocated_bytes"] > 0


def test_what_fails_is_said_in_its_own_words(ask: Ask, workplace: Path) -> None:
    (workplace / "fails.py").write_text("import torch\nraise ValueError('no such data')\n")
    ended = ask("torchrun", "--nproc-per-node", "1", "fails.py")
    assert ended.code == 3
    assert "torchrun raised ValueError at line 2 of" in ended.error
    assert "no such data" in ended.error
    ended = ask("sh", "-c", "echo nothing to see; exit 7")
    assert ended.code == 3
    assert (
        "sh ended with exit code 7, and none of its processes used the GPU; its last output was:\nnothing to"
        in ended.error
    )
    ended = ask("no-such-command", "train.py")
    assert ended.code == 2
    assert "no-such-command is neither a script nor a command on the PATH" in ended.error
    ended = ask("HF_TOKEN=secret", "python", "train.py")
    assert ended.code == 2
    assert (
        "HF_TOKEN=... is not a command; put variables before ullage predict, or use ullage predict env" in ended.error
    )
    assert "secret" not in ended.error
    ended = ask("--unknown", "train.py")
    assert ended.code == 2
    assert "--unknown is neither an option of ullage predict nor a command" in ended.error
    ended = ask("--processes", "some", "torchrun", "train.py")
    assert ended.code == 2
    assert "--processes some is not known; expected one of alone, real" in ended.error.replace("'", "")


ENDS = """
import sys
import torch
kept = torch.ones(1 << 20, device="cuda")
"""


@pytest.mark.parametrize("raising", ["raise SystemExit(3)", "sys.exit(3)", "import os; os._exit(3)"])
def test_an_exit_code_is_a_failure_however_a_process_comes_to_it(ask: Ask, workplace: Path, raising: str) -> None:
    (workplace / "ends.py").write_text(ENDS + raising)
    ended = ask("sh", "-c", "python ends.py; exit 0")
    assert ended.code == 3
    assert "sh exited with code 3" in ended.error


def test_an_exit_code_of_a_process_that_has_done_nothing_on_the_card(ask: Ask, workplace: Path) -> None:
    (workplace / "ends.py").write_text("import torch\nraise SystemExit('no data')")
    ended = ask("sh", "-c", "python ends.py; exit 0")
    assert ended.code == 3
    assert "sh exited with code 1; its last output was:\nno data" in ended.error


def test_an_error_that_was_handled_is_no_end(ask: Ask, workplace: Path) -> None:
    """What shows an error in the interpreter's way, as a console in a script does, leaves it where ends are noted."""
    (workplace / "ends.py").write_text(ENDS + "sys.last_value = ValueError('handled')\n")
    ended = ask("--json", "python", "ends.py")
    assert peaks(ended) == (4 << 20, 20 << 20)
    assert ended.json["ended"] == "ended"


def test_a_script_whose_processes_train_is_told_how_they_are_measured(
    ask: Ask, plain: tuple[int, int], workplace: Path
) -> None:
    (workplace / "starts.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py', '--batch-size', '64'])\n"
    )
    ended = ask("starts.py")
    assert ended.code == 4
    assert "give the command instead: python starts.py" in " ".join(ended.out.split())
    assert peaks(ask("--json", "python", "starts.py")) == plain


def test_memory_that_runs_out_in_a_process_of_a_command(ask: Ask) -> None:
    ended = ask("--json", "torchrun", "--nproc-per-node", "1", "train.py", "--batch-size", "90000000")
    assert ended.code == 1, ended.error
    assert ended.json["verdict"] == "does not fit"
    assert ended.json["oom"]["line"] is not None


def test_an_option_that_a_script_has_too_is_the_scripts_behind_its_name(
    ask: Ask, plain: tuple[int, int], workplace: Path
) -> None:
    (workplace / "ranked.py").write_text(TRAINING.replace('"--batch-size"', '"--rank", dest="batch_size"'))
    ended = ask("--json", "ranked.py", "--rank", "64")
    assert peaks(ended) == plain
    assert "note: --rank was passed to ranked.py, which has it too; put ullage's option before it" in ended.error
    assert ended.json["arguments"] == ["--rank", "64"]


def test_config_behind_a_script_is_the_scripts_unless_weights_are_made_up(
    ask: Ask, plain: tuple[int, int], workplace: Path
) -> None:
    """A library's parser has it, as Lightning's command line and torchtune's recipes: no source of the script shows."""
    (workplace / "library.py").write_text(
        TRAINING.partition("torch.manual_seed")[0].replace('"--batch-size"', '"--config", dest="batch_size"')
    )
    (workplace / "configured.py").write_text(
        "from library import *\n" + TRAINING.replace("options, _ = parser.parse_known_args()", "")
    )
    ended = ask("--json", "configured.py", "--config", "64")
    assert peaks(ended) == plain
    ended = ask("--json", "configured.py", "--random-weights", "--config", "64.yaml")
    assert "invalid int value: '64.yaml'" in ended.error


def test_children_that_run_away_end_with_the_prediction(ask: Ask, workplace: Path) -> None:
    """A daemon in a session of its own, of a command that is stopped after its time; `workplace` looks for it."""
    (workplace / "away.sh").write_text("setsid sleep 1000 &\nsleep 1000\n")
    ended = ask("--seconds", "2", "sh", "away.sh")
    assert ended.code == 3
    assert "sh did not end after 2 s" in ended.error
    process = subprocess.Popen(
        command("--gpu", "T4", "sh", "away.sh"),
        cwd=workplace,
        env=environment_of(workplace),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while len(processes_of(workplace / "tmp", "sleep")) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for each in processes_of(workplace / "tmp", "sleep"):  # the kernel ends the group; the daemon has left it
        with suppress(psutil.NoSuchProcess):
            each.kill()
            each.wait(900)


@pytest.mark.parametrize(
    ("typed", "run", "nodes", "cards"),
    [
        ("torchrun --nproc-per-node 8 t.py --nnodes 4", "torchrun --nproc-per-node 8 t.py --nnodes 4", 1, 8),
        (
            "torchrun --nnodes 4 --nproc_per_node=2 --rdzv-id x -m m",
            "torchrun --nnodes 1 --nproc_per_node=2 -m m",
            4,
            2,
        ),
        ("torchrun --nnodes=1:4 --nproc-per-node gpu t.py", "torchrun --nnodes=1 --nproc-per-node gpu t.py", 4, 1),
        (
            "accelerate launch --num_machines 2 --num_processes 16 --main_process_ip h t.py",
            "accelerate launch --num_machines 1 --num_processes 8 t.py",
            2,
            8,
        ),
        ("deepspeed --num_gpus 4 t.py", "deepspeed --num_gpus 4 t.py", 1, 4),
        ("python -m torch.distributed.run --nnodes 2 t.py", "python -m torch.distributed.run --nnodes 1 t.py", 2, 1),
        ("trl sft --num_processes 4", "trl sft --num_processes 4", 1, 1),
    ],
)
def test_a_launchers_command_is_made_one_of_this_machine(typed: str, run: str, nodes: int, cards: int) -> None:
    assert launch_of(typed.split()) == Launch(tuple(run.split()), nodes=nodes, cards=cards)


def test_what_is_a_launcher_and_what_a_program(tmp_path: Path) -> None:
    assert is_launcher(["torchrun", "x.py"])
    assert not is_launcher(["python", "x.py", "-m", "torch.distributed.run"])
    assert not is_launcher([])
    for text, mode, expected in (
        ("#!/bin/sh\n", 0o755, True),
        ("#!/bin/sh\n", 0o644, False),
        ("#!/usr/bin/env python3\n", 0o755, False),
        ("print()\n", 0o755, False),
    ):
        file = tmp_path / "file"
        file.write_text(text)
        file.chmod(mode)
        assert is_program(file) is expected


def test_a_run_that_its_time_ends_after_one_step_is_not_said_to_fit(ask: Ask, workplace: Path) -> None:
    """The states of the optimizer exist when the first step ends, so the second step needs more memory."""
    (workplace / "waits.py").write_text(f"import time\n{TRAINING}    time.sleep(600)\n")
    ended = ask("--seconds", "5", "waits.py")
    assert ended.code == 4, ended.error
    assert ended.out.split()[0] == "UNCERTAIN"
    assert "only one step ended within 5 s; allow more time with --seconds" in ended.text
    more = "    torch.empty(step + 1, 1 << 22, device='cuda')\n"
    (workplace / "waits.py").write_text(f"import time\n{TRAINING}{more}    if step == 1: time.sleep(600)\n")
    ended = ask("--seconds", "5", "waits.py")
    assert ended.code == 0, ended.error
    assert "would be used in the first 2 steps." in ended.text


WIDTH = """
import os, sys
rows, columns = os.popen("stty size").read().split()
print("size", rows, columns, sys.stdin.isatty(), repr(sys.stdin.read()), repr(sys.stdin.read()), flush=True)
"""


@pytest.mark.parametrize("words", [("width.py",), ("python", "width.py")])
def test_a_terminal_has_the_users_size_and_no_input(ask: Ask, workplace: Path, words: tuple[str, ...]) -> None:
    """Training scripts ask `stty size` for the width of a progress bar; the user's own input stays unread."""
    (workplace / "width.py").write_text(WIDTH + TRAINING)
    ours, terminal = os.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        os.write(ours, b"typed\n")
        ended = ask("--output", "--json", *words, given=terminal)
        assert ended.code == 0, ended.error
        assert "size 33 99 True '' ''" in ended.error
        assert os.read(terminal, 100) == b"typed\n"
    finally:
        os.close(ours)
        os.close(terminal)
