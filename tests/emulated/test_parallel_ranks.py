"""Every kind of rank alone in its process needs what it needs among others that torchrun starts, to the byte."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.layouts.ranks import CASES, SCRIPTS, Case, alone, together

from .conftest import Predict, command, environment_of, slow

ALWAYS = ("pipeline.py 1F1B on 2", "objects.py gloo on 2")
"""One kind whose shapes another rank decides, and one whose objects do; `make ranks` runs all."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, id=each.name, marks=() if each.name in ALWAYS else slow) for each in CASES if not each.needs],
)
def test_a_rank_alone_needs_what_it_needs_among_others(workplace: Path, case: Case) -> None:
    environment = environment_of(workplace, OMP_NUM_THREADS="1")
    real = together(case, environment, workplace)
    assert len(real) == case.ranks
    assert alone(case, environment, workplace) == real


def test_a_rank_has_those_run_that_tell_it_something(predict: Predict) -> None:
    """The last stage needs the one before, which needs the first; nothing of them is left behind (`workplace`)."""
    ended = predict(SCRIPTS / "by_hand.py", "--world-size", "3", "--rank", "2", "--json", "--steps", "3")
    assert ended.code == 0, ended.error
    assert "rank 1 was run too, as far as this one needs what is sent to it" in ended.json["notes"]
    first = predict(SCRIPTS / "by_hand.py", "--world-size", "3", "--rank", "0", "--json", "--steps", "3")
    assert first.code == 0, first.error
    assert not any("was run too" in note for note in first.json["notes"])


def test_of_a_command_too_a_rank_is_told_what_others_send(workplace: Path, predict: Predict) -> None:
    script = SCRIPTS / "objects.py"
    plain = predict(script, "--world-size", "2", "--rank", "1", "--json", "--steps", "3")
    assert plain.code == 0, plain.error
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        command("--gpu", "T4", "--json", "--steps", "3", "--rank", "1", *launcher, script),
        capture_output=True,
        text=True,
        cwd=workplace,
        env=environment_of(workplace),
        timeout=120,
    )
    for logs in (workplace / "tmp").glob("torchelastic_*"):  # torchrun keeps them
        shutil.rmtree(logs)
    assert done.returncode == 0, done.stderr
    names = ("peak_allocated_bytes", "peak_reserved_bytes", "rank")
    answer = json.loads(done.stdout)
    assert [answer[name] for name in names] == [plain.json[name] for name in names]


def test_why_a_message_does_not_come_is_told(predict: Predict, tmp_path: Path) -> None:
    """The rank that would send it has failed."""
    text = (SCRIPTS / "by_hand.py").read_text()
    script = tmp_path / "fails.py"
    script.write_text(text.replace("\ndef step", "if is_first:\n    raise ValueError('no data')\n\n\ndef step"))
    shutil.copy(SCRIPTS / "common.py", tmp_path)
    ended = predict(script, "--world-size", "2", "--rank", "1")
    assert ended.code in (3, 4)
    said = " ".join((ended.out + ended.error).split())
    assert "rank 0, which has to send something to this one, failed: ValueError: no data" in said
